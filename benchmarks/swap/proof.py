"""The proof: random swaps between four models of two shapes while people chat, with kill -9 in the middle of some.

    users     each shape has some; they talk to one model of it at a time, each message again until it is answered
    switcher  lets the users of one shape turn to its other model, so that the server of the first is swapped
    killer    reads in the worker's log that a swap begins, and kills the model server, the worker or a gateway before it ends

Each model's replies name it, so a reply from another one is seen. What must hold: no such reply, every message answered,
and at the end the log-probabilities of the server that each model had before the first swap.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.swap.figures import percentile, talk
from benchmarks.swap.stage import NamedModel, Served, SwapStage, make_models, staged
from guanaco.bots import BOTS
from guanaco_server.deployments.model_servers.model_server import GeneratedToken, Generation
from guanaco_server.deployments.model_servers.vllm import VllmServer
from tests.fixtures.swapping import GREEDY

USERS_OF_SHAPE = 2
PATIENCE_S = 300.0  # a message that nobody has answered by then is lost; a start on a busy machine takes minutes
RETRY_S = 0.3
TIMEOUT_S = 100.0
LOOK_S = 0.005
SWITCH_WITHIN_S = 30.0
MIDDLE_S = (
    0.15  # a swap takes 0.05 s on an idle machine, and a look of the reconciler before and after
)
BEGUN = re.compile(r"(\S+) takes over the server of (\S+)")
ENDED = re.compile(r"(\S+) has taken over a server of its shape")
VICTIMS = ("engine", "worker", "gateway")


@dataclass(frozen=True)
class ProofPlan:
    """``swaps`` at least, ``kills`` of them in the middle of one, within ``seconds``."""

    swaps: int
    kills: int
    seconds: float
    seed: int
    is_on_s3: bool = False


@dataclass
class Told:
    """The observations of the users and the killer."""

    swaps: int = 0
    begun: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    waits_s: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    other_numbers: list[str] = field(default_factory=list)

    def figures(self, plan: ProofPlan, took_s: float) -> dict[str, Any]:
        faults = [*self.wrong, *self.lost, *self.other_numbers]
        if self.swaps < plan.swaps or sum(self.kills.values()) < plan.kills:
            faults.append(f"only {self.swaps} swaps and {sum(self.kills.values())} kills in time")
        return {
            "seed": plan.seed,
            "store": "S3" if plan.is_on_s3 else "folder",
            "seconds": round(took_s, 1),
            "swaps": self.swaps,
            "killed_in_the_middle": dict(self.kills),
            "turns": self.turns,
            "turn_p50_s": round(percentile(self.waits_s or [0.0], 0.5), 3),
            "turn_p99_s": round(percentile(self.waits_s or [0.0], 0.99), 3),
            "repeated_after": dict(self.refused),
            "wrong_model": len(self.wrong),
            "lost": len(self.lost),
            "other_numbers": len(self.other_numbers),
            "faults": faults,
        }


def prove(folder: Path, python: Path, plan: ProofPlan) -> dict[str, Any]:
    models = make_models(folder)
    with staged(folder, python, is_on_s3=plan.is_on_s3) as stage:
        fresh = {}
        for model in models:
            stage.submit(model)
            fresh[model.repo] = asyncio.run(_numbers(_awake(stage, model)))
            talk(f"{model.submission_id} is published, and says {' '.join(model.says)}")
        proof = Proof(stage, plan)
        began = time.monotonic()
        asyncio.run(proof.run(fresh))
    figures = proof.told.figures(plan, time.monotonic() - began)
    _show(figures)
    return figures


class Proof:
    def __init__(self, stage: SwapStage, plan: ProofPlan) -> None:
        self.told = Told()
        self._stage = stage
        self._plan = plan
        self._chance = random.Random(plan.seed)
        self._current = [models[0] for models in self._by_shape()]
        self._is_over = False
        self._conversations: dict[tuple[int, str], str] = {}

    async def run(self, fresh: dict[str, list[GeneratedToken]]) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=TIMEOUT_S) as http:
            for number in range(USERS_OF_SHAPE * len(self._current)):
                for model in self._stage.models:
                    await self._open(http, number, model)
            await asyncio.to_thread(self._stage.close_entry)
            users = [
                asyncio.create_task(self._use(http, number, number % len(self._current)))
                for number in range(USERS_OF_SHAPE * len(self._current))
            ]
            killer = asyncio.create_task(self._watch_swaps())
            try:
                async with asyncio.timeout(self._plan.seconds):
                    await self._switch()
            except TimeoutError:
                talk("the time is over")
            self._is_over = True
            await asyncio.gather(*users)
            killer.cancel()
            await asyncio.gather(killer, return_exceptions=True)
            for model in self._stage.models:
                await self._compare(http, model, fresh[model.repo])

    def _by_shape(self) -> list[list[NamedModel]]:
        models = self._stage.models
        return [
            [model for model in models if model.shape == shape]
            for shape in sorted({model.shape for model in models})
        ]

    def _has_enough(self) -> bool:
        kills = sum(self.told.kills.values())
        return self.told.swaps >= self._plan.swaps and kills >= self._plan.kills

    async def _switch(self) -> None:
        """Turn the users of a shape to its other model, once the swap before has ended or takes too long."""
        while not self._has_enough():
            before = self.told.swaps
            shape = self._chance.randrange(len(self._current))
            others = [m for m in self._by_shape()[shape] if m is not self._current[shape]]
            self._current[shape] = self._chance.choice(others)
            until = time.monotonic() + SWITCH_WITHIN_S
            while self.told.swaps == before and time.monotonic() < until:  # noqa: ASYNC110 - the log tells
                await asyncio.sleep(LOOK_S)
            await asyncio.sleep(self._chance.uniform(0, 0.3))

    async def _use(self, http: httpx.AsyncClient, number: int, shape: int) -> None:
        chance = random.Random(f"{self._plan.seed} user {number}")
        while not self._is_over:
            await self._say(http, number, self._current[shape])
            await asyncio.sleep(chance.uniform(0, 0.1))

    async def _open(self, http: httpx.AsyncClient, number: int, model: NamedModel) -> None:
        body = {
            "user_id": f"user-{number}",
            "bot": next(iter(BOTS.values())).model_dump(mode="json"),
            "consent": True,
            "model": model.submission_id,
        }
        opened = await self._persist(http, "/conversations", body, model)
        assert opened is not None, self.told.lost
        self._conversations[number, model.repo] = opened["conversation_id"]

    async def _say(self, http: httpx.AsyncClient, number: int, model: NamedModel) -> None:
        place = f"/conversations/{self._conversations[number, model.repo]}/messages"
        began = time.monotonic()
        reply = await self._persist(http, place, {"content": f"Hello {uuid.uuid4()}"}, model)
        if reply is None:
            return
        self.told.turns += 1
        self.told.waits_s.append(time.monotonic() - began)
        if not model.has_said(reply["content"]):
            self.told.wrong.append(f"{model.submission_id} said {reply['content']!r}")

    async def _persist(
        self, http: httpx.AsyncClient, path: str, body: dict[str, Any], model: NamedModel
    ) -> dict[str, Any] | None:
        """Send a request again, with its key, until it is answered; None if it is lost."""
        key = str(self._stage.client.transport.address.key)
        headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": str(uuid.uuid4())}
        began = time.monotonic()
        while True:
            code = "connection"
            try:
                url = f"{self._stage.base_url}/api/v1{path}"
                answer = await http.post(url, json=body, headers=headers)
                if answer.is_success:
                    found: dict[str, Any] = answer.json()
                    return found
                code = str(answer.json().get("error"))
            except (httpx.TransportError, ValueError):
                pass
            self.told.refused[code] += 1
            if time.monotonic() - began > PATIENCE_S:
                self.told.lost.append(f"{model.submission_id} {path}: {code}")
                return None
            await asyncio.sleep(RETRY_S)

    async def _watch_swaps(self) -> None:
        async for line in _lines(self._stage.folder / f"{self._stage.worker.name}.log"):
            if ENDED.search(line):
                self.told.swaps += 1
                if self.told.swaps % 10 == 0:
                    talk(
                        f"{self.told.swaps} swaps, {dict(self.told.kills)}, {self.told.turns} turns"
                    )
            if begun := BEGUN.search(line):
                self.told.begun += 1
                await self._perhaps_kill(begun[2])

    async def _perhaps_kill(self, server_key: str) -> None:
        """Kill one of the three while this swap is under way, as often as is still missing."""
        kills = sum(self.told.kills.values())
        missing, left = self._plan.kills - kills, max(1, self._plan.swaps - self.told.swaps)
        if self._chance.random() >= missing / left:
            return
        log = self._stage.folder / f"{self._stage.worker.name}.log"
        size = log.stat().st_size
        await asyncio.sleep(self._chance.uniform(0, MIDDLE_S))
        if ENDED.search(log.read_bytes()[size:].decode(errors="replace")):
            return  # it was quicker
        victim = VICTIMS[kills % len(VICTIMS)]
        if await asyncio.to_thread(self._kill, victim, server_key):
            self.told.kills[victim] += 1

    def _kill(self, victim: str, server_key: str) -> bool:
        if victim == "engine":
            return self._stage.kill_engine(server_key)
        if victim == "gateway":
            return self._stage.kill_gateway(self._chance.randrange(8))
        self._stage.worker.kill()
        return True

    async def _compare(
        self, http: httpx.AsyncClient, model: NamedModel, fresh: list[GeneratedToken]
    ) -> None:
        """Have the model awake, and compare its numbers with those of its first process."""
        await self._say(http, 0, model)
        served = await asyncio.to_thread(_awake, self._stage, model)
        if await _numbers(served) != fresh:
            self.told.other_numbers.append(f"{model.submission_id} has other log-probabilities")


def _awake(stage: SwapStage, model: NamedModel) -> Served:
    until = time.monotonic() + 10
    while (served := stage.served(model)) is None:
        assert time.monotonic() < until, f"{model.submission_id} is not served"
        time.sleep(0.1)
    return served


async def _numbers(served: Served) -> list[GeneratedToken]:
    """The tokens of a greedy reply with their log-probabilities."""
    vllm = VllmServer()
    asked = Generation(served.model, "Hello, how are you?", GREEDY, with_tokens=True)
    try:
        generated = vllm.generate(served.endpoint, asked)
        return [token async for chunk in generated for token in chunk.tokens]
    finally:
        await vllm.close()


async def _lines(log: Path) -> AsyncIterator[str]:
    """The lines that are written from now on."""
    with log.open("rb") as file:
        file.seek(0, 2)
        rest = b""
        while True:
            rest += file.read()
            *whole, rest = rest.split(b"\n")
            for line in whole:
                yield line.decode(errors="replace")
            await asyncio.sleep(LOOK_S)


def _show(figures: dict[str, Any]) -> None:
    print("\nSwaps under chat load")
    for name, value in figures.items():
        print(f"  {name:24s} {value}")
