"""Builds the reader of what strangers' repos and artifacts say of themselves, which deployments need before there are artifacts."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco_server.artifacts.checking.configs import ArtifactConfigs
from guanaco_server.artifacts.checking.process import RepoChecker
from guanaco_server.artifacts.stores.store import ArtifactStore
from guanaco_server.confinement.confined import StartChild


@dataclass(frozen=True)
class CheckingRoom:
    """The checker of ``configs`` has processes, which its ``close`` ends."""

    configs: ArtifactConfigs


def build_checking(store: ArtifactStore, start_child: StartChild) -> CheckingRoom:
    return CheckingRoom(ArtifactConfigs(store, RepoChecker(start_child)))
