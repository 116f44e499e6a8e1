"""Admission under load: who waits, who is refused, and how fair that is. The figures of docs/benchmarks.md.

    make bench-admission ARGS='--places=8 --mean=1'

Two gateway processes, as `guanaco up --role api` starts them, over PostgreSQL; one submission with two replicas that answer
PLACES requests at once each (admission_model.py), which its stress check has measured. Three apps send messages, with
60, 30 and 10 % of the load, from 20 users each, of whom one sends a fifth of their app's. Arrivals are Poisson, whether or not
earlier ones are answered.

First the servers are kept full for a few seconds: what they answer then is the capacity. Then 0.5, 0.9 and 1.2 times as
much is sent, and bursts of ten times the half load for five seconds, first of all apps, then of the largest app alone. A
message that is answered waits from when it is sent to its first token, less what the servers take alone; what passes before, the
opening of its conversation and this program's own lag, is shown apart, as is the wait in the queue that the gateways' own histogram
tells (the upper bound of a bucket). The waits of those who are refused are no part of it. Jain's index of x = answered / entitled is 1
where all get the same part of what is theirs: (Σx)² / (n Σx²); entitled is the max-min fair part of what was answered.

Prints a table, then one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks import gateway_stage as stage_of
from benchmarks.gateway_stage import SUBMISSION, Stage
from guanaco.accounts import KeyRequest, Role
from guanaco_server.accounts.room import build_accounts
from guanaco_server.chat.gateway.places.place_shares import fair_parts
from guanaco_server.database.database import Database
from guanaco_server.deployments.queries import note
from guanaco_server.runtime.clock import SystemClock
from tests.fixtures.postgres import running_server

REPLICAS, GATEWAYS = 2, 2
APPS = {"large": 0.6, "middle": 0.3, "small": 0.1}
USERS = 20
GREEDY_SHARE = 0.2  # of an app's messages, by its first user
TURN_WAIT_S = 3
BODY = json.dumps({"content": "Tell me about the lamp.", "stream": True}).encode()
ANSWER_WITHIN_S = 60.0
WAIT_BUCKET = re.compile(r'^guanaco_turn_wait_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.M)
ANY_CORE = "0-1"


@dataclass(frozen=True)
class Sent:
    """One message: ``status`` is 200 for a whole reply. ``lag_s`` passed until it was sent, and ``first_token_s`` after that."""

    app: str
    user: int
    status: int
    lag_s: float = 0.0
    first_token_s: float = 0.0


@dataclass
class Gateways:
    """The apps' keys, and the conversations of each user that have no turn under way."""

    ports: Sequence[int]
    keys: Mapping[str, str]
    metrics_ports: Sequence[int] = ()
    free: defaultdict[tuple[str, int], list[str]] = field(default_factory=lambda: defaultdict(list))
    refused_openings: int = 0
    openings: int = 0

    async def send(self, app: str, user: int, due: float) -> Sent:
        """Send a message in a conversation that is free, or in a new one."""
        port = random.choice(self.ports)
        conversation = await self._conversation(port, app, user)
        if conversation is None:
            return Sent(app, user, 0)
        path = f"/api/v1/conversations/{conversation}/messages"
        sent_at = time.monotonic()
        status, first_token_at = await self._ask(port, app, path, BODY)
        if status != 409:
            self.free[app, user].append(conversation)
        return Sent(app, user, status, sent_at - due, first_token_at - sent_at)

    async def waits_by_bucket(self) -> Mapping[float, float]:
        """Count the turns that waited at most so long for a place, over all gateways."""
        counted: defaultdict[float, float] = defaultdict(float)
        async with httpx.AsyncClient(trust_env=False) as http:
            for port in self.metrics_ports:
                text = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
                for bound, count in WAIT_BUCKET.findall(text):
                    counted[float(bound)] += float(count)
        return counted

    async def _conversation(self, port: int, app: str, user: int) -> str | None:
        if self.free[app, user]:
            return self.free[app, user].pop()
        body = {
            "user_id": f"user-{user}",
            "bot": {"name": "Nia", "memory": "A lighthouse keeper."},
            "consent": True,
        }
        self.openings += 1
        answer: list[bytes] = []
        status, _ = await self._ask(
            port, app, "/api/v1/conversations", json.dumps(body).encode(), answer.append
        )
        if status != 201:
            self.refused_openings += 1
            return None
        text = b"".join(answer).decode()
        opened: str = json.loads(text[text.index("{") : text.rindex("}") + 1])["conversation_id"]
        return opened

    async def _ask(
        self,
        port: int,
        app: str,
        path: str,
        body: bytes,
        take: Callable[[bytes], None] = lambda _: None,
    ) -> tuple[int, float]:
        """The status, and when the answer's body began. A stream that ends without `done` counts as refused."""
        head = (
            f"POST {path} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {self.keys[app]}\r\n"
        )
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                try:
                    writer.write(head.encode() + body)
                    status = int((await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1])
                    first = await reader.read(4_096)
                    began = time.monotonic()
                    take(first)
                    last = first
                    while piece := await reader.read(65_536):
                        take(piece)
                        last = (last + piece)[-4_096:]
                finally:
                    writer.close()
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            return 599, time.monotonic()
        if status == 200 and b"event: done" not in last:
            return 503, began
        return status, began


