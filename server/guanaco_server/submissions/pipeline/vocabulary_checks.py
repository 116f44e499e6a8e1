"""What a tokenizer and a config must have in common. Pure: nothing is served yet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from guanaco.errors import ContentCheckFailed

SPECIAL_IDS = ("bos_token_id", "eos_token_id")
NEIGHBOUR = "a"  # some tokenizers treat the beginning and end of a text specially


def check_sizes(tokenizer: Tokenizer, config: dict[str, Any], generation: dict[str, Any]) -> str:
    """What was found; ContentCheckFailed when the tokenizer or a special id points past the embedding's rows."""
    rows = _text_config(config).get("vocab_size")
    if type(rows) is not int:
        return "config.json has no vocab_size, so the tokenizer is not compared with it."
    highest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if highest >= rows:
        raise ContentCheckFailed(
            f"Content check `vocabulary` failed: the tokenizer's highest token id is {highest:,} ({_shown(tokenizer.id_to_token(highest))}), and the embedding has {rows:,} rows.",
            hint="Call `model.resize_token_embeddings(len(tokenizer))` before saving, or push the tokenizer that the model was trained with.",
        )
    files = {"config.json": _text_config(config), "generation_config.json": generation}
    for file, content in files.items():
        _check_special_ids(file, content, rows)
    return f"The tokenizer's highest id is {highest:,}, and the embedding has {rows:,} rows."


def check_stopping_words(tokenizer: Tokenizer, words: Sequence[str]) -> str:
    """What was found; ContentCheckFailed for a word that no sequence of tokens spells."""
    unknown = _unknown_id(tokenizer)
    for word in words:
        if not any(_is_spelled(tokenizer, unknown, word, text) for text in _texts_with(word)):
            raise ContentCheckFailed(
                f"Content check `stopping words` failed: the tokenizer cannot spell the stopping word {word!r}; it makes {_respelled(tokenizer, word)!r} of it, so the word would never end a reply.",
                hint="Submit again with stopping words that the model can write.",
            )
    return f"The tokenizer can spell all {len(words)} stopping words."


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    """Of a model that also sees, the part that reads."""
    nested = config.get("text_config")
    return nested if "vocab_size" not in config and isinstance(nested, dict) else config


def _check_special_ids(file: str, content: dict[str, Any], rows: int) -> None:
    for name in SPECIAL_IDS:
        ids = content.get(name)
        for special in ids if isinstance(ids, list) else [ids]:
            if type(special) is int and not 0 <= special < rows:
                raise ContentCheckFailed(
                    f"Content check `vocabulary` failed: {name} in {file} is {special:,}, and the embedding has {rows:,} rows.",
                    hint=f"Put the tokenizer's own id into {file}.",
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


def _texts_with(word: str) -> tuple[str, ...]:
    return word, NEIGHBOUR + word + NEIGHBOUR


def _is_spelled(tokenizer: Tokenizer, unknown: int | None, word: str, text: str) -> bool:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    is_known = unknown not in ids or tokenizer.token_to_id(word) == unknown
    return is_known and word in tokenizer.decode(ids, skip_special_tokens=False)


def _respelled(tokenizer: Tokenizer, word: str) -> str:
    ids = tokenizer.encode(word, add_special_tokens=False).ids
    return str(tokenizer.decode(ids, skip_special_tokens=False))


def _shown(token: str | None) -> str:
    return repr((token or "")[:40])
