"""Builds the scaling room: replicas by load, sleep and waking, and a budget shared by all submissions."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco_server.clusters.compute import Compute
from guanaco_server.database.commits import CommitWatch
from guanaco_server.deployments.engines.swaps import IdleServers
from guanaco_server.deployments.model_servers.model_server import ModelServer
from guanaco_server.deployments.overview import DeploymentOverview
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.runtime.clock import Clock
from guanaco_server.scaling.admission import Admission, HotEngines
from guanaco_server.scaling.autoscaler import Autoscaler, ScalingPolicy
from guanaco_server.scaling.budget import Budget
from guanaco_server.scaling.replicas import CapacityReader, ReplicaLimits
from guanaco_server.scaling.schedule import schedule_of
from guanaco_server.scaling.sleep import SleepService
from guanaco_server.scaling.spares import ServersAhead
from guanaco_server.scaling.usage import ReadCounts, ReadOwners, TrafficRecorder, UsageReader
from guanaco_server.scaling.worth_plan import ReadRaces, WorthPlanner
from guanaco_server.settings import Settings


@dataclass(frozen=True)
class ScalingRoom:
    """``autoscaler`` is a loop, the duty of one process; ``admission`` and ``ahead`` belong to the reconciler."""

    traffic: TrafficRecorder
    sleep_service: SleepService
    capacities: CapacityReader
    usage: UsageReader
    autoscaler: Autoscaler
    admission: Admission
    ahead: ServersAhead


def build_scaling(
    clock: Clock,
    compute: Compute,
    model_server: ModelServer,
    *,
    deployments: DeploymentService,
    overview: DeploymentOverview,
    idle: IdleServers,
    read_owners: ReadOwners,
    count_feedback: ReadCounts,
    count_streams: ReadCounts,
    read_races: ReadRaces,
    commits: CommitWatch,
    settings: Settings,
) -> ScalingRoom:
    """``read_owners`` knows each submission that is or will be served; the counts are by submission. ``read_races`` gives the running competitions."""
    policy = scaling_policy(settings, shares_addresses=compute.shares_addresses)
    usage = UsageReader(read_owners, count_feedback, count_streams)
    hot = HotEngines(settings.hot_engine_limit, settings.hot_engine_s, compute.has_memory)
    planner = WorthPlanner(
        clock, read_races, policy.budget, settings.longest_sleep_s, settings.scale_interval_s
    )
    return ScalingRoom(
        traffic=TrafficRecorder(clock, deployments),
        sleep_service=SleepService(deployments, settings.wake_wait_s),
        capacities=CapacityReader(overview, settings.engine_args),
        usage=usage,
        autoscaler=Autoscaler(
            deployments,
            model_server,
            clock,
            usage,
            policy,
            is_leader=compute.leadership.is_leading,
            commits=commits,
        ),
        admission=Admission(
            clock,
            compute.cluster,
            deployments,
            usage,
            policy.budget,
            policy.feedback_target,
            awake_floor=lambda: policy.schedule.floors(clock.now()).awake,
            idle=idle,
            planner=planner if settings.sleep_policy == "worth" else None,
            hot=hot,
        ),
        ahead=ServersAhead(
            clock,
            compute.cluster,
            deployments,
            idle,
            usage,
            policy.budget,
            hot,
            requests=settings.hot_engine_requests,
            shares_machine=settings.cluster == "local",
        ),
    )


def scaling_policy(settings: Settings, *, shares_addresses: bool) -> ScalingPolicy:
    return ScalingPolicy(
        limits=ReplicaLimits(
            min_replicas=settings.min_replicas,
            max_replicas=max(
                settings.min_replicas, settings.max_replicas, settings.peak_min_replicas
            ),
            spare=settings.spare_capacity,
        ),
        budget=Budget(settings.max_gpus, settings.max_model_servers, settings.preempt_quiet_s),
        feedback_target=settings.feedback_target,
        idle_s=settings.sleep_idle_s,
        interval_s=settings.scale_interval_s,
        engine_args=tuple(settings.engine_args),
        shares_addresses=shares_addresses,
        schedule=schedule_of(settings),
    )
