"""Defines what a serializer job is asked to do. The platform writes it, and the job needs nothing else but HF_TOKEN.

A job has no credentials of the store: its task holds either a folder to write into, or presigned URLs, one for each
part of the tensors file and one for each small file. The task itself is a file in the store's staging place; the job
gets that file's URL in the environment (TICKET_VARIABLE), because the URL is a secret.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

TICKET_VARIABLE = "GUANACO_TICKET"
JOURNAL_NAME = "journal.json"  # in the staging place: what is written already, and its hashes

SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)  # every small file that an artifact may have


def _inside(path: str) -> str:
    parts = PurePosixPath(path).parts
    if PurePosixPath(path).is_absolute() or ".." in parts or not parts:
        raise ValueError(f"{path!r} is outside the repo")
    return path


RepoPath = Annotated[str, AfterValidator(_inside)]


class Source(BaseModel):
    """A repo at a pinned commit, and which of its files are wanted."""

    model_config = ConfigDict(frozen=True)

    repo: str
    commit: str
    weight_files: tuple[RepoPath, ...]
    small_files: tuple[RepoPath, ...]


class Merge(BaseModel):
    """``tensor`` of the model gets scale * B A added; ``a`` and ``b`` name the adapter's tensors."""

    model_config = ConfigDict(frozen=True)

    tensor: str
    a: str
    b: str
    scale: float


class Adapter(Source):
    merges: tuple[Merge, ...]


class SerializerJob(BaseModel):
    """``adapter`` is merged into ``model``, and its small files come before the model's. ``dtype`` is auto, bfloat16 or float16.

    With a ``base_key`` nothing is merged: the artifact has the adapter's tensors, for a server that holds that artifact.
    """

    model_config = ConfigDict(frozen=True)

    key: str
    hub_endpoint: str
    memory_bytes: int
    model: Source
    adapter: Adapter | None = None
    dtype: str = "auto"
    base_key: str | None = None


class Upload(BaseModel):
    """The destination of an artifact: ``folder``, or else one URL for each part of ``part_bytes`` (the last may be shorter).

    ``put_urls`` and ``get_urls`` are by file name; the journal has both. ``identity`` differs where what was
    uploaded before is gone.
    """

    model_config = ConfigDict(frozen=True)

    identity: str = ""
    folder: str | None = None
    part_bytes: int = 0
    part_urls: tuple[str, ...] = ()
    put_urls: dict[str, str] = {}
    get_urls: dict[str, str] = {}


class SerializerTask(SerializerJob):
    upload: Upload
