"""The tokenizer's own process: reads one tokenizer.json, and counts tokens with the `tokenizers` library.

    parent (process.py)                          this process
    {"do": "load"}, and pieces, an empty one last {"facts": {…}, "resident_bytes": n}
    {"do": "count", "texts": […], "wholes": […]} {"counts": […], "wholes": […]}
    {"do": "try"}                                {}
    {"do": "spell", "words": […]}                {"spelled": [null, "…", …]}
    {"do": "cut", "text": "…", "tokens": n}      {"chars": n}

Each message is JSON after its length. An answer may also be {"refused": "a sentence"}, of a tokenizer that
cannot be served, or {"fault": "…"}, of a text that it cannot read. Every request has its CPU time in
"cpu_s"; the process's own timer, which nothing that the library does can stop, then ends the process. So does a panic of
the library, whose state is not to be trusted afterwards.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from typing import IO, Any

from tokenizers import Tokenizer

from guanaco_server.confinement.confined import confine_pipes
from guanaco_server.confinement.frames import LENGTH, MAX_MESSAGE_BYTES, read_bytes, receive, send
from guanaco_server.tokenization.bounds import find_bound
from guanaco_server.tokenization.breaks import Breaks, find_breaks
from guanaco_server.tokenization.declared import (
    MEMORY_BYTES,
    Refused,
    count_entries,
    read_tokenizer,
    unusual_characters,
)
from guanaco_server.tokenization.facts import TokenizerFacts, facts_as_json
from guanaco_server.tokenization.trials import try_texts

NEIGHBOUR = "a"  # some tokenizers treat the beginning and end of a text specially
PROBES = ("a", "a b\na: b\n")

Json = dict[str, Any]


class LoadedTokenizer:
    """Answers the requests, all but the first."""

    def __init__(self, tokenizer: Tokenizer, named: frozenset[str]) -> None:
        """``named`` are the characters in its unusual patterns."""
        self._tokenizer = tokenizer
        self._named = named

    def count(self, asked: Json) -> Json:
        return {
            "counts": self._counts(asked["texts"], is_whole=False),
            "wholes": self._counts(asked["wholes"], is_whole=True),
        }

    def attempt(self, asked: Json) -> Json:
        """Try texts that are hard for a tokenizer. Raise Refused if one takes too much work."""
        try_texts(self._tokenizer, self._named)
        return {}

    def spell(self, asked: Json) -> Json:
        """Return, for each word, None if a sequence of tokens spells it, else what becomes of it."""
        unknown = _unknown_id(self._tokenizer)
        return {"spelled": [self._respelled(word, unknown) for word in asked["words"]]}

    def cut(self, asked: Json) -> Json:
        """Return how many characters the first tokens of a text cover; all of them if it has no more tokens."""
        ends = [end for _, end in self._tokenizer.encode(asked["text"]).offsets]
        room = asked["tokens"]
        return {"chars": len(asked["text"]) if len(ends) <= room else ends[room - 1]}

    def _counts(self, texts: list[str], *, is_whole: bool) -> list[int]:
        if not texts:
            return []
        whole = [text.encode("utf-8", "replace").decode() for text in texts]
        encoded = self._tokenizer.encode_batch_fast(whole, add_special_tokens=is_whole)
        return [len(each) for each in encoded]

    def _respelled(self, word: str, unknown: int | None) -> str | None:
        if any(
            self._is_spelled(unknown, word, text) for text in (word, NEIGHBOUR + word + NEIGHBOUR)
        ):
            return None
        ids = self._tokenizer.encode(word, add_special_tokens=False).ids
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))[:1_000]

    def _is_spelled(self, unknown: int | None, word: str, text: str) -> bool:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        is_known = unknown not in ids or self._tokenizer.token_to_id(word) == unknown
        return is_known and word in self._tokenizer.decode(ids, skip_special_tokens=False)


def load(data: bytes) -> tuple[LoadedTokenizer, TokenizerFacts]:
    """Read a stranger's tokenizer.json, for whole texts. Raise Refused if it cannot be one."""
    content = read_tokenizer(data)
    entries = count_entries(content)
    try:
        tokenizer = Tokenizer.from_str(data.decode())
    except Exception as error:  # noqa: BLE001 - as above
        raise Refused(f"tokenizer.json cannot be read: {_sentence(error)}.") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    special_tokens = tokenizer.num_special_tokens_to_add(False)
    adds_the_same = _adds_the_same_to_all(tokenizer, special_tokens)
    ends = tokenizer.encode("").tokens
    highest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    token = tokenizer.id_to_token(highest) if highest >= 0 else None
    facts = TokenizerFacts(
        entries=entries,
        highest=highest,
        highest_token=token and token[:40],
        special_tokens=special_tokens,
        begin=ends[0] if ends else "",
        breaks=find_breaks(content) if adds_the_same else Breaks(),
        bound=find_bound(content, special_tokens) if adds_the_same else None,
    )
    return LoadedTokenizer(tokenizer, unusual_characters(content)), facts


