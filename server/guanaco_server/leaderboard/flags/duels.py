"""Keeps the audit trail of duels that rules leave out (ranking/duels/duel_rules.py)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.leaderboard.flags import queries
from guanaco_server.leaderboard.ranking.duels.duel_rules import DuelFlag


async def keep_trail(
    session: AsyncSession, competition: str, flags: Collection[DuelFlag], now: datetime
) -> None:
    """Within the caller's transaction: add the flags that are new or hold again, and lift those that no longer hold."""
    known = await queries.of_duels(session, competition)
    rows = [
        {
            "feedback_id": flag.battle_id,
            "rule": flag.rule.value,
            "submission_id": flag.submission_id,
            "rival_id": flag.rival_id,
            "competition": competition,
            "evidence": flag.evidence,
            "at": now,
        }
        for flag in flags
        if known.get(flag.key, True)
    ]
    if rows:
        await queries.note_duels(session, rows)
    holding = {flag.key for flag in flags}
    ended: defaultdict[str, list[str]] = defaultdict(list)
    for key, is_lifted in known.items():
        if not is_lifted and key not in holding:
            ended[key[1]].append(key[0])
    for rule, battles in ended.items():
        await queries.lift(session, rule, battles, now)
