"""Arguments and options that commands share, and requests that are written in files."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from guanaco.errors import InvalidInput
from guanaco_cli.completion import complete_submissions

if TYPE_CHECKING:
    from pydantic import BaseModel

    from guanaco.chat import Bot

    Request = TypeVar("Request", bound=BaseModel)

SubmissionId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The submission's id, or an alias like org/model@champion.",
        autocompletion=complete_submissions,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Follow the pipeline to its end.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show debug lines too.")]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Folder that holds all the platform's data."),
]
Config = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="TOML file of settings.", exists=True, dir_okay=False),
]
Port = Annotated[int | None, typer.Option("--port", min=0, max=65_535, help="Port of the API.")]


HubToken = Annotated[
    bool,
    typer.Option(
        "--hub-token",
        help="Give your own Hub token, for a private or gated repo: HF_TOKEN, or asked for, unseen. It is deleted when the weights are fetched.",
    ),
]


ShowPrompt = Annotated[
    bool,
    typer.Option("--show-prompt", help="Show the prompt to everybody, on the model's public page."),
]


def read_hub_token(is_wanted: bool) -> str | None:
    """Return the developer's own Hub token. It is no option's value: those are seen in the list of processes."""
    if not is_wanted:
        return None
    return os.environ.get("HF_TOKEN") or read_secret("Hub token", "Give it in HF_TOKEN.")


def read_secret(name: str, hint: str) -> str:
    """Ask for a secret, unseen; without a terminal it is the first line of stdin, and InvalidInput says so if there is none."""
    if sys.stdin.isatty():
        asked: str = typer.prompt(name, hide_input=True, err=True)
        return asked.strip()
    given = sys.stdin.readline().strip()
    if not given:
        raise InvalidInput(f"There is no terminal to ask for the {name} at.", hint=hint)
    return given


def _complete_presets(incomplete: str) -> list[str]:
    from guanaco.prompts import CHAT_TEMPLATE, PRESETS

    return [name for name in (*PRESETS, CHAT_TEMPLATE) if name.startswith(incomplete)]


def _complete_bots(incomplete: str) -> list[str]:
    from guanaco.bots import BOTS

    return [name for name in BOTS if name.startswith(incomplete)]


Formatter = Annotated[
    str,
    typer.Option(
        metavar="PRESET|FILE|NAME@LABEL",
        help="The prompt: pygmalion, vicuna, chatml, chat-template (the model's own), a JSON, YAML or .j2 file, or a stored prompt's version or label.",
        autocompletion=_complete_presets,
    ),
]
RewardFormatter = Annotated[
    str | None,
    typer.Option(
        metavar="PRESET|FILE",
        help="How the reward model sees the conversation. [default: as it says itself, or the prompt]",
        autocompletion=_complete_presets,
    ),
]
Kind = Annotated[
    Literal["chat", "reward"],
    typer.Option(help="A chat model, or a reward model that picks among candidate replies."),
]
Reward = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        help="The reward model; none for log-probability. [default: the platform's]",
        autocompletion=complete_submissions,
    ),
]
RewardRepo = Annotated[
    str | None,
    typer.Option(
        metavar="REPO",
        help="The reward model's repo: your live one of it, else it is submitted first.",
    ),
]
BotName = Annotated[
    str,
    typer.Option(
        "--bot",
        metavar="NAME|FILE",
        help="The bot to talk to: marlowe, ada, bruno, pixel, or a bot in a JSON or YAML file.",
        autocompletion=_complete_bots,
    ),
]
Dtype = Annotated[
    Literal["auto", "bfloat16", "float16"],
    typer.Option(help="Type of the served weights; auto casts float32 to bfloat16."),
]
Quantization = Annotated[
    Literal["fp8", "int8"] | None,
    typer.Option(help="Quantize when serving; int8 is for a mixture's experts. [default: none]"),
]


RequestFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="YAML or JSON.", exists=True, dir_okay=False)
]


def read_bot(name: str) -> Bot:
    """Return one of the bots that ship with Guanaco, or one that a file describes."""
    from guanaco.bots import BOTS
    from guanaco.chat import Bot

    if name in BOTS:
        return BOTS[name]
    if Path(name).is_file():
        return read_request(Path(name), Bot)
    raise typer.BadParameter(f"There is no bot {name!r}. Choose {', '.join(BOTS)}, or a file.")


def parse_character(name: str) -> tuple[str, int | None]:
    """Return a character's id and version: of ``chr_…@3`` or, for the newest, ``chr_…``."""
    character_id, sign, version = name.partition("@")
    if sign and not (version.isascii() and version.isdigit() and 0 < len(version) < 10):
        raise InvalidInput(f"A version is a number, as in {character_id[:80]}@3.")
    return character_id, int(version) if sign else None


def read_request(file: Path, kind: type[Request]) -> Request:
    """Read a request from a file; InvalidInput in one sentence where it is wrong."""
    from pydantic import ValidationError

    from guanaco.errors.validation import one_sentence
    from guanaco.yaml_files import parse_yaml, unreadable

    try:
        found = parse_yaml(file.read_text())
        if not isinstance(found, dict):
            raise InvalidInput(f"{file} holds no fields: write them as `name: value`, one a line.")
        return kind.model_validate(found)
    except ValidationError as error:
        raise InvalidInput(f"{file}: {one_sentence(error, kind)}") from None
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise unreadable(file, error) from None
