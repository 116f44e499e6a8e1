"""Attacks a running platform with files and traffic while people chat with it, and reports what gave way.

    make bench-hostile ARGS='--seed=1 --seconds=780'

Hostile repos, fuzzed API requests over all roles, and hostile connections, one after another, each while the same chats
go on that were measured alone before, once they were warm. Every repo is checked as before a submission; those that are
accepted are submitted, deployed on scripted model servers and chatted with. Prints two tables, then one line of JSON. The exit
status is 1 when code of a repo ran, a repo that must be refused was deployed, a request was answered with a 5xx, or a whole run
(without --only, --repos and the like) made less of an attack than LEAST; ``missed`` names these and what else misses its aim.

An attack that has not made its LEAST when its time is over goes on for LONGER of that time; the whole run ends all the same.

Attackers run at a lower priority, as if they had machines of their own; people's chats and the platform do not.

The platform is one process with SQLite, or with --layout=apart two roles over PostgreSQL.

schemathesis makes the requests, in a temporary environment: --fuzzer=PYTHON names one that has it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import httpx

from benchmarks.hostile.platforms import LAYOUTS, Attacked, started
from benchmarks.hostile.resources import ProcessorTime, most_memory, stolen_s
from benchmarks.hostile.traffic import (
    COMPETITION,
    Answers,
    FuzzedRequest,
    attack_connections,
    replay,
)
from guanaco import Client
from guanaco.accounts import Role
from guanaco.chat import Bot
from guanaco.competitions import CompetitionRequest
from guanaco.errors import GuanacoError
from guanaco.submissions import Status
from guanaco_server.demo.tiny_repo import make_tiny_repo
from tests.fixtures.hostile_repos import GoodRepo, HostileRepo, hostile_repos, write_repo
from tests.fixtures.hostile_texts import BOOKS, SAID
from tests.fixtures.lying_hub import LyingHub

ROOT = Path(__file__).parents[2]
ENGINE_PYTHON = ROOT / ".venv-engine" / "bin" / "python"
SCHEMATHESIS = "schemathesis==4.32.5"
ROLES = ("anonymous", "developer", "backend", "admin")
WHOLE_S = 780.0
WARM_UP_S = 15.0  # the first chats of a platform are slow, whatever else it does
ALONE_S = 120.0  # some 3,000 chats, so that the p99 is of thirty
STEPS_SHOWN = 8
MAKING_S = 120  # the longest that schemathesis makes requests
KEEP_CONNECTIONS_S = 40.0  # at most
SHARE_OF_CONNECTIONS = 0.2
SHORTEST_S = 10.0  # of a phase, so that there are chats to measure
LEAST = {"hostile_repos": 300, "requests": 10_000, "connections": 200}
ZERO = ("executed", "escaped", "server_errors")
AIMS = {"stall_ms": 100.0, "own_stall_ms": 100.0, "p99_ratio": 2.0}  # less than
LONGER = 0.3
SHARE_OF_REQUESTS = 0.5  # of the time that the connections leave
SHARE_OF_CHECKS = 0.65  # of the time that the requests leave
CHECKERS = 4  # a developer has one check at a time, and the platform one for two processors
SUBMITTERS = 3
ATTACKERS_LOWER_BY = 10
LAST_S = 30.0  # for what is on its way when the time is over
MIB = 2**20
CORPUS = ROOT / "tests" / "fuzz" / "corpus" / "http" / "requests.jsonl"
SHOWN = {
    "executed": "executed",
    "escaped": "escaped",
    "server_errors": "5xx",
    "stall_ms": "longest stall of the event loop, ms",
    "own_stall_ms": "the same without what waited for a processor, ms",
    "p99_ratio": "worst p99 of the chats to theirs alone",
}
STEP = re.compile(r'^guanaco_http_longest_step_seconds\{route="(.*)"\} (\S+)$', re.MULTILINE)
NO_LOOK = {"s": 0.0, "loop_queued": 0.0, "watch_queued": 0.0}
ENDED = {Status.FAILED, Status.CANCELLED, Status.DEPLOYED, Status.TORN_DOWN, Status.INACTIVE}
ADVERSARIAL = (
    "a" * 4_000,
    "\uff41" * 2_000,
    "\u0303" * 2_000,
    "a b " * 1_000,
    "\u202e\x00" * 500,
    "9" * 4_000,
)


@dataclass
class Findings:
    """Holds what the attacks brought to light, by name."""

    executed: list[str] = field(default_factory=list)
    escaped: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="guanaco-hostile-") as folder:
        figures = _attack(Path(folder), arguments)
    print(json.dumps(figures))
    sys.exit(any(name in figures["missed"] for name in (*ZERO, *LEAST)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile", description=__doc__)
    parser.add_argument("--seed", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=WHOLE_S, help="for all attacks together")
    parser.add_argument("--requests", type=int, default=LEAST["requests"])
    parser.add_argument("--connections", type=int, default=LEAST["connections"])
    parser.add_argument("--repos", type=int, default=10_000, help="the first so many of them")
    parser.add_argument("--only", action="append", choices=("requests", "connections", "repos"))
    parser.add_argument("--layout", choices=LAYOUTS, default=LAYOUTS[0], help="of the platform")
    parser.add_argument("--fuzzer", help="an interpreter that has schemathesis")
    parser.add_argument(
        "--found", type=Path, help="write the requests that got a 5xx into this file"
    )
    return parser.parse_args()


def _attack(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    make_tiny_repo(folder / "hub" / "acme" / "good")
    good = GoodRepo(folder / "hub" / "acme" / "good")
    canaries = folder / "canaries"
    canaries.mkdir()
    repos = hostile_repos(good, arguments.seed, canaries)
    random.Random(arguments.seed).shuffle(repos)  # of every kind some, however little time there is
    repos = repos[: arguments.repos]
    for repo in repos:
        write_repo(good, repo, folder / "hub" / "evil" / repo.name)
    lies = {f"evil/{repo.name}": repo.lie for repo in repos if repo.lie}
    lying = LyingHub(folder / "hub", lies, inside="http://127.0.0.1:9/")
    with _attackers(1) as pool, contextlib.ExitStack() as ends:
        hub = pool.submit(ends.enter_context, lying).result()
        platform = started(arguments.layout, folder, hub.url, ENGINE_PYTHON, SUBMITTERS)
        arena = Arena(ends.enter_context(platform), arguments, canaries)
        arena.begin()
        return arena.run(repos)


def _attackers(count: int) -> ThreadPoolExecutor:
    """Threads that leave the processors to what is measured, with all that they start: attackers have machines of their own."""
    return ThreadPoolExecutor(count, initializer=_lower_priority)


def _lower_priority() -> None:
    thread = threading.get_native_id()
    nice = os.getpriority(os.PRIO_PROCESS, thread) + ATTACKERS_LOWER_BY
    os.setpriority(os.PRIO_PROCESS, thread, nice)


class Arena:
    """A platform with one good submission, people who chat with it, and a watch on its loop and its memory."""

    def __init__(self, up: Attacked, arguments: argparse.Namespace, canaries: Path) -> None:
        self._up = up
        self._arguments = arguments
        self._canaries = canaries
        self._findings = Findings()
        self._answers = Answers()
        self._keys: dict[str, str] = {"anonymous": ""}
        self._phases: dict[str, dict[str, float]] = {}
        self._processors: dict[str, dict[str, float]] = {}
        self._checked: list[str] = []
        self._different = 0

    def begin(self) -> None:
        admin = self._up.client()
        for role in (Role.DEVELOPER, Role.BACKEND, Role.ADMIN):
            self._keys[role.value] = admin.create_key(f"fuzz-{role.value}", role).key
        own = CompetitionRequest(name="Innocents", starts_at=datetime.now(UTC) - timedelta(days=1))
        admin.put_competition(COMPETITION, own)
        good = self._up.client(Role.DEVELOPER, "innocent")
        made = good.submit("acme/good")
        assert _wait(good, made.id, 120) is Status.DEPLOYED, self._up.log

    def run(self, repos: Sequence[HostileRepo]) -> dict[str, Any]:
        chosen = self._arguments.only or ("requests", "connections", "repos")
        requests = self._make_requests() if "requests" in chosen else []
        counts = {"hostile_repos": 0, "accepted": 0, "deployed": 0, "requests": 0, "connections": 0}
        with self._phase("warm-up"):
            time.sleep(WARM_UP_S)
        del self._phases["warm-up"]
        with self._phase("alone"):
            time.sleep(ALONE_S)
        begun = time.monotonic()
        if "connections" in chosen:
            with self._phase("connections"):
                counts["connections"] = self._connect()
        if "requests" in chosen:
            with self._phase("requests"):
                share = SHARE_OF_REQUESTS if "repos" in chosen else 1 / (1 + LONGER)
                left = self._arguments.seconds - (time.monotonic() - begun)
                counts["requests"] = self._send(requests, share * left)
        if "repos" in chosen:
            with self._phase("repos"):
                left = self._arguments.seconds - (time.monotonic() - begun)
                counts |= self._try_repos(repos, left)
        self._findings.executed = sorted(path.name for path in self._canaries.iterdir())
        return self._report(counts) | {
            "longest_steps_ms": self._longest_steps(),
            "processors": self._processors,
        }

    def _longest_steps(self) -> dict[str, float]:
        """Return the routes whose steps have computed longest on the event loop, in ms."""
        try:
            headers = {"Authorization": f"Bearer {self._up.admin_key}"}
            answer = httpx.get(f"{self._up.base_url}/metrics", headers=headers, timeout=60)
            found = STEP.findall(answer.raise_for_status().text)
        except httpx.HTTPError:
            return {}
        steps = sorted(((float(seconds), route) for route, seconds in found), reverse=True)
        return {route: round(seconds * 1e3, 1) for seconds, route in steps[:STEPS_SHOWN]}

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        """Measure chats, loop, memory and processor time meanwhile."""
        platform, beside = self._up.pid, self._up.beside
        workers = [pid for name, pid in beside.items() if name == "worker"]
        backend = self._up.client(Role.BACKEND, f"app-{name}").transport.address.key or ""
        with (
            Traffic("chat", self._up.base_url, backend) as chat,
            Traffic("watch", self._up.base_url, str(platform)) as watch,
        ):
            before_s, processors = stolen_s(), ProcessorTime(platform, chat.pid, watch.pid, beside)
            begun = time.monotonic()
            with most_memory(platform, workers) as memory:
                yield
                time.sleep(max(0.0, SHORTEST_S - (time.monotonic() - begun)))
            self._processors[name] = processors.used()
            stolen = stolen_s() - before_s
            chats, looks = chat.end(), watch.end()
        waits = sorted(one["s"] for one in chats)
        bad = sum(one["status"] != 200 for one in chats)
        stall = max((one for one in looks if one["late"] < 0.1), key=_seconds, default=NO_LOOK)
        self._phases[name] = {
            "chats": len(chats),
            "failed": bad,
            "p50_ms": round(statistics.median(waits) * 1e3, 1) if waits else 0,
            "p99_ms": round(waits[int(len(waits) * 0.99)] * 1e3, 1) if waits else 0,
            "stall_ms": round(stall["s"] * 1e3, 1),
            "stall_queued_ms": round(_queued_s(stall) * 1e3, 1),
            "own_stall_ms": round(max(map(_own_s, looks), default=0.0) * 1e3, 1),
            "stolen_s": round(stolen, 2),
            "platform_mib": round(memory[0] / MIB),
            "all_mib": round(memory[1] / MIB),
        }
        _talk(f"{name}, processors: {json.dumps(self._processors[name])}")
        _talk(f"{name}: {json.dumps(self._phases[name])}")

    def _make_requests(self) -> list[FuzzedRequest]:
        """Have schemathesis make a quarter of the requests: each is sent in every role."""
        document = httpx.get(f"{self._up.base_url}/openapi.json", timeout=60).content
        count = self._arguments.requests // len(ROLES)
        with tempfile.TemporaryDirectory() as folder:
            python = self._arguments.fuzzer or _install(Path(folder))
            _talk(f"making {count:,} requests")
            command = [python, str(Path(__file__).with_name("requests_peer.py")), str(count)]
            limits = [str(self._arguments.seed), str(MAKING_S)]
            done = subprocess.run(
                [*command, *limits], input=document, capture_output=True, check=True
            )
        return self._filled(done.stdout.decode().splitlines(), count)

    def _filled(self, lines: list[str], count: int) -> list[FuzzedRequest]:
        """Take kept requests, and made ones again, in place of those for which schemathesis had no time."""
        kept = CORPUS.read_text().splitlines()
        filled = [
            *itertools.islice(itertools.chain(lines, itertools.cycle([*kept, *lines])), count)
        ]
        self._different = len(set(filled))
        _talk(f"made {len(lines):,} requests; {self._different:,} of those that are sent differ")
        return [FuzzedRequest.read(line) for line in filled]

    def _connect(self) -> int:
        count: int = self._arguments.connections
        url, seed = self._up.base_url, self._arguments.seed
        with _attackers(1) as pool:
            keep_s = min(KEEP_CONNECTIONS_S, SHARE_OF_CONNECTIONS * self._arguments.seconds)
            attack = attack_connections(url, count, keep_s, seed)
            ends = pool.submit(asyncio.run, attack).result()
        for end, number in sorted(ends.items()):
            _talk(f"  {number:4} {end}")
        return sum(number for end, number in ends.items() if not end.endswith(": refused"))

    def _send(self, requests: Sequence[FuzzedRequest], seconds: float) -> int:
        work = [(role, self._keys[role], one) for one in requests for role in ROLES]
        ids = self._ids()  # before the time counts: a busy machine deploys slowly
        deadline = time.monotonic() + seconds
        with _attackers(1) as pool:
            attack = replay(self._up.base_url, work, ids, deadline, deadline + LONGER * seconds)
            self._answers = pool.submit(asyncio.run, attack).result()
        _talk(f"  answers: {dict(sorted(self._answers.statuses.items()))}")
        slowest = sorted(self._answers.slowest.items(), key=lambda one: -one[1])[:5]
        _talk(f"  slowest: {', '.join(f'{name} {seconds:.2f} s' for name, seconds in slowest)}")
        if self._answers.unanswered:
            kinds = Counter(f"{kind} {one.operation}" for kind, one in self._answers.unanswered)
            _talk(f"  unanswered: {dict(kinds.most_common(8))}")
        for status, role, one, text in self._answers.failures[:20]:
            _talk(
                f"  {status} {role} {one.method} {one.path[:200]} {one.body[:300]!r}: {text[:200]}"
            )
        if self._arguments.found and self._answers.failures:
            lines = {one.line() for _, _, one, _ in self._answers.failures}
            self._arguments.found.write_text("".join(sorted(lines)))
        return self._answers.sent

    def _ids(self) -> dict[str, str]:
        """Things of the fuzzing roles themselves, for the requests to name."""
        ids = {"submission_id": "acme-good_v1", "competition_id": "open", "name": "fuzz", "model": "acme-good_v1", "key_id": "none"}  # fmt: skip
        with Client(self._up.base_url, self._keys["developer"]) as developer:
            decoy = developer.submit("acme/good", name="decoy")
            ids["submission_id"] = decoy.id
            _wait(developer, decoy.id, 60)
        with Client(self._up.base_url, self._keys["backend"]) as backend:
            opened = backend.open_conversation("fuzz", Bot(name="Luna"), consent=True)
            ids["conversation_id"] = opened.conversation_id
        return ids | {"feedback_id": "fb_none"}

    def _try_repos(self, repos: Sequence[HostileRepo], seconds: float) -> dict[str, int]:
        """Check all of them, and deploy those that are accepted, a few at a time."""
        begun = time.monotonic()
        developers = [self._up.client(Role.DEVELOPER, f"evil-{n}") for n in range(CHECKERS)]
        with _attackers(CHECKERS) as pool:

            def check(number: int) -> list[HostileRepo]:
                own = repos[number::CHECKERS]
                return [
                    each for each in own if self._check(developers[number], each, begun, seconds)
                ]

            accepted = [each for found in pool.map(check, range(CHECKERS)) for each in found]
            checked = len(self._checked)
            took_s = time.monotonic() - begun
            _talk(f"  checked {checked} repos in {took_s:.0f} s, accepted {len(accepted)}")

            def deploy(number: int) -> int:
                own, until = accepted[number::SUBMITTERS], begun + seconds
                return sum(self._deploy(developers[number], each, until) for each in own)

            deployed = sum(pool.map(deploy, range(SUBMITTERS)))
        return {"hostile_repos": checked, "accepted": len(accepted), "deployed": deployed}

    def _check(self, client: Client, repo: HostileRepo, begun: float, seconds: float) -> bool:
        """Tell whether a submission of it would be accepted."""
        share = SHARE_OF_CHECKS + (LONGER if len(self._checked) < LEAST["hostile_repos"] else 0.0)
        if time.monotonic() > begun + share * seconds:
            self._findings.unfinished.append(repo.name)
            return False
        self._checked.append(repo.name)
        try:
            found = client.check(f"evil/{repo.name}", formatter=repo.formatter)
        except GuanacoError as error:
            if error.code in ("internal_error", "unreachable"):
                self._findings.failures.append(f"{repo.name}: {error}")
            return False
        return found.failure is None

    def _deploy(self, client: Client, repo: HostileRepo, until: float) -> bool:
        """Submit it, chat with it if it is deployed, and take it down again. Return whether it was deployed."""
        status = None
        try:
            if time.monotonic() < until:
                made = client.submit(f"evil/{repo.name}", formatter=repo.formatter)
                status = _wait(client, made.id, until + LAST_S - time.monotonic())
        except GuanacoError as error:
            if error.code in ("internal_error", "unreachable"):
                self._findings.failures.append(f"{repo.name}: {error}")
            return False
        if status is None:
            self._findings.unfinished.append(repo.name)
        if status is not Status.DEPLOYED:
            return False
        if repo.must_be_refused:
            self._findings.escaped.append(repo.name)
        self._chat_with(made.id)
        with contextlib.suppress(GuanacoError):
            client.teardown(made.id)
        return True

    def _chat_with(self, submission_id: str) -> None:
        """Render prompts of adversarial texts with it, as its developer's previews do."""
        with httpx.Client(base_url=self._up.base_url, timeout=60, trust_env=False) as http:
            headers = {"Authorization": f"Bearer {self._up.admin_key}"}
            plain = [(Bot(name="Luna"), text) for text in ADVERSARIAL]
            lore = [(Bot(name="Luna", lorebook=book), text) for book in BOOKS.values() for text in SAID]  # fmt: skip
            for bot, text in (*plain, *lore):
                turns = [{"sender": "user", "content": text}]
                body = {"bot": bot.model_dump(mode="json"), "turns": turns}
                path = f"/api/v1/submissions/{submission_id}/preview"
                with contextlib.suppress(httpx.HTTPError):
                    answer = http.post(path, json=body, headers=headers)
                    if answer.status_code >= 500 and "retry-after" not in answer.headers:
                        self._findings.failures.append(f"{submission_id}: {answer.text[:200]}")

    def _report(self, counts: dict[str, int]) -> dict[str, Any]:
        print(
            "| phase | chats | failed | p50 | p99 | longest stall | of it waiting for a processor | longest without such waiting "
            "| platform | with its children |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for name, one in self._phases.items():
            print(
                f"| {name} | {one['chats']:,} | {one['failed']} | {one['p50_ms']} ms | {one['p99_ms']} ms "
                f"| {one['stall_ms']} ms | {one['stall_queued_ms']} ms | {one['own_stall_ms']} ms | {one['platform_mib']} MiB | {one['all_mib']} MiB |"
            )
        found = self._findings
        for title, names in vars(found).items():
            if names:
                print(f"{title}: {', '.join(names[:40])}")
        figures = self._figures(counts)
        missed = self._missed(figures)
        print("\n| | found | aim |\n| --- | --- | --- |")
        for name, least in LEAST.items():
            print(f"| {name} | {figures[name]:,} | {least:,} at least |")
        for name in ZERO:
            print(f"| {SHOWN[name]} | {figures[name]} | 0 |")
        for name, most in AIMS.items():
            print(f"| {SHOWN[name]} | {figures[name]} | under {most:g} |")
        print(
            f"| memory of the platform, with its children, MiB | {figures['platform_mib']}, {figures['all_mib']} | |"
        )
        print(f"missed: {', '.join(missed) or 'nothing'}")
        return figures | {"missed": missed}

    def _missed(self, figures: dict[str, Any]) -> list[str]:
        """Name what misses its aim. A run of a part of the attacks need not make LEAST."""
        given = self._arguments
        asked = {"hostile_repos": given.repos, "requests": given.requests, "connections": given.connections}  # fmt: skip
        is_whole = (
            not given.only
            and given.seconds >= WHOLE_S
            and all(asked[name] >= least for name, least in LEAST.items())
        )
        few = [name for name, least in LEAST.items() if is_whole and figures[name] < least]
        bad = [name for name in ZERO if figures[name]]
        return [*bad, *few, *(name for name, most in AIMS.items() if figures[name] >= most)]

    def _figures(self, counts: dict[str, Any]) -> dict[str, Any]:
        found = self._findings
        alone = self._phases["alone"]
        attacked = [one for name, one in self._phases.items() if name != "alone"] or [alone]
        return counts | {
            "executed": len(found.executed),
            "escaped": len(found.escaped),
            "unfinished": len(found.unfinished),
            "server_errors": len(self._answers.failures) + len(found.failures),
            "unanswered": len(self._answers.unanswered),
            "different_requests": self._different,
            "failed_chats": sum(int(one["failed"]) for one in attacked),
            "stall_ms": max(one["stall_ms"] for one in attacked),
            "stall_alone_ms": alone["stall_ms"],
            "own_stall_ms": max(one["own_stall_ms"] for one in attacked),
            "own_stall_alone_ms": alone["own_stall_ms"],
            "stolen_s": sum(one["stolen_s"] for one in self._phases.values()),
            "p99_ms": max(one["p99_ms"] for one in attacked),
            "p99_alone_ms": alone["p99_ms"],
            "p99_ratio": round(
                max(one["p99_ms"] for one in attacked) / max(alone["p99_ms"], 0.1), 2
            ),
            "platform_mib": max(one["platform_mib"] for one in self._phases.values()),
            "all_mib": max(one["all_mib"] for one in self._phases.values()),
        }


def _wait(client: Client, submission_id: str, seconds: float) -> Status | None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        status = client.submission(submission_id).status
        if status in ENDED:
            return status
        time.sleep(0.3)
    return None


def _seconds(look: dict[str, float]) -> float:
    return look["s"]


def _queued_s(look: dict[str, float]) -> float:
    """Return how much of an answer's time the platform's loop, or who asked, waited for a processor."""
    return look["loop_queued"] + look["watch_queued"]


def _own_s(look: dict[str, float]) -> float:
    return max(0.0, look["s"] - _queued_s(look))


class Traffic:
    """A process of traffic.py. It writes into a file: a pipe that nobody reads holds it up after 64 KiB, some 1,000 lines."""

    def __init__(self, command: str, *arguments: str) -> None:
        self._file = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by end()
        program = [sys.executable, "-m", "benchmarks.hostile.traffic", command, *arguments]
        self._process = subprocess.Popen(program, cwd=ROOT, stdout=self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self) -> list[dict[str, float]]:
        """Return its lines, of which the last must be from the end of the phase."""
        ended = time.monotonic()
        self._process.terminate()
        self._process.wait()
        with self._file as file:
            file.seek(0)
            lines = [json.loads(line) for line in file if line.endswith("}\n")]
        assert lines, "nothing was measured"
        assert ended - lines[-1]["at"] < LAST_S, "it was not measured to the end"
        return lines


def _install(folder: Path) -> str:
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", SCHEMATHESIS], check=True)
    return python


def _talk(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
