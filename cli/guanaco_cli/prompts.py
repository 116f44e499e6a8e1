"""`guanaco prompts`: stored prompts with versions and labels; render one, and test it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from guanaco.errors import InvalidInput
from guanaco_cli import prompt_rendering, prompt_tests, words
from guanaco_cli.connection import connect
from guanaco_cli.console import console
from guanaco_cli.options import AsJson, Yes

if TYPE_CHECKING:
    from guanaco.prompts import Prompt
    from guanaco.stored_prompts import PromptVersion

HELP = "Prompts: push, list, show, diff, label; render one, test it."
app = typer.Typer(help=HELP, no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The prompt's name.")]
Reference = Annotated[
    str, typer.Argument(metavar="NAME[@VERSION]", help="A prompt, a version or a label of it.")
]
Developer = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Another developer's prompts (admin).", show_default=False),
]

app.command(
    "test",
    epilog="Example: guanaco prompts test cases.yaml my-prompt.yaml --submission acme-tiny_v1",
)(prompt_tests.hold)
app.command(
    epilog="Example: guanaco prompts render my-prompt.yaml --bot ada --tokenizer my-model/"
)(prompt_rendering.render)


@app.command(epilog="Example: guanaco prompts push support my-prompt.yaml --note 'shorter'")
def push(
    name: Name,
    file: Annotated[
        str, typer.Argument(metavar="PRESET|FILE", help="A prompt file, a formatter, a preset.")
    ],
    note: Annotated[str | None, typer.Option(help="What has changed.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Store a version of a prompt; the first one makes it."""
    with connect() as client:
        version = client.push_prompt(name, file, note=note)
    if as_json:
        console.json(version)
        return
    console.line(f"{version.name}@{version.version}")
    console.say(
        f"`guanaco submit REPO --formatter {name}@{version.version}` uses it, `guanaco prompts label {name} production {version.version}` labels it."
    )


@app.command("list", epilog="Example: guanaco prompts list --json")
def list_prompts(developer: Developer = None, as_json: AsJson = False) -> None:
    """List your stored prompts and their labels."""
    with connect() as client:
        found = client.prompts(developer=developer)
    if as_json:
        console.json(found)
        return
    console.table(
        ("name", "versions>", "labels", "followed by>", "changed"),
        [
            (
                one.name,
                one.newest,
                ", ".join(f"{label.label}: {label.version}" for label in one.labels),
                sum(len(label.submissions) for label in one.labels),
                words.moment(one.updated_at),
            )
            for one in found
        ],
    )
    if not found:
        console.say("Nothing is stored yet: `guanaco prompts push NAME FILE`.")


@app.command(epilog="Example: guanaco prompts show support@production")
def show(reference: Reference, developer: Developer = None, as_json: AsJson = False) -> None:
    """Show a prompt's versions and labels, or the text of one version."""
    name, _, which = reference.partition("@")
    with connect() as client:
        if which:
            version = client.prompt_version(name, which, developer=developer)
            if as_json:
                console.json(version)
            else:
                for line in as_lines(version.prompt):
                    console.line(line)
            return
        found = client.prompt(name, developer=developer)
    if as_json:
        console.json(found)
        return
    labels: dict[int, list[str]] = {one.version: [] for one in found.versions}
    for label in found.labels:
        labels.setdefault(label.version, []).append(label.label)
    console.table(
        ("version>", "labels", "by", "pushed", "note"),
        [
            (
                one.version,
                ", ".join(labels[one.version]),
                one.created_by,
                words.moment(one.created_at),
                one.note or "",
            )
            for one in found.versions
        ],
    )
    for label in found.labels:
        if label.submissions:
            console.say(f"{name}@{label.label} is followed by {', '.join(label.submissions)}.")


@app.command(epilog="Example: guanaco prompts diff support 2 production")
def diff(
    name: Name,
    old: Annotated[str, typer.Argument(metavar="OLD", help="A version or a label.")],
    new: Annotated[
        str | None,
        typer.Argument(metavar="NEW", help="A version or a label. [default: the newest]"),
    ] = None,
    developer: Developer = None,
) -> None:
    """Show what has changed between two versions, as `diff -u` does."""
    import difflib

    with connect() as client:
        newest = new or str(client.prompt(name, developer=developer).newest)
        first, second = (
            client.prompt_version(name, which, developer=developer) for which in (old, newest)
        )
    lines = difflib.unified_diff(
        as_lines(first.prompt), as_lines(second.prompt), _named(first), _named(second), lineterm=""
    )
    is_same = True
    for line in lines:
        is_same = False
        console.line(line)
    if is_same:
        console.say(f"{_named(first)} and {_named(second)} are the same.")


@app.command(epilog="Example: guanaco prompts label support production 3")
def label(
    name: Name,
    label: Annotated[str, typer.Argument(metavar="LABEL", help="Such as production.")],
    version: Annotated[
        int | None, typer.Argument(metavar="VERSION", help="The version's number.", min=1)
    ] = None,
    back: Annotated[
        bool, typer.Option("--back", help="Move it back to what it named before.")
    ] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove it; no submission may follow it.")
    ] = False,
    developer: Developer = None,
    as_json: AsJson = False,
) -> None:
    """Have a label name a version. Submissions that follow it change at once.

    Each of them is checked first; if one could not be served so, nothing is changed.
    """
    if [version is not None, back, remove].count(True) != 1:
        raise InvalidInput("Name a version, or --back, or --remove.")
    with connect() as client:
        if remove:
            client.remove_prompt_label(name, label, developer=developer)
            console.say(f"{name}@{label} is removed.")
            return
        moved = client.label_prompt(name, label, version, developer=developer)
    if as_json:
        console.json(moved)
        return
    before = f", before {moved.previous}" if moved.previous is not None else ""
    console.say(f"{name}@{label} is version {moved.version} now{before}.")
    if moved.submissions:
        console.say(f"It is what {', '.join(moved.submissions)} is served with from now on.")


@app.command(epilog="Example: guanaco prompts delete old-prompt --yes")
def delete(name: Name, yes: Yes = False, developer: Developer = None) -> None:
    """Delete a stored prompt with all versions."""
    console.confirm(f"Delete the prompt {name} with all its versions?", yes=yes)
    with connect() as client:
        client.delete_prompt(name, developer=developer)
    console.say(f"{name} is deleted.")


def as_lines(prompt: Prompt) -> list[str]:
    """Write a prompt as the YAML that `push` reads."""
    import yaml

    content = prompt.model_dump(mode="json", exclude_none=True)
    if content.get("kind") in ("templates", "file"):
        content.pop("kind")
    text: str = yaml.dump(
        content, Dumper=_dumper(), allow_unicode=True, sort_keys=False, width=10**6
    )
    return text.splitlines()


def _dumper() -> type:
    """Return a dumper that writes texts of several lines as blocks, as people do."""
    import yaml

    class Blocks(yaml.SafeDumper):
        pass

    def block(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
        style = "|" if "\n" in text.rstrip("\n") or text.endswith("\n") else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Blocks.add_representer(str, block)
    return Blocks


def _named(version: PromptVersion) -> str:
    return f"{version.name}@{version.version}"
