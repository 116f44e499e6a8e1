"""The apps and developers of a campaign: each repeats a request, with its Idempotency-Key, until it is acknowledged."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.faults.ledger import Ledger, LocalConversation, ToldSubmission, ToldTurn

RETRY_S = 0.3
TIMEOUT_S = 10.0
ANSWER_WITHIN_S = (
    150.0  # after the last fault; the longest lease and the longest start are a part of it
)
PASSING = frozenset({"request_in_progress", "conversation_busy", "redeploy_in_progress"})
TALK_TURNS = 4
IN_PROGRESS = frozenset({"queued", "checking", "serializing", "deploying", "stress_testing"})
LIVE = 1  # submissions of a developer, beside the one that stays


class GaveUpError(Exception):
    """The campaign has ended, or what was talked to is gone."""


class RefusedError(Exception):
    """An answer that repeating does not change."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(f"{status} {code}: {text[:300]}")
        self.status = status
        self.code = code


@dataclass
class Campaign:
    """The state that all clients share. ``is_over``: begin nothing new; ``has_ended``: not even a repetition."""

    base_url: str
    ledger: Ledger
    is_over: asyncio.Event
    has_ended: asyncio.Event


class HttpClient:
    def __init__(self, campaign: Campaign, key: str) -> None:
        self.campaign = campaign
        self._headers = {"Authorization": f"Bearer {key}"}

    async def persist(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        key: str = "",
        patience_s: float = ANSWER_WITHIN_S,
    ) -> dict[str, Any]:
        """Send a request until it is acknowledged.

        Raises:
            RefusedError: The answer says that repeating does not help.
            GaveUpError: The campaign ended first.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            try:
                return await self._once(method, path, body, key)
            except httpx.TransportError:
                pass
            except RefusedError as refused:
                if refused.status < 500 and refused.status != 429 and refused.code not in PASSING:
                    raise
                if loop.time() - began > patience_s and refused.code == "model_unavailable":
                    raise
            if self.campaign.has_ended.is_set():
                raise GaveUpError(f"{method} {path}")
            self.campaign.ledger.repeated += 1
            await asyncio.sleep(RETRY_S)

    async def _once(
        self, method: str, path: str, body: dict[str, Any] | None, key: str
    ) -> dict[str, Any]:
        """A client of its own, for a kept connection would stay with one of the gateways."""
        headers = self._headers | ({"Idempotency-Key": key} if key else {})
        async with httpx.AsyncClient(
            base_url=f"{self.campaign.base_url}/api/v1", timeout=TIMEOUT_S, trust_env=False
        ) as http:
            answer = await http.request(method, path, json=body, headers=headers)
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            return _ended_stream(answer.text)
        if answer.is_success:
            found: dict[str, Any] = answer.json() if answer.content else {}
            return found
        try:
            code = str(answer.json()["error"])
        except (ValueError, KeyError, TypeError):
            code = "no_error_body"
        raise RefusedError(answer.status_code, code, answer.text)


def _ended_stream(text: str) -> dict[str, Any]:
    """The reply of a stream's final event; one that was cut off, or ended with an error, is repeated."""
    events = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    kind, _, data = events[-1].partition("\ndata: ") if events else ("", "", "")
    if kind == "event: done":
        reply: dict[str, Any] = json.loads(data)
        return reply
    raise httpx.ReadError("the stream broke off")


