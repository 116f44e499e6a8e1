"""`guanaco prompts test`: hold a prompt against a file of conversations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guanaco.errors import InvalidInput, MessageTooLong
from guanaco_cli import options
from guanaco_cli.completion import complete_submissions
from guanaco_cli.connection import connect
from guanaco_cli.console import GREEN, RED, console
from guanaco_cli.prompt_rendering import NOTHING_NAMED, read_prompt

if TYPE_CHECKING:
    from guanaco.client import Client
    from guanaco.prompt_cases import CaseResult, PromptCase
    from guanaco.prompts import Prompt

FAILED = 1


def hold(
    cases: Annotated[
        Path,
        typer.Argument(metavar="CASES", help="Conversations and what is expected, in YAML."),
    ],
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="PRESET|FILE|NAME@VERSION",
            help="A prompt file, a formatter, a preset, a stored prompt. [default: the submission's own]",
            show_default=False,
        ),
    ] = None,
    submission: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Your submission, by id or alias, whose tokenizer and chat template are used. [default: a token a word]",
            show_default=False,
            autocompletion=complete_submissions,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Compare the prompts of conversations with what is expected.

    They are rendered on the server. The exit status is 1 if one fails.
    """
    from guanaco.prompt_cases import PromptCases

    if file is None and submission is None:
        raise InvalidInput(NOTHING_NAMED)
    wanted = options.read_request(cases, PromptCases).cases
    formatter = read_prompt(file) if file is not None else None
    with connect() as client:
        results = [_result(client, case, formatter, submission) for case in wanted]
    if as_json:
        console.json(results)
    else:
        _print(results)
    if not all(result.passed for result in results):
        raise typer.Exit(FAILED)


def _result(
    client: Client, case: PromptCase, formatter: Prompt | None, submission: str | None
) -> CaseResult:
    from guanaco.prompt_cases import CaseResult, check_case

    try:
        rendered = client.render_prompt(
            formatter,
            case.bot,
            case.turns,
            submission=submission,
            user_name=case.user_name,
            max_input_tokens=case.max_input_tokens,
        )
    except MessageTooLong as error:  # no cut fits the budget: this case fails, the others go on
        return CaseResult(name=case.name, passed=False, tokens=None, problems=[error.detail])
    return check_case(case, rendered)


def _print(results: list[CaseResult]) -> None:
    for result in results:
        word, style = ("passed", GREEN) if result.passed else ("FAILED", RED)
        size = "" if result.tokens is None else f" ({result.tokens:,} tokens)"
        console.line(f"{word} {result.name}{size}", style=style)
        for problem in result.problems:
            console.line("  " + problem.replace("\n", "\n  "))
    failed = sum(not result.passed for result in results)
    console.say(f"{len(results) - failed} passed, {failed} failed.")
