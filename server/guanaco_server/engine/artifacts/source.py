"""Finds an artifact, and provides the folder with its config and tokenizer that vLLM takes for a model.

    file:///…/key     that folder; nothing is copied
    s3://…/key        presigned URLs by path, JSON in GUANACO_ARTIFACT_URLS: they are secrets, never arguments
    http(s)://…/key   as it stands; for benchmarks and tests

The small files of an artifact that is not on this machine are fetched before vLLM starts.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from guanaco_server.engine.artifacts.errors import (
    ArtifactError,
    DamagedArtifactError,
    UnreachableArtifactError,
)
from guanaco_server.engine.artifacts.node_cache import KEY, NodeCache
from guanaco_server.engine.artifacts.ranged_http import RangedFile
from guanaco_server.formats.manifest import MANIFEST_NAME, Manifest, StoredFile

URLS_VARIABLE = "GUANACO_ARTIFACT_URLS"
MAX_MANIFEST_BYTES = 256 * 1024**2


@dataclass(frozen=True)
class ArtifactSource:
    uri: str
    urls: Mapping[str, str] = field(default_factory=dict, repr=False)

    @staticmethod
    def from_environment(uri: str) -> ArtifactSource:
        return ArtifactSource(uri, json.loads(os.environ.get(URLS_VARIABLE, "{}")))

    @property
    def folder(self) -> Path | None:
        """Return the artifact's folder, if it is on this machine."""
        parts = urlsplit(self.uri)
        return Path(unquote(parts.path)) if parts.scheme == "file" else None

    @property
    def key(self) -> str:
        return self.uri.rstrip("/").rpartition("/")[2]

    def url(self, path: str) -> str:
        """Return the URL of a file of the artifact; it may be a secret."""
        if url := self.urls.get(path):
            return url
        if urlsplit(self.uri).scheme in ("http", "https"):
            return f"{self.uri.rstrip('/')}/{path}"
        raise UnreachableArtifactError(
            f"{self.uri} cannot be opened: {URLS_VARIABLE} has no URL of its {path}."
        )

    def fetch(self, path: str, max_bytes: int) -> bytes:
        return RangedFile(self.url(path), path).fetch(max_bytes)


@dataclass(frozen=True)
class ModelFolder:
    """``path`` has the manifest and the small files. ``is_cached``: the node's cache keeps the tensors there."""

    path: Path
    is_cached: bool = False


@contextmanager
def model_folder(source: ArtifactSource, cache: NodeCache | None) -> Iterator[ModelFolder]:
    """Provide the model's folder for as long as the server runs. The cache keeps the artifact until then."""
    if folder := source.folder:
        check_small_files(folder, read_manifest(folder))
        yield ModelFolder(folder)
    elif cache is None:
        with _temporary_folder(_fetch_small_files(source)) as folder:
            yield ModelFolder(folder)
    else:
        with cache.in_use(_checked_key(source)), _cached_folder(source, cache) as found:
            yield found


def read_manifest(folder: Path) -> Manifest:
    try:
        return parse_manifest((folder / MANIFEST_NAME).read_bytes())
    except OSError as error:
        raise UnreachableArtifactError(
            f"{folder} is no whole artifact: {MANIFEST_NAME}: {error.strerror}."
        ) from error


def parse_manifest(data: bytes) -> Manifest:
    """Parse a manifest. DamagedArtifactError if one of its places lies outside the artifact."""
    try:
        manifest = Manifest.model_validate_json(data)
        for record in manifest.tensors:
            record.pieces()
            if not 0 <= record.offset <= manifest.tensors_bytes - record.size_bytes:
                raise ValueError(f"tensor {record.name} lies outside the file")
        for file in manifest.files:
            if file.path != PurePosixPath(file.path).name:
                raise ValueError(f"{file.path} lies outside the artifact")
    except ValueError as error:
        what = str(error).splitlines()[0]
        raise DamagedArtifactError(f"The artifact's {MANIFEST_NAME} is damaged: {what}.") from error
    return manifest


def check_small_files(folder: Path, manifest: Manifest) -> None:
    for file in manifest.files:
        try:
            _checked(file, (folder / file.path).read_bytes())
        except OSError as error:
            raise DamagedArtifactError(
                f"The artifact is damaged: {file.path}: {error.strerror}."
            ) from error


@contextmanager
def _cached_folder(source: ArtifactSource, cache: NodeCache) -> Iterator[ModelFolder]:
    if found := cache.find(source.key):
        folder, manifest = found
        try:
            check_small_files(folder, manifest)
        except ArtifactError:
            found = None
    if found:
        yield ModelFolder(folder, is_cached=True)
        return
    files = _fetch_small_files(source)
    manifest = parse_manifest(files[MANIFEST_NAME])
    if room := cache.make_room(manifest, files):
        yield ModelFolder(room, is_cached=True)
    else:
        with _temporary_folder(files) as folder:
            yield ModelFolder(folder)


def _fetch_small_files(source: ArtifactSource) -> dict[str, bytes]:
    """Fetch the small files by path, verified; the manifest is the last."""
    data = source.fetch(MANIFEST_NAME, MAX_MANIFEST_BYTES)
    manifest = parse_manifest(data)
    if manifest.key != source.key:
        raise DamagedArtifactError(f"{source.uri} has the manifest of another artifact.")
    fetched = {
        file.path: _checked(file, source.fetch(file.path, file.size_bytes))
        for file in manifest.files
    }
    return {**fetched, MANIFEST_NAME: data}


def _checked(file: StoredFile, data: bytes) -> bytes:
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise DamagedArtifactError(
            f"The artifact is damaged: {file.path} has another hash than was written."
        )
    return data


def _checked_key(source: ArtifactSource) -> str:
    if not KEY.fullmatch(source.key):
        raise UnreachableArtifactError(f"{source.uri} does not end with an artifact's key.")
    return source.key


@contextmanager
def _temporary_folder(files: Mapping[str, bytes]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="guanaco-model-") as name:
        for path, data in files.items():
            (Path(name) / path).write_bytes(data)
        yield Path(name)
