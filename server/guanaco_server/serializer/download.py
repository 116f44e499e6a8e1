"""Files of a Hub repo at one commit, into a scratch folder that the caller drops."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from guanaco_server.serializer.progress import Counter, say, watching

TRIES_FOR_SIZE_S = 20.0


def prepare(scratch: Path) -> None:
    """Import huggingface_hub such that nothing lands outside the scratch folder, not even hf-xet's chunks."""
    os.environ["HF_HOME"] = str(scratch / "hf")
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ.pop("HF_HUB_OFFLINE", None)
    import huggingface_hub.file_download  # noqa: F401 - it reads the environment now


def download(
    repo: str, commit: str, paths: Sequence[str], *, endpoint: str, folder: Path
) -> dict[str, Path]:
    """Fetch the files, saying how far it is; the token, if any, is read from HF_TOKEN."""
    from huggingface_hub import hf_hub_download

    def fetch(path: str, *, dry_run: bool) -> object:
        return hf_hub_download(
            repo,
            path,
            revision=commit,
            endpoint=endpoint,
            local_dir=folder,
            token=os.environ.get("HF_TOKEN") or False,
            etag_timeout=TRIES_FOR_SIZE_S,
            dry_run=dry_run,
        )

    total = sum(getattr(fetch(path, dry_run=True), "file_size", None) or 0 for path in paths)
    say(f"Downloading {len(paths)} files, {total / 1e6:,.1f} MB, of {repo} at {commit[:8]}.")
    with watching(Counter("Downloading", total), lambda: _size(folder)):
        for path in paths:
            fetch(path, dry_run=False)
    return {path: folder / path for path in paths}


def _size(folder: Path) -> int:
    """Bytes on disk, of unfinished files too; a file may vanish as it is renamed."""
    size = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                size += (Path(root) / name).stat().st_blocks * 512
            except FileNotFoundError:
                continue
    return size
