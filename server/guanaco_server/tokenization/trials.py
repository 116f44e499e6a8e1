"""Tries a new tokenizer on texts that are hard for tokenizers, and counts the work by that of a plain one.

    long runs       16,000 of one character: some of each kind, and all that an unusual pattern of the tokenizer names
    alternations    16,000 characters of two letters in turn, of random letters, of words
    all characters  every character that Unicode has assigned, once

The limit is MAX_WORK times what a plain byte-level tokenizer takes for the same text in the same process, so it is the same
on every machine. What is cheaper than LEAST_S is never too much. A text that takes somewhat more is tried again, for a
process that the machine held up for a moment takes long once.
"""

from __future__ import annotations

import random
import string
import sys
import time
import unicodedata
from collections.abc import Iterable, Iterator

from tokenizers import Tokenizer, models, pre_tokenizers

from guanaco_server.tokenization.declared import Refused

LENGTH = 16_000  # characters: as long as a message may be
MAX_WORK = 100  # a plain one takes 6 ms for a run of letters; Llama 3's kind 8, WordPiece 15
LEAST_S = 0.05
FAR_MORE = 4  # times what is allowed: not tried again
TRIES = 3
MAX_TOKENS = 64  # for each byte of a text
BLOCK = 4_096
RUNS = "aZ0 \n\t.-_'\u00e9\u65e5\u3042\u0627\U0001f999\u0301\u200d\ufdfa\u0130\x00"
MAX_NAMED = 100


def try_texts(tokenizer: Tokenizer, named: Iterable[str] = ()) -> None:
    """Try also runs of the ``named`` characters. Raise Refused for the first text that takes too much work, or makes too many tokens."""
    plain = Tokenizer(models.BPE(_alphabet(), []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for name, text in _texts("".join(sorted(named))[:MAX_NAMED]):
        share, tokens = _try_text(tokenizer, plain, text)
        for _ in range(TRIES - 1):
            if 1 < share < FAR_MORE:
                share, tokens = _try_text(tokenizer, plain, text)
        if share > 1:
            raise Refused(
                f"The tokenizer takes over {MAX_WORK} times as much work as a plain one for {name}."
            )
        if tokens > MAX_TOKENS * len(text.encode()) + MAX_TOKENS:
            raise Refused(f"The tokenizer makes {tokens:,} tokens of {name}.")


def _try_text(tokenizer: Tokenizer, plain: Tokenizer, text: str) -> tuple[float, int]:
    """Return the share of the allowed work that the text takes, and its number of tokens."""
    allowed_s = max(LEAST_S, MAX_WORK * _seconds(plain, text)[0])
    seconds, tokens = _seconds(tokenizer, text)
    return seconds / allowed_s, tokens


def _texts(named: str) -> Iterator[tuple[str, str]]:
    for char in dict.fromkeys(RUNS + named):
        yield f"{LENGTH:,} times {char!r}", char * LENGTH
    letters = random.Random(0)  # noqa: S311 - the same texts each time
    yield "two letters in turn", "ab" * (LENGTH // 2)
    yield "a word again and again", "lighthouse " * (LENGTH // 11)
    yield "a long word of random letters", "".join(letters.choices(string.ascii_letters, k=LENGTH))
    yield "random words", "".join(letters.choices(string.ascii_lowercase + "   ,.\n", k=LENGTH))
    assigned = [c for c in map(chr, range(sys.maxunicode)) if unicodedata.category(c)[0] != "C"]
    for begin in range(0, len(assigned), BLOCK):
        block = assigned[begin : begin + BLOCK]
        yield f"the characters from U+{ord(block[0]):04X} on", "".join(block)


def _seconds(tokenizer: Tokenizer, text: str) -> tuple[float, int]:
    began = time.process_time()
    tokens = len(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0])
    return time.process_time() - began, tokens


def _alphabet() -> dict[str, int]:
    return {char: number for number, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
