"""`guanaco demo`: the whole journey on this machine, offline, with real parts."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guanaco.errors import GuanacoError
from guanaco_cli.console import BOLD, console
from guanaco_cli.installation import needs_platform, require_engine_python
from guanaco_cli.options import AsJson, Port, Verbose

if TYPE_CHECKING:
    from guanaco_cli.demo.journey import DemoOutput
    from guanaco_cli.demo.running_platform import RunningPlatform
    from guanaco_cli.demo.timings import Journey

app = typer.Typer()

TINY_REPO = "guanaco-demo/tiny-llama"


@app.command(epilog="Example: guanaco demo --exit")
def demo(
    should_exit: Annotated[
        bool, typer.Option("--exit", help="Stop the platform at the end.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="ORG/NAME", help="A model from the Hub, in place of a tiny one made here."
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            metavar="DIR",
            help="Keep everything here, in place of a temporary folder.",
        ),
    ] = None,
    port: Port = None,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Show the whole journey: submit, chat, rate, read.

    Starts a platform of its own, with a tiny model made on the spot, and leaves it running until Ctrl-C.
    """
    engine_python = require_engine_python()
    signal.signal(signal.SIGTERM, _end)
    with _folder(data_dir) as folder, _hub(folder, model) as hub_settings:
        from dataclasses import asdict

        from guanaco_cli.demo.journey import DemoOutput
        from guanaco_cli.demo.running_platform import running_platform
        from guanaco_cli.demo.timings import timings_of

        output = DemoOutput(is_verbose=verbose, is_talk=as_json)
        console.say(f"Starting a platform in {folder} …", style=BOLD)
        settings = {"GUANACO_ENGINE_PYTHON": str(engine_python), **hub_settings}
        with running_platform(folder, port, settings) as platform:
            journey = _walk(platform, model or TINY_REPO, output)
            output.show_feedback(journey.feedback, journey.leaderboard)
            figures = timings_of(journey)
            output.show_timings(figures)
            if as_json:
                console.json(asdict(figures))
            if not should_exit:
                _stay(platform, journey.first_reply.submission_id)


def _walk(platform: RunningPlatform, repo: str, output: DemoOutput) -> Journey:
    from guanaco.accounts import Role
    from guanaco_cli.demo.journey import new_client, walk

    console.say(f"It runs at {platform.url}.")
    with (
        new_client(platform, Role.DEVELOPER, "demo-developer") as developer,
        new_client(platform, Role.BACKEND, "demo-app") as backend,
    ):
        return walk(developer, backend, repo, output)


def _stay(platform: RunningPlatform, submission_id: str) -> None:
    """Leave the platform running until Ctrl-C."""
    console.say(
        f"\nThe platform goes on at {platform.url} until Ctrl-C. In another terminal:", style=BOLD
    )
    console.say(f"  export GUANACO_PROFILE={platform.profile_path}")
    console.say(f"  guanaco chat {submission_id} --bot ada --show-prompt")
    console.say(f"  guanaco feedback {submission_id} --json")
    console.say("  guanaco submissions")
    try:
        status = platform.wait()
    except KeyboardInterrupt:
        console.say("\nStopping.")
        return
    raise GuanacoError(f"The platform ended by itself, with exit status {status}.")


@contextmanager
def _folder(named: Path | None) -> Iterator[Path]:
    """Yield the named folder, which stays, or a temporary one, which goes unless something failed."""
    if named is not None:
        yield named.absolute()
        return
    folder = Path(tempfile.mkdtemp(prefix="guanaco-demo-"))
    try:
        yield folder
    except GuanacoError:
        console.say(f"The data of this demo is in {folder}.")
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _hub(folder: Path, model: str | None) -> Iterator[dict[str, str]]:
    """Settings that point at a Hub of our own with a tiny model; none when a real model is named."""
    if model is not None:
        yield {}
        return
    with needs_platform():
        from guanaco_server.demo.hub_server import LocalHub
        from guanaco_server.demo.tiny_repo import make_tiny_repo
    root = folder / "hub"
    if not (root / TINY_REPO).exists():
        make_tiny_repo(root / TINY_REPO)
    with LocalHub(root) as hub:
        yield {"GUANACO_HUB_ENDPOINT": hub.url}


def _end(_signal: int, _frame: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)
