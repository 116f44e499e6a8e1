"""A repo's config and tokenizer files: which of them an artifact gets, and whether the tokenizer fits the model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from guanaco.errors import MissingFile, ModelTooLarge, UnsupportedTokenizer
from guanaco_server.artifacts.hub.hub import Hub, RepoSnapshot
from guanaco_server.artifacts.tokenizer_json import MAX_TOKENIZER_BYTES, check_tokenizer
from guanaco_server.formats.safetensors_header import TensorInfo
from guanaco_server.serializer.ticket import SMALL_FILES

MAX_SMALL_FILE_BYTES = MAX_TOKENIZER_BYTES
TOKENIZER_NAME = "tokenizer.json"
SENTENCEPIECE_NAME = "tokenizer.model"  # converted by serializer/tokenizer_files.py
MODEL_FILES = frozenset({"config.json", "generation_config.json"})  # always the base's own
TOKENIZER_FILES = tuple(name for name in SMALL_FILES if name not in MODEL_FILES)
EMBEDDINGS = (
    "embed_tokens.weight",
    "wte.weight",
    "word_embeddings.weight",
    "embed_in.weight",
    "tok_embeddings.weight",
    "embeddings.weight",
)


def model_files(snapshot: RepoSnapshot) -> tuple[str, ...]:
    """A model's small files, a tokenizer among them."""
    if snapshot.file(TOKENIZER_NAME) is None and snapshot.file(SENTENCEPIECE_NAME) is None:
        raise MissingFile(
            f"The repo has no {TOKENIZER_NAME} and no {SENTENCEPIECE_NAME}.",
            hint="Push it with `AutoTokenizer.from_pretrained(...).save_pretrained(...)`.",
        )
    return _present(snapshot, SMALL_FILES)


def adapter_files(snapshot: RepoSnapshot) -> tuple[str, ...]:
    """The tokenizer's files, if the adapter brings a tokenizer: all of them, for a mixture would be none."""
    return _present(snapshot, TOKENIZER_FILES) if snapshot.file(TOKENIZER_NAME) else ()


async def check_tokenizer_fits(
    hub: Hub, snapshot: RepoSnapshot, tensors: Iterable[TensorInfo]
) -> None:
    """UnsupportedTokenizer where an adapter's tokenizer has tokens for which the base has no embedding."""
    rows = next((info.shape[0] for info in tensors if _is_embedding(info)), None)
    file = snapshot.file(TOKENIZER_NAME)
    if rows is None or file is None:
        return
    data = await hub.read(snapshot, TOKENIZER_NAME, 0, file.size_bytes)
    count = await asyncio.to_thread(check_tokenizer, data)
    if count > rows:
        raise UnsupportedTokenizer(
            f"The adapter's tokenizer has {count:,} entries, and the base's embedding only {rows:,}.",
            hint="Merge the adapter into its resized base, and submit the result.",
        )


def _is_embedding(info: TensorInfo) -> bool:
    return len(info.shape) == 2 and info.name.endswith(EMBEDDINGS)


def _present(snapshot: RepoSnapshot, names: Iterable[str]) -> tuple[str, ...]:
    files = [file for name in names if (file := snapshot.file(name))]
    for file in files:
        if file.size_bytes > MAX_SMALL_FILE_BYTES:
            raise ModelTooLarge(
                f"{file.path} has {file.size_bytes:,} bytes; {MAX_SMALL_FILE_BYTES:,} are allowed."
            )
    return tuple(file.path for file in files)
