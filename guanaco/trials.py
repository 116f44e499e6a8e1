"""Trials of prompts: what a formatter makes of a conversation, before anything is submitted."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from guanaco.chat import Bot, Sender, Turn
from guanaco.forms import OneLine
from guanaco.parameters import GenerationParams
from guanaco.prompts import Prompt

SAID = (
    "Hi! How was your day?",
    "Wonderful. I walked along the sea and thought of you.",
    "Tell me something that I do not know about you.",
    "I collect old maps, and I have been lost in every place on them.",
)


class PromptTrial(BaseModel):
    """A prompt to be tried out. Without a submission a word counts as a token, and there is no chat template."""

    model_config = ConfigDict(extra="forbid")

    formatter: Prompt | None = Field(
        default=None, description="The prompt to try; the submission's own without one."
    )
    submission: str | None = Field(
        default=None,
        min_length=1,
        max_length=260,
        description="The id or alias of your submission whose tokenizer and chat template are used.",
    )
    bot: Bot
    turns: list[Turn] = Field(default=[], max_length=1_000)
    user_name: OneLine = "You"
    max_input_tokens: int | None = Field(
        default=None,
        ge=16,
        le=131_072,
        description="The budget that the prompt is cut to; as the submission's, or a submission's default.",
    )


class RenderedPrompt(BaseModel):
    """The very text that a model would get, and its length."""

    prompt: str
    tokens: int
    max_input_tokens: int


def default_budget() -> int:
    """Return the budget of a submission that says nothing."""
    return GenerationParams().max_input_tokens


def sample_turns(count: int) -> list[Turn]:
    """Return a conversation to try a prompt with."""
    senders = (Sender.USER, Sender.BOT)
    return [Turn(sender=senders[n % 2], content=SAID[n % len(SAID)]) for n in range(count)]
