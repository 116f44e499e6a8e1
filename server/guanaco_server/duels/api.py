"""Battles and duels over HTTP. The route that makes a battle streams, so the gateway answers it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query

from guanaco.accounts import Role
from guanaco.duels import (
    Battle,
    BattleRecord,
    BattleRequest,
    BattleToken,
    DuelPage,
    DuelQuery,
    DuelVoteRequest,
    PairScore,
    RegenerationPair,
    RivalReplay,
)
from guanaco.errors import GuanacoError
from guanaco_server.accounts.auth import Auth
from guanaco_server.accounts.service import Account
from guanaco_server.chat.gateway.routes import TALKERS, Exchange, ReplyDescription, ReplyRoute
from guanaco_server.chat.gateway.streaming import Encoder
from guanaco_server.duels.battling import BattleService, SidePieces
from guanaco_server.duels.regenerating import RegenerationService
from guanaco_server.duels.replaying import RivalReplayService
from guanaco_server.duels.service import DuelService
from guanaco_server.http.errors import ErrorBody, answer
from guanaco_server.http.openapi import event_schema
from guanaco_server.http.routes import Routes
from guanaco_server.http.sse import encode_event

DESCRIPTION = ReplyDescription(
    "chat", Battle, event_schema({"token": BattleToken, "done": Battle, "error": ErrorBody})
)


def _pieces(pieces: SidePieces) -> bytes:
    return b"".join(
        encode_event("token", BattleToken(side=pieces.side, text=text)) for text in pieces.texts
    )


def _end(battle: Battle) -> bytes:
    return encode_event("done", battle)


def _error(error: GuanacoError) -> bytes:
    return encode_event("error", error.to_wire())


def _whole(battle: Battle) -> bytes:
    return battle.model_dump_json().encode()


ENCODER = Encoder(
    pieces=_pieces, end=_end, error=_error, whole=_whole, problem=answer, reply=Battle
)


def battle_route(battles: BattleService) -> ReplyRoute:
    """The route on which two submissions answer a message."""

    def exchange(request: BattleRequest) -> Exchange:
        async def events(account: Account, conversation_id: str) -> Any:
            return await battles.battle(account, conversation_id, request)

        return Exchange(events, ENCODER)

    return ReplyRoute(
        "/api/v1/conversations/{conversation_id}/battles",
        TALKERS,
        BattleRequest,
        "Send a message, get two replies to choose from",
        exchange,
        description=DESCRIPTION,
        has_other_methods=True,
    )


def router(
    duels: DuelService, rivals: RivalReplayService, regenerations: RegenerationService, auth: Auth
) -> Routes:
    routes = Routes(prefix="/api/v1", tags=["chat"])
    talker = auth.require(Role.BACKEND, Role.DEVELOPER)
    developer = auth.require(Role.DEVELOPER)
    admin = auth.require(Role.ADMIN)

    @routes.get("/conversations/{conversation_id}/battles")
    async def list_battles(conversation_id: str, account: Account = talker) -> list[BattleRecord]:
        """The battles of a conversation, oldest first."""
        return await duels.list_battles(account, conversation_id)

    @routes.put("/conversations/{conversation_id}/battles/{battle_id}/vote")
    async def vote_on_battle(
        conversation_id: str,
        battle_id: str,
        request: DuelVoteRequest,
        account: Account = talker,
    ) -> BattleRecord:
        """Say which reply is better. The vote can be changed for a day; the same vote again changes nothing."""
        return await duels.vote(account, conversation_id, battle_id, request)

    @routes.get("/conversations/{conversation_id}/battles/{battle_id}/rival")
    async def read_rival(conversation_id: str, battle_id: str, _: Account = admin) -> RivalReplay:
        """Return how the rival of a battle was chosen, with its exact chance, and whether the same choice gives it again."""
        return await rivals.of_battle(conversation_id, battle_id)

    @routes.get("/conversations/{conversation_id}/rivals")
    async def read_rivals(conversation_id: str, _: Account = admin) -> list[RivalReplay]:
        """Return the same of every battle and every compared regeneration of a conversation, oldest first."""
        return await rivals.of_conversation(conversation_id)

    @routes.get("/submissions/{submission_id}/duels")
    async def read_duels(
        submission_id: str, query: Annotated[DuelQuery, Query()], account: Account = developer
    ) -> DuelPage:
        """A submission's duels, newest first, with both replies. The other side is anonymous."""
        return await duels.page(account, submission_id, query)

    @routes.get("/competitions/{competition_id}/duels")
    async def read_pairs(competition_id: str, _: Account = admin) -> list[PairScore]:
        """The results of each pair of submissions that met in duels."""
        return await duels.pairs(competition_id)

    @routes.get("/competitions/{competition_id}/regenerations")
    async def read_regenerations(competition_id: str, _: Account = admin) -> list[RegenerationPair]:
        """How often new replies were kept that were drawn at random from two submissions, by pair."""
        return await regenerations.pairs(competition_id)

    return routes
