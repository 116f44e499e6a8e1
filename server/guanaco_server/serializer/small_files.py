"""The config and tokenizer files of an artifact: as in the repo, but for what the weights' cast makes untrue."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

from guanaco_server.serializer.chat_template import TEMPLATE_NAME, check_chat_templates
from guanaco_server.serializer.failures import JobFailed
from guanaco_server.serializer.plan import CASTS
from guanaco_server.serializer.progress import say
from guanaco_server.serializer.repo_files import RepoFiles
from guanaco_server.serializer.tokenizer_files import CONFIG_NAME as TOKENIZER_CONFIG_NAME
from guanaco_server.serializer.tokenizer_files import TOKENIZER_NAME, convert

CONFIG_NAME = "config.json"
DTYPE_KEYS = ("dtype", "torch_dtype")  # transformers 5 writes the first, earlier ones the second


def fetch(files: RepoFiles, paths: tuple[str, ...]) -> dict[str, bytes]:
    """By their names, without folders."""
    return {PurePosixPath(path).name: files.read(path) for path in paths}


def prepared(small: dict[str, bytes], folder: Path) -> dict[str, bytes]:
    """With a tokenizer.json where there was only a sentencepiece model; JobFailed for a template that must not be served.

    Both are tried out in child processes, on copies in the folder.
    """
    folder.mkdir(exist_ok=True)
    for name, content in small.items():
        (folder / name).write_bytes(content)
    if TOKENIZER_NAME not in small:
        say("Converting the sentencepiece tokenizer.")
        convert(folder)
    if TEMPLATE_NAME in small or b"chat_template" in small.get(TOKENIZER_CONFIG_NAME, b""):
        check_chat_templates(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def is_quantized(config: dict[str, Any]) -> bool:
    return "quantization_config" in config or "compression_config" in config


def parse_config(content: bytes) -> dict[str, Any]:
    try:
        config = json.loads(content)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise JobFailed("corrupt_weights", f"{CONFIG_NAME} is not a JSON object.")
    return config


def with_dtype(content: bytes, cast_to: str | None) -> bytes:
    """config.json that names the dtype which the weights now have; unchanged where they were not cast."""
    if cast_to is None:
        return content
    name = next(name for name, dtype in CASTS.items() if dtype == cast_to)
    config = parse_config(content)
    keys = [key for key in DTYPE_KEYS if key in config] or [DTYPE_KEYS[-1]]
    return json.dumps(config | dict.fromkeys(keys, name), indent=2).encode()
