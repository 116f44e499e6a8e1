"""Repos with a sentencepiece model only: converted in the engine environment, where sentencepiece is."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

ROOT = Path(__file__).parents[2]
ENGINE = Path(os.environ.get("GUANACO_ENGINE_PYTHON", ROOT / ".venv-engine" / "bin" / "python"))
TEXTS = [
    "Hello, how are you today?",
    "What a nice day!",
    "two  spaces   here",
    "naïve café",
    "日本 🙂",
    "line\nline",
    "ﬁne Ⅷ",
]

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not ENGINE.exists(), reason="needs .venv-engine: `make engine`"),
]

TRAIN = """
import json, sys
from pathlib import Path
import sentencepiece
from guanaco_server.demo.corpus import CORPUS
folder, options, texts = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
with (folder / "tokenizer.model").open("wb") as model:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.strip().splitlines()), model_writer=model,
        vocab_size=400, hard_vocab_limit=False, minloglevel=2, **options)
processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
print(json.dumps(processor.encode(texts)))
"""
CONVERT = """
import sys
from pathlib import Path
from guanaco_server.serializer.reporting import JobFailed
from guanaco_server.serializer.tokenizers.tokenizer_files import convert
try:
    print(convert(Path(sys.argv[1])).name)
except JobFailed as failure:
    print(failure.code, failure.message)
"""
LOAD = """
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], local_files_only=True)
print(json.dumps([tokenizer(text).input_ids for text in json.loads(sys.argv[2])]))
"""


def engine(script: str, *arguments: str) -> str:
    path = ":".join(str(ROOT / part) for part in (".", "cli", "server"))
    done = subprocess.run(
        [ENGINE, "-c", script, *arguments],
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def train(folder: Path, config: dict[str, Any], **options: Any) -> list[list[int]]:
    """Write a repo's tokenizer; the ids of the texts by sentencepiece."""
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    ids: list[list[int]] = json.loads(
        engine(TRAIN, str(folder), json.dumps(options), json.dumps(TEXTS))
    )
    return ids


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"byte_fallback": True},
        {
            "byte_fallback": True,
            "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False,
        },
        {"add_dummy_prefix": False},
    ],
    ids=["plain", "bytes", "llama", "no-prefix"],
)
def test_a_converted_tokenizer_encodes_like_sentencepiece(
    tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    ids = train(tmp_path, {"tokenizer_class": "LlamaTokenizer"}, model_type=kind, **options)
    assert engine(CONVERT, str(tmp_path)) == "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [tokenizer.encode(t, add_special_tokens=False).ids for t in TEXTS] == ids
    assert tokenizer.encode(TEXTS[0]).ids == [1, *ids[0]]  # <s>


def test_model_server_and_platform_encode_alike_with_equal_bytes(
    tmp_path: Path,
) -> None:
    added = {"400": {"content": "<|user|>", "special": True}}
    config = {"tokenizer_class": "LlamaTokenizer", "added_tokens_decoder": added}
    ids = train(tmp_path, config, model_type="bpe", byte_fallback=True)
    assert engine(CONVERT, str(tmp_path)) == "tokenizer.json"
    first = (
        (tmp_path / "tokenizer.json").read_bytes(),
        (tmp_path / "tokenizer_config.json").read_bytes(),
    )
    served = json.loads(engine(LOAD, str(tmp_path), json.dumps([*TEXTS, "<|user|>"])))
    assert served == [*([1, *each] for each in ids), [1, 400]]
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    engine(CONVERT, str(tmp_path))
    again = (
        (tmp_path / "tokenizer.json").read_bytes(),
        (tmp_path / "tokenizer_config.json").read_bytes(),
    )
    assert first == again


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"bos_token": "<nowhere>"}, "its bos_token is not among its tokens"),
        ({"added_tokens_decoder": {"900": {"content": "<x>"}}}, "cannot have the number 900"),
        ({"added_tokens_decoder": {"x": 1}}, "corrupt added_tokens_decoder"),
        ({"added_tokens_decoder": {str(n): {} for n in range(10_001)}}, "more than 10,000 tokens"),
    ],
)
def test_a_tokenizer_that_cannot_be_kept_is_refused(
    tmp_path: Path, config: dict[str, Any], says: str
) -> None:
    train(tmp_path, config, model_type="bpe")
    said = engine(CONVERT, str(tmp_path))
    assert said.startswith("unsupported_tokenizer The tokenizer cannot be converted: ")
    assert says in said
    assert not (tmp_path / "tokenizer.json").exists()


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, b"../../etc/passwd", bytes(1_000)])
def test_a_model_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    assert engine(CONVERT, str(tmp_path)).startswith("unsupported_tokenizer The tokenizer cannot")
