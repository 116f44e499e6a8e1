"""`guanaco-artifacts`: show what is in the artifact store, and verify it.

For operators: it works on the store itself, with the platform's settings, whether or not a platform runs.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guanaco_cli.console import GREEN, RED, console
from guanaco_cli.failures import FAILED, report
from guanaco_cli.installation import needs_platform, read_settings
from guanaco_cli.options import AsJson, DataDir

if TYPE_CHECKING:
    from guanaco_server.artifacts.verification import ArtifactVerifier

app = typer.Typer(
    name="guanaco-artifacts",
    help="Show what is in the artifact store, and verify it.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command("list", epilog="Example: guanaco-artifacts list --json")
def list_artifacts(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List every published artifact."""
    manifests = asyncio.run(_verifier(data_dir).manifests())
    if as_json:
        console.json({"artifacts": [manifest.summary() for manifest in manifests]})
        return
    console.table(
        ("key", "repo", "commit", "base", "tensors", "MB", "made"),
        [
            (
                m.key[:16],
                m.repo,
                m.commit[:8],
                m.base_repo or "",
                f"{m.tensor_count:,}",
                f"{m.size_bytes / 1e6:,.1f}",
                f"{m.created_at:%Y-%m-%d %H:%M}",
            )
            for m in manifests
        ],
    )


@app.command(epilog="Example: guanaco-artifacts verify 3f9a0c11 --offline")
def verify(
    keys: Annotated[list[str] | None, typer.Argument(help="Keys, or their beginnings.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every published artifact.")] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Leave out the comparison with the Hub.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Compare artifacts with their manifests, and these with the Hub's files, bit for bit; exits 1 if any differs."""
    if not keys and not every:
        raise typer.BadParameter("Name the keys, or give --all.")
    verifier = _verifier(data_dir)
    problems: dict[str, list[str]] = {}
    for key in asyncio.run(verifier.keys(None if every else keys)):
        console.say(f"{key[:16]}: reading")
        problems[key] = asyncio.run(_problems(verifier, key, offline))
        if not as_json:
            _tell(key, problems[key], offline)
    if as_json:
        console.json({"problems": problems})
    raise typer.Exit(1 if any(problems.values()) else 0)


@app.command(epilog="Example: guanaco-artifacts delete 3f9a0c11")
def delete(
    key: Annotated[str, typer.Argument(help="A key, or its beginning.")], data_dir: DataDir = None
) -> None:
    """Delete an artifact, for example a damaged one; the next redeploy of its submission makes it again."""
    verifier = _verifier(data_dir)
    for whole in asyncio.run(verifier.keys([key])):
        asyncio.run(verifier.delete(whole))
        console.say(f"{whole[:16]} is deleted; `guanaco redeploy` makes it again.", style=GREEN)


def main() -> None:
    if not console.prepare():
        sys.exit(FAILED)
    try:
        app(prog_name="guanaco-artifacts")
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:  # noqa: BLE001  # the last resort: a sentence instead of a traceback
        sys.exit(report(error, app, sys.argv[1:]))


def _verifier(data_dir: Path | None) -> ArtifactVerifier:
    with needs_platform():
        from guanaco_server.assembly.adapters import build_verifier
    return build_verifier(read_settings({"data_dir": data_dir} if data_dir else {}))


async def _problems(verifier: ArtifactVerifier, key: str, offline: bool) -> list[str]:
    """A repo that is gone is a finding, and not the end of all verifying."""
    from guanaco.errors import SubmissionFailure

    problems = await verifier.against_manifest(key)
    if offline or problems:
        return problems
    try:
        return await verifier.against_hub(key)
    except SubmissionFailure as failure:
        return [f"It could not be held against the Hub: {failure.detail}"]


def _tell(key: str, problems: list[str], offline: bool) -> None:
    for problem in problems:
        console.line(f"{key[:16]}: {problem}")
    if problems:
        console.say(f"{key[:16]} is not as it should be.", style=RED)
    else:
        proven = "whole" if offline else "whole, and bit for bit what the Hub has"
        console.say(f"{key[:16]} is {proven}.", style=GREEN)