class User:
    """Opens conversations one after another, talks, regenerates now and then, and rates each at its end."""

    def __init__(self, client: HttpClient, number: int, seed: int) -> None:
        self._client = client
        self._number = number
        self._chance = random.Random(f"{seed} user {number}")
        self._ledger = client.campaign.ledger

    async def talk(self) -> None:
        count = 0
        while not self._client.campaign.is_over.is_set():
            talk = LocalConversation(f"user-{self._number}-{count}")
            self._ledger.talks.append(talk)
            count += 1
            try:
                await self._converse(talk)
            except GaveUpError:
                return
            except RefusedError as refused:
                if refused.code not in ("model_unavailable", "no_model_available"):
                    self._ledger.refused.append(f"{talk.user_id}, {talk.open_kind}: {refused}")

    async def _converse(self, talk: LocalConversation) -> None:
        body = {"user_id": talk.user_id, "bot": {"name": "Luna"}, "consent": True}
        opened = await self._do(talk, "open", "/conversations", body)
        talk.conversation_id = opened["conversation_id"]
        for number in range(self._chance.randint(1, TALK_TURNS)):
            await self._take_turn(talk, f"{talk.user_id} says {number}")
            if self._client.campaign.is_over.is_set():
                return
        if self._chance.random() < 0.8:
            await self._rate(talk)

    async def _take_turn(self, talk: LocalConversation, content: str) -> None:
        is_stream = self._chance.random() < 0.5
        place = f"/conversations/{talk.conversation_id}"
        reply = await self._do(
            talk, "turn", f"{place}/messages", {"content": content, "stream": is_stream}, content
        )
        turn = ToldTurn(content, [reply["message_id"]])
        talk.turns.append(turn)
        if self._chance.random() < 0.2:
            again = await self._do(talk, "regenerate", f"{place}/regenerate", {"stream": is_stream})
            turn.reply_ids.append(again["message_id"])

    async def _rate(self, talk: LocalConversation) -> None:
        rating = (self._chance.random() < 0.6, f"said by {talk.user_id}")
        place = f"/conversations/{talk.conversation_id}/feedback"
        try:
            await self._do(talk, "rating", place, {"thumbs_up": rating[0], "text": rating[1]})
        except RefusedError as refused:
            if refused.code != "already_rated":
                raise
            self._ledger.forgotten.append(f"rating of {talk.user_id}")
        talk.rating = rating

    async def _do(
        self, talk: LocalConversation, kind: str, path: str, body: dict[str, Any], content: str = ""
    ) -> dict[str, Any]:
        talk.open, talk.open_kind = content or kind, kind
        answer = await self._client.persist(
            "POST", path, body, key=str(uuid.uuid4()), patience_s=90
        )
        talk.open = None
        return answer


class Developer:
    """Submits one repo after another, redeploys the one that stays, and tears down what is too much.

    A developer without ``anchor`` redeploys nothing: two who redeploy the same could not tell whose run is whose.
    """

    def __init__(self, client: HttpClient, repos: list[str], seed: str) -> None:
        self._client = client
        self._repos = repos
        self._chance = random.Random(f"{seed} developer")
        self._ledger = client.campaign.ledger
        self._live: list[ToldSubmission] = []

    async def submit(self, repo: str) -> ToldSubmission:
        told = ToldSubmission(str(uuid.uuid4()), repo)
        self._ledger.submissions.append(told)
        made = await self._client.persist(
            "POST", "/submissions", {"repo": repo}, key=told.idempotency_key
        )
        told.id = made["id"]
        return told

    async def settled(self, told: ToldSubmission) -> dict[str, Any]:
        """Wait until its run has ended; GaveUpError when the campaign ends before."""
        while True:
            found = await self._client.persist("GET", f"/submissions/{told.id}")
            rollout = found.get("rollout") or {}
            is_rolling = rollout.get("phase") in ("preparing", "shifting", "draining")
            if found["status"] not in IN_PROGRESS and not is_rolling:
                return found
            if self._client.campaign.has_ended.is_set():
                raise GaveUpError(str(told.id))
            await asyncio.sleep(0.5)

    async def work(self, anchor: ToldSubmission | None) -> None:
        try:
            for repo in self._repos:
                if self._client.campaign.is_over.is_set():
                    return
                await self._work_on(repo, anchor)
        except GaveUpError:
            return

    async def _work_on(self, repo: str, anchor: ToldSubmission | None) -> None:
        try:
            told = await self.submit(repo)
            if anchor is not None and self._chance.random() < 0.5:
                await self._redeploy(anchor)
            found = await self.settled(told)
            if found["status"] == "deployed":
                self._live.append(told)
            if len(self._live) > LIVE:
                gone = self._live.pop(0)
                await self._client.persist(
                    "POST", f"/submissions/{gone.id}/teardown", key=str(uuid.uuid4())
                )
        except RefusedError as refused:
            self._ledger.refused.append(f"developer, {repo}: {refused}")

    async def _redeploy(self, anchor: ToldSubmission) -> None:
        found = await self.settled(anchor)
        if found["status"] != "deployed":
            return
        anchor.has_open_redeploy = True
        await self._client.persist(
            "POST", f"/submissions/{anchor.id}/redeploy", key=str(uuid.uuid4())
        )
        anchor.runs += 1
        anchor.has_open_redeploy = False
