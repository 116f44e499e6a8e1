"""The choice of a replica for the conversations of one character. The replicas, their caches and the clock are played here."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import ExitStack

import pytest

from guanaco.chat import Bot
from guanaco_server.routing.prefixes import (
    HOMES,
    KEPT_S,
    LOAD_TOKENS,
    MOST_KEPT,
    SharedPrefix,
    shared_prefix,
)
from guanaco_server.routing.replicas import ReplicaChooser, rendezvous

REPLICAS = tuple(f"http://replica-{number}" for number in range(4))
MARLOWE = SharedPrefix("marlowe", 4 * LOAD_TOKENS)  # worth four requests under way
FIRST, SECOND, *_ = rendezvous(MARLOWE.key, REPLICAS)


class Engine:
    def __init__(self) -> None:
        self.now = 0.0
        self.chooser = ReplicaChooser(256, 15.0, lambda: self.now)

    def choose(self, conversation: str, endpoints: tuple[str, ...] = REPLICAS) -> str:
        chosen = self.chooser.choose(conversation, endpoints, prefix=MARLOWE)
        assert chosen is not None
        return chosen

    def begin(self, stack: ExitStack, conversation: str) -> str:
        """Choose a replica and keep a reply under way there."""
        endpoint = self.choose(conversation)
        ask = self.chooser.ask(endpoint, REPLICAS, key=conversation, prefix=MARLOWE)
        stack.enter_context(ask)
        return endpoint

    def reply(self, conversation: str, prompt: int = 600, cached: int = 0) -> str:
        endpoint = self.choose(conversation)
        with self.chooser.ask(endpoint, REPLICAS, key=conversation, prefix=MARLOWE) as ask:
            ask.note_tokens(prompt, cached, 40)
        return endpoint

    def compute(self, endpoint: str, tokens: int) -> None:
        """Have the replica answer something else, of that many tokens."""
        with self.chooser.ask(endpoint, REPLICAS) as ask:
            ask.note_tokens(tokens, 0, 0)


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_a_quiet_characters_conversations_share_one_replica(engine: Engine) -> None:
    assert {engine.reply(f"conv_{number}") for number in range(50)} == {FIRST}


def test_hot_character_takes_as_many_replicas_as_it_needs(engine: Engine) -> None:
    widths = {}
    for at_once in (3, 7, 40):
        with ExitStack() as stack:
            used = Counter(engine.begin(stack, f"{at_once}_{n}") for n in range(at_once))
        widths[at_once] = len(used)
        assert max(used.values()) <= 4 + 1 + at_once // 4
        engine.now += 2 * KEPT_S
    assert widths == {3: 1, 7: 2, 40: 4}


def test_a_character_that_cools_comes_back_to_one_replica(engine: Engine) -> None:
    with ExitStack() as stack:
        assert len({engine.begin(stack, f"hot_{n}") for n in range(40)}) == 4
    engine.now += KEPT_S + 1
    assert {engine.reply(f"late_{number}") for number in range(50)} == {FIRST}


def test_a_running_conversation_stays_while_its_replica_gets_busier(engine: Engine) -> None:
    assert engine.reply("running") == FIRST
    with ExitStack() as stack:
        for number in range(6):
            engine.begin(stack, f"other_{number}")
        assert engine.choose("running") == FIRST
        assert engine.choose("new") != FIRST


def test_a_running_conversation_leaves_an_overloaded_replica(engine: Engine) -> None:
    assert engine.reply("running") == FIRST
    with ExitStack() as stack:
        for _ in range(9):
            stack.enter_context(engine.chooser.ask(FIRST, REPLICAS))
        assert engine.choose("running") != FIRST


def test_a_lost_replicas_conversations_meet_at_the_next_one(engine: Engine) -> None:
    for number in range(10):
        engine.reply(f"conv_{number}")
    left = tuple(endpoint for endpoint in REPLICAS if endpoint != FIRST)
    assert {engine.choose(f"conv_{number}", left) for number in range(10)} == {SECOND}


def test_gateways_that_share_nothing_choose_the_same_replica(engine: Engine) -> None:
    other = Engine()
    for number in range(20):
        assert engine.reply(f"conv_{number}") == other.reply(f"conv_{number}")


def test_hot_characters_conversations_are_found_by_another_gateway(engine: Engine) -> None:
    other = Engine()
    with ExitStack() as stack:
        for number in range(40):
            engine.begin(stack, f"hot_{number}")
            other.begin(stack, f"hot_{number}")
        same = sum(engine.choose(f"new_{n}") == other.choose(f"new_{n}") for n in range(40))
    assert same >= 30


def test_a_replica_that_computed_its_cache_over_holds_nothing(engine: Engine) -> None:
    with ExitStack() as stack:
        for number in range(10):
            engine.begin(stack, f"hot_{number}")
    assert len({engine.choose(f"new_{number}") for number in range(20)}) > 1
    for endpoint in REPLICAS:
        engine.compute(endpoint, 200_000)
    assert {engine.choose(f"late_{number}") for number in range(20)} == {FIRST}


def test_replies_tell_how_large_a_replicas_cache_is(engine: Engine) -> None:
    replica = engine.chooser.of(FIRST)
    engine.reply("one")
    for number in range(8):
        engine.compute(FIRST, 10_000)
        engine.reply(f"missed_{number}")
    assert 10_000 <= replica.cache_tokens <= 12_000
    engine.compute(FIRST, 14_000)
    engine.reply("found", cached=512)
    assert replica.cache_tokens == 14_000


def test_the_tables_are_bounded(engine: Engine) -> None:
    for number in range(MOST_KEPT + 100):
        engine.chooser.ask(FIRST, REPLICAS, key=f"c{number}", prefix=SharedPrefix(f"p{number}", 99))
    known = engine.chooser._prefixes
    assert len(known._homes) == len(known._copies) == MOST_KEPT
    assert all(len(homes) <= HOMES for homes in known._homes.values())


def test_a_prefix_is_of_one_account() -> None:
    bot = Bot(name="Marlowe", memory="Marlowe steers the sky-ship Thistle. " * 20)
    alone, other = shared_prefix("acc_1", bot), shared_prefix("acc_2", bot)
    assert alone is not None
    assert other is not None
    assert alone.key != other.key
    assert shared_prefix("acc_1", Bot(name="Marlowe", memory="Short.")) is None


class Cache:
    """A replica's KV cache: whole prompts' blocks, the least recently used go first."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.held: dict[tuple[str, int], None] = {}

    def hit(self, prompt: list[tuple[str, int]]) -> int:
        """Compute a prompt; return how many of its first blocks were there."""
        found = 0
        while found < len(prompt) and prompt[found] in self.held:
            found += 1
        for block in prompt:
            self.held.pop(block, None)
            self.held[block] = None
        while len(self.held) > self.blocks:
            del self.held[next(iter(self.held))]
        return found


