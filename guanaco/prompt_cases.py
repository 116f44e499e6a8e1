"""Checks what a prompt makes of conversations: its budget, the texts that must survive the cut, and its golden text."""

from __future__ import annotations

from difflib import unified_diff
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from guanaco.chat import Bot, Turn
from guanaco.forms import OneLine
from guanaco.trials import RenderedPrompt

MAX_CASES = 200
MAX_TURNS = 1_000  # of one trial
Excerpt = Annotated[str, StringConstraints(min_length=1)]


class Expectation(BaseModel):
    """The conditions that the prompt of one case must meet, of which there is at least one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_tokens: int | None = Field(default=None, ge=1, description="The prompt has no more tokens.")
    contains: tuple[Excerpt, ...] = Field(default=(), description="Texts that survive the cut.")
    lacks: tuple[Excerpt, ...] = Field(default=(), description="Texts that are not in the prompt.")
    golden: str | None = Field(default=None, description="The whole prompt, to the byte.")

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if self.max_tokens is None and self.golden is None and not (self.contains or self.lacks):
            raise ValueError("Expect max_tokens, contains, lacks or golden.")
        return self


class PromptCase(BaseModel):
    """One conversation, and what its prompt must be."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: OneLine
    bot: Bot
    user_name: OneLine = "You"
    turns: tuple[Turn, ...] = Field(default=(), max_length=MAX_TURNS)
    max_input_tokens: int | None = Field(default=None, ge=16, le=131_072)
    expect: Expectation


class PromptCases(BaseModel):
    """A file of cases, as ``guanaco prompts test`` reads it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cases: list[PromptCase] = Field(min_length=1, max_length=MAX_CASES)

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [case.name for case in self.cases]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"Two cases are named {twice!r}.")
        return self


class CaseResult(BaseModel):
    """The result of one case. Each problem is one sentence, and that of a golden text a difference."""

    name: str
    passed: bool
    tokens: int | None = Field(description="Null if no prompt could be made.")
    problems: list[str]


def check_case(case: PromptCase, rendered: RenderedPrompt) -> CaseResult:
    """Compare a rendered prompt with what its case expects."""
    expect, problems = case.expect, []
    if expect.max_tokens is not None and rendered.tokens > expect.max_tokens:
        problems.append(f"It has {rendered.tokens:,} tokens, over {expect.max_tokens:,}.")
    problems += [f"It lacks {text!r}." for text in expect.contains if text not in rendered.prompt]
    problems += [f"It contains {text!r}." for text in expect.lacks if text in rendered.prompt]
    if expect.golden is not None and expect.golden != rendered.prompt:
        problems.append(
            "It is not the golden text:\n" + _difference(expect.golden, rendered.prompt)
        )
    return CaseResult(
        name=case.name, passed=not problems, tokens=rendered.tokens, problems=problems
    )


def _difference(golden: str, prompt: str) -> str:
    """Return a unified difference; a last line without a line break is marked."""
    return "\n".join(
        unified_diff(_lines(golden), _lines(prompt), "golden", "rendered", lineterm="")
    )


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    if lines[-1]:
        return [*lines[:-1], f"{lines[-1]} (no line break at the end)"]
    return lines[:-1]