Shares = Mapping[str, float]


async def poisson(
    gateways: Gateways, rate: float, seconds: float, shares: Shares = APPS, seed: int = 1
) -> list[asyncio.Task[Sent]]:
    """Send this number of messages a second; they are on their way when this returns."""
    chance, loop_began = random.Random(seed), time.monotonic()
    sent: list[asyncio.Task[Sent]] = []
    due = loop_began + chance.expovariate(rate)
    while due < loop_began + seconds:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        app = chance.choices(list(shares), list(shares.values()))[0]
        user = 0 if chance.random() < GREEDY_SHARE else chance.randrange(1, USERS)
        sent.append(asyncio.create_task(gateways.send(app, user, due)))
        due += chance.expovariate(rate)
    return sent


async def capacity_of(gateways: Gateways, places: int, seconds: float) -> tuple[float, float]:
    """Keep the servers full: messages answered a second, and the median time to the first token of one alone."""
    alone = [await gateways.send("small", 1, time.monotonic()) for _ in range(8)]
    ended: list[float] = []
    until = time.monotonic() + seconds

    async def talk(user: int) -> None:
        while time.monotonic() < until:
            await gateways.send("large", user, time.monotonic())
            ended.append(time.monotonic())

    await asyncio.gather(*(talk(user) for user in range(3 * places // 2)))
    begin = until - seconds * 0.75  # without the first, for which nobody waited
    whole = [at for at in ended if begin <= at < until]
    first_token_s = sorted(each.first_token_s for each in alone)[len(alone) // 2]
    return len(whole) / (until - begin), first_token_s


def jain(values: Sequence[float]) -> float:
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


def fairness(sent: Sequence[Sent]) -> tuple[float, float]:
    """Over apps, and the lowest over the users of an app."""
    asked, answered = Counter(one.app for one in sent), Counter[str]()
    answered.update(one.app for one in sent if one.status == 200)
    fair = fair_parts(asked, answered.total())
    by_app = jain([answered[app] / fair[app] for app in asked])
    by_user = []
    for app in asked:
        of_users = Counter(one.user for one in sent if one.app == app)
        got = Counter(one.user for one in sent if one.app == app and one.status == 200)
        parts = fair_parts(of_users, got.total())
        by_user.append(jain([got[user] / parts[user] for user in of_users if parts[user]]))
    return by_app, min(by_user)


def percentile(values: Sequence[float], percent: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(percent / 100 * len(ranked)))] if ranked else 0.0


def queue_p99(before: Mapping[float, float], after: Mapping[float, float]) -> float:
    """The upper bound of the bucket that holds the 99th percentile of what the gateways counted meanwhile."""
    counted = {bound: after[bound] - before.get(bound, 0.0) for bound in sorted(after)}
    most = max(counted.values(), default=0.0)
    return next((bound for bound, count in counted.items() if count >= 0.99 * most), 0.0)


def report(
    name: str, sent: Sequence[Sent], alone_s: float, in_queue_s: float = 0.0
) -> dict[str, Any]:
    waits = [max(0.0, one.first_token_s - alone_s) for one in sent if one.status == 200]
    by_app, by_user = fairness(sent)
    refused = Counter(one.app for one in sent if one.status == 503)
    asked = Counter(one.app for one in sent)
    return {
        "load": name,
        "sent": len(sent),
        "answered": len(waits),
        "refused_share": refused.total() / len(sent),
        "refused_share_by_app": {app: refused[app] / asked[app] for app in asked},
        "other_failures": sum(one.status not in (200, 503) for one in sent),
        "wait_p50_s": percentile(waits, 50),
        "wait_p99_s": percentile(waits, 99),
        "in_queue_p99_at_most_s": in_queue_s,
        "before_sent_p99_s": percentile([one.lag_s for one in sent], 99),
        "refused_after_p99_s": percentile(
            [one.first_token_s for one in sent if one.status == 503], 99
        ),
        "jain_apps": by_app,
        "jain_users": by_user,
    }


async def measure(gateways: Gateways, places: int, seconds: float) -> dict[str, Any]:
    capacity, alone_s = await capacity_of(gateways, places, 8)
    print(f"The servers answer {capacity:.1f} messages a second; a first token alone takes {alone_s:.3f} s.\n")  # fmt: skip
    rows: list[dict[str, Any]] = []

    async def phase(name: str, *parts: tuple[float, float, Shares]) -> None:
        sent: list[asyncio.Task[Sent]] = []
        before = await gateways.waits_by_bucket()
        for rate, for_s, shares in parts:
            sent += await poisson(gateways, rate, for_s, shares, seed=len(rows) + 1)
        ended = [await one for one in sent]
        in_queue_s = queue_p99(before, await gateways.waits_by_bucket())
        rows.append(report(name, ended, alone_s, in_queue_s))
        print_row(rows[-1])

    print(f"{'load':<24}{'sent':>6}{'refused':>9}{'p50 wait':>10}{'p99 wait':>10}{'in queue':>10}{'unsent':>8}{'Jain apps':>11}{'users':>8}")  # fmt: skip
    half = 0.5 * capacity
    await phase("0.5 times capacity", (half, seconds, APPS))
    await phase("0.9 times capacity", (0.9 * capacity, seconds, APPS))
    await phase("1.2 times capacity", (1.2 * capacity, 1.5 * seconds, APPS))
    calm = (half, 5.0, APPS)
    await phase("burst of all apps", calm, (10 * half, 5.0, APPS), calm)
    await phase("burst of one app", calm, (10 * half, 5.0, {"large": 1.0, "small": 0.01}), calm)
    return {"capacity_a_second": capacity, "first_token_alone_s": alone_s, "loads": rows}


def print_row(row: Mapping[str, Any]) -> None:
    print(
        f"{row['load']:<24}{row['sent']:>6}{row['refused_share']:>8.1%} {row['wait_p50_s']:>8.2f} s"
        f"{row['wait_p99_s']:>8.2f} s{row['in_queue_p99_at_most_s']:>8.2f} s{row['before_sent_p99_s']:>6.2f} s{row['jain_apps']:>11.3f}{row['jain_users']:>8.3f}",
        flush=True,
    )


async def prepare(stage: Stage, ports: Sequence[int], places: int) -> dict[str, str]:
    """Two replicas, measured; the keys of the apps."""
    database = Database(stage.database_url.replace("postgresql://", "postgresql+psycopg://"))
    accounts = build_accounts(database, SystemClock()).accounts
    keys = {}
    for app in APPS:
        keys[app] = (await accounts.create_key(KeyRequest(role=Role.BACKEND, name=app))).key
    endpoints = [f"http://127.0.0.1:{port}" for port in ports]
    async with database.write() as session:
        await note(
            session, SUBMISSION, endpoints=endpoints, capacity=places, applied_replicas=REPLICAS
        )
    await database.close()
    return keys


@contextlib.contextmanager
def model_servers(folder: Path, places: int, mean_s: float) -> Iterator[list[int]]:
    program = Path(__file__).with_name("admission_model.py")
    with ExitStack() as stack:
        ports = []
        for _ in range(REPLICAS):
            port, log = stage_of.free_port(), folder / "model.log"
            command: list[str | Path] = [sys.executable, program, str(port), str(places), str(mean_s)]  # fmt: skip
            process = stack.enter_context(stage_of.running(command, ANY_CORE, log))
            stage_of.wait_for(f"http://127.0.0.1:{port}/health", process, log)
            ports.append(port)
        yield ports


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--places", type=int, default=8, help="of each of the two replicas")
    parser.add_argument("--mean", type=float, default=1.0, help="seconds that a reply takes")
    parser.add_argument("--seconds", type=float, default=25, help="of each load")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="guanaco-bench-")))
        postgres = stack.enter_context(running_server())
        ports = stack.enter_context(model_servers(folder, options.places, options.mean))
        stage = stage_of.prepare(folder, postgres, ports[0], {})
        keys = asyncio.run(prepare(stage, ports, options.places))
        metrics_ports = [stage_of.free_port() for _ in range(GATEWAYS)]
        gateways = [
            stack.enter_context(
                stage_of.gateway(
                    stage,
                    ANY_CORE,
                    turn_wait_s=TURN_WAIT_S,
                    max_connections_per_address=4_000,
                    metrics_port=metrics_port,
                )
            )
            for metrics_port in metrics_ports
        ]
        client = Gateways([port for port, _ in gateways], keys, metrics_ports)
        found = asyncio.run(measure(client, REPLICAS * options.places, options.seconds))
        most = [_most_at_once(port) for port in ports]
    print(f"\nOpenings: {client.openings}, refused {client.refused_openings}. Most requests at a replica at once: {most}, of {options.places}.")  # fmt: skip
    found |= {
        "openings": client.openings,
        "refused_openings": client.refused_openings,
        "most_at_a_replica": most,
        "places_a_replica": options.places,
        "turn_wait_s": TURN_WAIT_S,
    }
    print(json.dumps(found))


def _most_at_once(port: int) -> int:
    most: int = httpx.get(f"http://127.0.0.1:{port}/stats", trust_env=False).json()["most"]
    return most


if __name__ == "__main__":
    main()
