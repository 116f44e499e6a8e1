"""A tokenizer is refused for the work that it takes, not for what the machine does meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from tokenizers import Tokenizer

from guanaco_server.tokenization import trials
from guanaco_server.tokenization.declared import Refused

SLOW = "a" * trials.LENGTH


class TimedTokenizer:
    """Takes the seconds that a test says for one of the texts, and none for the others."""

    def __init__(self, seconds: Callable[[], float], monkeypatch: pytest.MonkeyPatch) -> None:
        self._seconds = seconds
        self._now = 0.0
        self.tries = 0
        monkeypatch.setattr(time, "process_time", lambda: self._now)

    def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> list[list[int]]:
        if texts == [SLOW]:
            self.tries += 1
            self._now += self._seconds()
        return [[1]]


def attempt(tokenizer: TimedTokenizer) -> None:
    as_tokenizer: Tokenizer = tokenizer  # type: ignore[assignment]
    trials.try_texts(as_tokenizer)


def test_a_tokenizer_that_was_held_up_once_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    took = iter([3 * trials.LEAST_S, 0.0])
    tokenizer = TimedTokenizer(lambda: next(took), monkeypatch)
    attempt(tokenizer)
    assert tokenizer.tries == 2


@pytest.mark.parametrize(
    ("share", "tries"), [(1.5, trials.TRIES), (trials.FAR_MORE, 1)], ids=["somewhat", "far"]
)
def test_a_tokenizer_that_takes_more_each_time_is_refused(
    monkeypatch: pytest.MonkeyPatch, share: float, tries: int
) -> None:
    tokenizer = TimedTokenizer(lambda: share * trials.LEAST_S, monkeypatch)
    with pytest.raises(Refused, match="times as much work as a plain one for 16,000 times 'a'"):
        attempt(tokenizer)
    assert tokenizer.tries == tries