def _adds_the_same_to_all(tokenizer: Tokenizer, special_tokens: int) -> bool:
    """Tell whether every text gets the same number of special tokens; a post-processor might repeat the text."""
    return all(
        len(tokenizer.encode(text))
        == special_tokens + len(tokenizer.encode(text, add_special_tokens=False))
        for text in PROBES
    )


def _unknown_id(tokenizer: Tokenizer) -> int | None:
    model = tokenizer.model
    if word := getattr(model, "unk_token", None):
        found: int | None = tokenizer.token_to_id(word)
        return found
    if type(model).__name__ == "Unigram":  # keeps it to itself, but writes it down
        unknown = json.loads(tokenizer.to_str())["model"].get("unk_id")
        return unknown if type(unknown) is int else None
    return None


def _sentence(error: BaseException) -> str:
    return "".join(c if c.isprintable() else " " for c in str(error)[:200]).rstrip(".")


def _read_pieces(source: IO[bytes]) -> bytes:
    """Return what the pieces make up, each after its length. ValueError where they are too much, or end early."""
    data = bytearray()
    while length := LENGTH.unpack(read_bytes(source, LENGTH.size))[0]:
        if len(data) + length > MAX_MESSAGE_BYTES:
            raise ValueError("the other side sent too much")
        data += read_bytes(source, length)
    return bytes(data)


def main() -> None:
    """Answer requests until the parent has gone."""
    memory = os.open("/proc/self/statm", os.O_RDONLY)  # the confinement leaves no file to be opened
    confine_pipes(MEMORY_BYTES)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    loaded: LoadedTokenizer | None = None
    while True:
        try:
            asked = receive(source)
            data = _read_pieces(source) if asked["do"] == "load" else b""
        except ValueError:
            return
        signal.setitimer(signal.ITIMER_PROF, asked["cpu_s"])  # its signal ends this process
        try:
            if asked["do"] == "load":
                loaded, facts = load(data)
                answer: Json = {"facts": facts_as_json(facts)}
            else:
                assert loaded is not None, "the parent loads first"
                answer = getattr(loaded, REQUESTS[asked["do"]])(asked)
        except Refused as refusal:
            answer = {"refused": str(refusal)}
        except MemoryError:
            os._exit(1)
        except Exception as error:  # noqa: BLE001 - the library has no class of its own
            answer = {"fault": _sentence(error)}
        except BaseException as panic:  # noqa: BLE001 - of the library; it is no Exception
            if asked["do"] == "load":
                send(sink, {"refused": f"tokenizer.json cannot be read: {_sentence(panic)}."})
            os._exit(1)
        signal.setitimer(signal.ITIMER_PROF, 0)
        send(sink, {**answer, "resident_bytes": _resident_bytes(memory)})


REQUESTS = {"count": "count", "try": "attempt", "spell": "spell", "cut": "cut"}


def _resident_bytes(statm: int) -> int:
    os.lseek(statm, 0, os.SEEK_SET)
    return int(os.read(statm, 256).split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    main()
