"""Engines: model servers, and the deployments that use them.

An engine is what the model server is: an artifact, a length, a quantization, a recipe and a queue, with the command of this
platform (``engine_digest``). Deployments that differ only in what each request carries (prompt, parameters, stops) share one.

    open      the engine that the next deployment of its digest joins; there is at most one
    private   no digest: what only measures, and what came while a gateway of the version before served: that gateway
              would ask a shared server for a model by a name that the server does not know
    closed    a redeploy has begun a newer one, or its server kept dying: those that use it stay, nobody joins

An engine is there as long as a deployment uses it. It is named after the deployment that began it, and the model server
knows its model by that name (``Deployment.model``). Who uses which is ``deployments.server``, so nothing is counted twice.
The server of a submission that is torn down may stay without users, as a spare (``spares.py``).
A deployment that an earlier version of Guanaco began has no engine here, and is alone.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.database.commit_order import in_commit_order
from guanaco_server.deployments import queries
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.engines.specs import EngineOptions
from guanaco_server.deployments.tables import DeploymentRow, EngineRow, SpareServer
from guanaco_server.deployments.versions import MARK, beside, is_beside, submission_of


def engine_digest(deployment: Deployment, options: EngineOptions) -> str | None:
    """Return the same text for deployments that may share a model server; None for one that may not."""
    if deployment.is_private:
        return None
    recipe = deployment.recipe
    facts = {
        "artifact": deployment.held_key,
        "max_model_tokens": deployment.max_model_tokens,
        "quantization": deployment.quantization,
        "queue": deployment.queue,
        "recipe": recipe.model_dump(mode="json") if recipe else None,
        "command": options.command,
        "args": options.args,
    }
    if deployment.base_key is not None:
        facts["adapters"] = options.adapters.arguments
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


async def assign(
    session: AsyncSession,
    deployment: Deployment,
    options: EngineOptions,
    now: datetime,
    *,
    may_join: bool,
) -> str:
    """Return the engine that the deployment is to use: an open one, or a new one. A version beside begins a new one unless it ``joins``, and
    so does one that may not join, which then is alone.

    The deployment's row says afterwards which it uses. Until the transaction ends, nobody else is given an engine.
    """
    await lock(session)
    key, digest = deployment.submission_id, engine_digest(deployment, options)
    found = await queries.open_engine(session, digest) if digest else None
    if found is not None:
        own = await queries.by_submission(session, key)
        is_own = own is not None and own.run == deployment.run and own.server_key == found.id
        if is_own or (may_join and (deployment.joins or not is_beside(key))):
            found.spare = None
            return found.id
        if is_beside(key):
            found.digest = None
            await session.flush()  # before another one has it
        else:
            digest = None
    return await _begin(session, deployment, digest, now)


async def _begin(
    session: AsyncSession, deployment: Deployment, digest: str | None, now: datetime
) -> str:
    """Begin an engine that is named after the deployment, and return its name."""
    engine = await _new_name(session, deployment)
    row = await session.get(EngineRow, engine)
    if row is None:
        row = EngineRow(id=engine)
        session.add(row)
    row.token = row.token or secrets.token_urlsafe(32)
    row.digest, row.run, row.made_at, row.taken_by = digest, deployment.run, now, None
    row.spare = None
    await session.flush()
    return engine


async def divide(session: AsyncSession, leaving: Sequence[DeploymentRow], now: datetime) -> None:
    """Give some of an engine's deployments another one, without a server yet. Nobody joins either of the two any more."""
    old = await session.get(EngineRow, leaving[0].server_key)
    if old is not None:
        old.digest = None
    engine = await _begin(session, Deployment.of(leaving[0]), None, now)
    for row in leaving:
        row.server = engine if engine != row.submission_id else None
    await session.flush()


async def exchange(session: AsyncSession, one: str, other: str) -> None:
    """Let the deployments of each of two engines use the other. A token stays with its server, whatever that holds.

    Where the other one is a spare, the first is left without users and without a server, and is forgotten.
    """
    first, second = await session.get(EngineRow, one), await session.get(EngineRow, other)
    users, others = await queries.of_engine(session, one), await queries.of_engine(session, other)
    for moved, engine in ((users, other), (others, one)):
        for row in moved:
            row.server = engine if engine != row.submission_id else None
    if first is not None and second is not None:
        digests, runs = (second.digest, first.digest), (second.run, first.run)
        first.digest = second.digest = None
        await session.flush()  # a digest is unique
        first.digest, second.digest = digests
        first.run, second.run = runs
        if second.spare is not None:
            second.spare = None
            await session.delete(first)
    await session.flush()


async def note_taken(session: AsyncSession, row: DeploymentRow) -> None:
    """Note for which run the deployment's engine was taken over. Its name may be the deployment's own again, and does not tell."""
    engine = await session.get(EngineRow, row.server_key)
    if engine is not None:
        engine.taken_by = beside(row.owner, row.run)


async def is_shared(session: AsyncSession, row: DeploymentRow) -> bool:
    """Return whether others may join the deployment's engine, so that its name may change hands."""
    engine = await session.get(EngineRow, row.server_key)
    return engine is not None and engine.digest is not None


async def leave(
    session: AsyncSession, row: DeploymentRow, spare: SpareServer | None = None
) -> None:
    """Forget the engine of a deployment that is withdrawn, or is given another one, if nobody else uses it.

    With ``spare`` an engine that others may join stays, without users.
    """
    await lock(session)
    if await queries.others_of_engine(session, row):
        return
    engine = await session.get(EngineRow, row.server_key)
    if spare is not None and engine is not None and engine.digest is not None:
        engine.spare = spare
    else:
        await queries.remove_engine(session, row.server_key)


async def _new_name(session: AsyncSession, deployment: Deployment) -> str:
    """Return the deployment's own key; if others use a model server of that name, the key of its run."""
    key = deployment.submission_id
    if MARK in key or not await queries.is_used_by_others(session, key):
        return key
    return beside(submission_of(key), deployment.run)


async def lock(session: AsyncSession) -> None:
    """Let nobody else change who uses which engine until the transaction ends. This comes before any deployment's row is locked."""
    await in_commit_order(session, EngineRow.__tablename__)


def by_engine(rows: Iterable[DeploymentRow]) -> dict[str, list[DeploymentRow]]:
    found: defaultdict[str, list[DeploymentRow]] = defaultdict(list)
    for row in rows:
        found[row.server_key].append(row)
    return dict(found)


def capacity_of(users: Iterable[DeploymentRow]) -> int | None:
    """Return what one replica of an engine carries: the most that a check of any of its users showed.

    A check beside the load of others, or with longer replies, shows less capacity than there is.
    """
    return max((row.capacity for row in users if row.capacity is not None), default=None)