def computed(seed: int, *, by_character: bool) -> int:
    """Play 300 conversations of 3 turns with Zipf's characters over four caches; return the blocks that were computed."""
    engine, dice = Engine(), random.Random(seed)
    caches = {endpoint: Cache(384) for endpoint in REPLICAS}
    weights = [1 / (rank + 1) ** 1.1 for rank in range(40)]
    total = 0
    talks = [(f"conv_{n}", dice.choices(range(40), weights)[0]) for n in range(300)]
    turns = sorted((place + 12 * turn, turn, *talk) for place, talk in enumerate(talks) for turn in range(3))  # fmt: skip
    for _, turn, talk, character in turns:
        prompt = [(f"persona {character}", block) for block in range(20)]
        prompt += [(talk, block) for block in range(2 * turn + 1)]
        prefix = SharedPrefix(f"{character}", 640) if by_character else None
        endpoint = engine.chooser.choose(talk, REPLICAS, prefix=prefix)
        assert endpoint is not None
        found = caches[endpoint].hit(prompt)
        with engine.chooser.ask(endpoint, REPLICAS, key=talk, prefix=prefix) as ask:
            ask.note_tokens(32 * len(prompt), 32 * found, 16)
        total += len(prompt) - found
    return total


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_small_caches_compute_less_where_characters_keep_to_replicas(seed: int) -> None:
    assert computed(seed, by_character=True) < 0.7 * computed(seed, by_character=False)
