"""Converts a sentencepiece tokenizer.model to the tokenizer.json that everything else reads.

    tokenizer.model, tokenizer_config.json, added_tokens.json  →  tokenizer.json, tokenizer_config.json

The config is rewritten with the class PreTrainedTokenizerFast, for with most others transformers takes only
the vocabulary from tokenizer.json and builds the rest itself. The same files always give the same bytes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guanaco_server.confinement import confined
from guanaco_server.serializer.reporting import JobFailed

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LIMITS = confined.ProcessLimits(
    cpu_s=60, memory_bytes=2_000_000_000, wall_s=180, file_bytes=64_000_000
)  # 256,000 pieces, as Gemma has, took 2 s and 250 MB
MODEL_NAME = "tokenizer.model"
TOKENIZER_NAME = "tokenizer.json"
CONFIG_NAME = "tokenizer_config.json"
ADDED_NAME = "added_tokens.json"
MAX_ADDED_TOKENS = 10_000
FAST_CLASS = "PreTrainedTokenizerFast"

Json = dict[str, Any]


def convert(folder: Path) -> Path:
    """Write the folder's tokenizer.json in a child process; JobFailed if the tokenizer cannot be kept as it is."""
    if reason := confined.run(__name__, folder, LIMITS):
        for name in (TOKENIZER_NAME, f".{CONFIG_NAME}"):
            (folder / name).unlink(missing_ok=True)
        raise JobFailed("unsupported_tokenizer", f"The tokenizer cannot be converted: {reason}.")
    return folder / TOKENIZER_NAME


def main() -> int:
    """Convert, or tell why not. This runs in the child."""
    import sentencepiece  # noqa: F401 - imported before the limits, as is the next
    import tokenizers  # noqa: F401

    from guanaco_server.serializer.tokenizers import sentencepiece_model  # noqa: F401

    folder = Path(sys.argv[1])
    confined.confine(LIMITS, folder)
    try:
        _convert(folder)
    except ValueError as error:
        confined.tell(str(error))
    except RecursionError:
        confined.tell("its files are nested too deeply")
    except MemoryError:
        return 1
    else:
        confined.tell(None)
    return 0


def _convert(folder: Path) -> None:
    from guanaco_server.serializer.tokenizers import sentencepiece_model

    config = _read(folder / CONFIG_NAME)
    model = sentencepiece_model.read_model((folder / MODEL_NAME).read_bytes())
    tokenizer = sentencepiece_model.build_tokenizer(model)
    sentencepiece_model.require_same_ids(tokenizer, model)
    _add_tokens(tokenizer, config, _read(folder / ADDED_NAME))
    config = _with_special_tokens(config, model)
    _add_template(tokenizer, config)
    (folder / f".{CONFIG_NAME}").write_text(json.dumps(config, indent=2), "utf-8")
    (folder / TOKENIZER_NAME).write_text(tokenizer.to_str(), "utf-8")
    (folder / f".{CONFIG_NAME}").rename(folder / CONFIG_NAME)


def _read(path: Path) -> Json:
    content = json.loads(path.read_text("utf-8")) if path.exists() else {}
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return content


def _add_tokens(tokenizer: Tokenizer, config: Json, more: Json) -> None:
    """The tokens beyond the model's pieces, which must follow them without a gap."""
    from tokenizers import AddedToken

    decoder = config.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict) or len(decoder) + len(more) > MAX_ADDED_TOKENS:
        raise ValueError(f"it adds more than {MAX_ADDED_TOKENS:,} tokens")
    added: dict[Any, tuple[Any, bool]] = {
        number: (content, False) for content, number in more.items()
    }
    for number, token in decoder.items():
        if not isinstance(token, dict) or not number.isascii() or not number.isdecimal():
            raise ValueError(f"{CONFIG_NAME} has a corrupt added_tokens_decoder")
        added[int(number[:9])] = (token.get("content"), token.get("special") is True)
    if not all(type(n) is int and isinstance(c, str) and c for n, (c, _) in added.items()):
        raise ValueError("its added tokens are not texts with a number")
    for number, (content, is_special) in sorted(added.items()):
        tokenizer.add_tokens([AddedToken(content, normalized=False, special=is_special)])
        if tokenizer.token_to_id(content) != number:
            raise ValueError(f"the added token {content[:40]!r} cannot have the number {number}")


def _with_special_tokens(config: Json, model: Any) -> Json:
    """Return the config with what the slow tokenizer class would have known: its tokens, and whether it begins with one."""
    spec = model.trainer_spec
    known = {
        f"{name}_token": model.pieces[number].piece
        for name, number in (("bos", spec.bos_id), ("eos", spec.eos_id), ("unk", spec.unk_id))
        if 0 <= number < len(model.pieces)
    }
    given = {name: value for name, value in config.items() if value is not None}
    return known | given | {"tokenizer_class": FAST_CLASS}


def _add_template(tokenizer: Tokenizer, config: Json) -> None:
    from tokenizers.processors import TemplateProcessing

    first = _token(tokenizer, config, "bos_token") if config.get("add_bos_token", True) else None
    last = _token(tokenizer, config, "eos_token") if config.get("add_eos_token", False) else None
    around = [pair for pair in (first, last) if pair]
    if around:
        parts = [first[0] if first else "", "$A", last[0] if last else ""]
        tokenizer.post_processor = TemplateProcessing(
            single=[part for part in parts if part], special_tokens=around
        )


def _token(tokenizer: Tokenizer, config: Json, name: str) -> tuple[str, int] | None:
    token = config.get(name)
    text = token.get("content") if isinstance(token, dict) else token
    if text is None:
        return None
    number = tokenizer.token_to_id(text) if isinstance(text, str) else None
    if number is None:
        raise ValueError(f"its {name} is not among its tokens")
    return text, number


if __name__ == "__main__":
    sys.exit(main())
