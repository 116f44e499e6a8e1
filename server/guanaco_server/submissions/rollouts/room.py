"""Builds the loops of rollouts, which compare the votes of rooms that are built after the submissions."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco_server.accounts.service import AccountService
from guanaco_server.artifacts.hub.hub import Hub
from guanaco_server.clusters.compute import Compute
from guanaco_server.database.database import Database
from guanaco_server.deployments.beside import VersionsBeside
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.runtime.clock import Clock
from guanaco_server.settings import Settings
from guanaco_server.submissions.rollouts.loop import ListVotes, RolloutLoop
from guanaco_server.submissions.rollouts.promotions import ListVotes as ListAllVotes
from guanaco_server.submissions.rollouts.promotions import PromotionLoop
from guanaco_server.submissions.rollouts.records import RolloutRecords
from guanaco_server.submissions.rollouts.service import RolloutService
from guanaco_server.submissions.rollouts.unasked import UnaskedRedeploys
from guanaco_server.submissions.runs.events import StatusChanges


@dataclass(frozen=True)
class RolloutsRoom:
    """``takeovers`` lets new versions take over, ``promotions`` begins the rollouts of adapters that do well, ``unasked`` those that the platform needs."""

    takeovers: RolloutLoop
    promotions: PromotionLoop
    unasked: UnaskedRedeploys


def build_rollouts(
    database: Database,
    clock: Clock,
    compute: Compute,
    *,
    changes: StatusChanges,
    records: RolloutRecords,
    service: RolloutService,
    hub: Hub,
    accounts: AccountService,
    deployments: DeploymentService,
    versions: VersionsBeside,
    list_votes: ListVotes,
    list_all_votes: ListAllVotes,
    settings: Settings,
) -> RolloutsRoom:
    """``list_votes`` are those on one submission since a time, ``list_all_votes`` those of all competitions."""
    is_leader = compute.leadership.is_leading
    takeovers = RolloutLoop(
        database,
        clock,
        changes,
        deployments,
        versions,
        records,
        is_leader=is_leader,
        list_votes=list_votes,
        longest_reply_s=settings.reply_timeout_s,
    )
    promotions = PromotionLoop(
        database,
        clock,
        accounts,
        service,
        hub,
        after=settings.lora_promote_after,
        is_leader=is_leader,
        list_votes=list_all_votes,
    )
    unasked = UnaskedRedeploys(
        database,
        clock,
        changes,
        deployments,
        records,
        serves_adapters=settings.serves_adapters,
        is_leader=is_leader,
    )
    return RolloutsRoom(takeovers, promotions, unasked)
