"""`guanaco doctor`"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from guanaco_cli.console import GREEN, console
from guanaco_cli.options import AsJson, DataDir, Port

app = typer.Typer()

DEFAULT_HUB = "https://huggingface.co"


@app.command(epilog="Example: guanaco doctor --offline")
def doctor(
    data_dir: DataDir = None,
    port: Port = None,
    offline: Annotated[bool, typer.Option("--offline", help="Leave the Hub alone.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what this machine lacks, and how to get it."""
    from guanaco_cli.checkup import Health, examine

    environ = os.environ
    findings = list(
        examine(
            data_dir or Path(environ.get("GUANACO_DATA_DIR", "guanaco-data")),
            environ.get("GUANACO_HOST", "127.0.0.1"),
            port if port is not None else int(environ.get("GUANACO_PORT", "8300")),
            hub=None if offline else environ.get("GUANACO_HUB_ENDPOINT", DEFAULT_HUB),
        )
    )
    is_ready = all(finding.health is not Health.MISSING for finding in findings)
    if as_json:
        console.json({"is_ready": is_ready, "findings": [asdict(finding) for finding in findings]})
    else:
        rows = [(one.what, one.health, one.detail, one.remedy) for one in findings]
        console.table(("what", "health", "found", "what to do"), rows)
    if not is_ready:
        console.error("This machine cannot run the platform yet.", "The table says how to mend it.")
        raise typer.Exit(1)
    console.say("Ready for `guanaco up`.", style=GREEN)
