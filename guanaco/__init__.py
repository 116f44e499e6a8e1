"""Guanaco: submit chat models, read what people think of them.

    with guanaco.Client() as client:
        submission = client.submit("org/model")
        client.wait(submission.id)
        for feedback in client.feedback(submission.id):
            print(feedback.thumbs_up, feedback.text)

Names are loaded when they are first used, so that importing this takes milliseconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guanaco.accounts import ApiKey, CreatedKey, Identity, Role
    from guanaco.alerts import Alerts, ServiceLevel
    from guanaco.bots import BOTS
    from guanaco.characters import Character, CharacterForm
    from guanaco.chat import (
        Bot,
        Conversation,
        ConversationOpened,
        Message,
        Reply,
        Sender,
        Token,
        Turn,
    )
    from guanaco.client import AsyncClient, Client
    from guanaco.costs import Costs, DeveloperCost, SubmissionCost
    from guanaco.errors import Blame, GuanacoError
    from guanaco.feedback import Erasure, Feedback, FeedbackPage, FeedbackRecorded
    from guanaco.formatters import load_formatter
    from guanaco.leaderboard import Leaderboard, LeaderboardRow, SubmissionMetrics
    from guanaco.lore import Lorebook, LoreEntry
    from guanaco.memory import ConversationMemory
    from guanaco.personas import ConversationPersona
    from guanaco.profile import Profile
    from guanaco.prompts import (
        PRESETS,
        ChatTemplatePrompt,
        PoetPrompt,
        PromptFile,
        PromptFormatter,
        PromptPart,
    )
    from guanaco.recipes import Recipe, RecipeOverride, RecipeStatus
    from guanaco.submissions import (
        EventKind,
        Failure,
        GenerationParams,
        Quantization,
        Stage,
        StageRun,
        Status,
        StressReport,
        Submission,
        SubmissionEvent,
        SubmissionKind,
        WeightDtype,
    )
    from guanaco.sweeps import Sweep, SweepRequest, load_sweep

    __version__: str

_ROOMS = {
    "accounts": ("ApiKey", "CreatedKey", "Identity", "Role"),
    "alerts": ("Alerts", "ServiceLevel"),
    "bots": ("BOTS",),
    "characters": ("Character", "CharacterForm"),
    "chat": (
        "Bot",
        "Conversation",
        "ConversationOpened",
        "Message",
        "Reply",
        "Sender",
        "Token",
        "Turn",
    ),
    "client": ("AsyncClient", "Client"),
    "costs": ("Costs", "DeveloperCost", "SubmissionCost"),
    "errors": ("Blame", "GuanacoError"),
    "feedback": ("Erasure", "Feedback", "FeedbackPage", "FeedbackRecorded"),
    "formatters": ("load_formatter",),
    "leaderboard": ("Leaderboard", "LeaderboardRow", "SubmissionMetrics"),
    "lore": ("LoreEntry", "Lorebook"),
    "memory": ("ConversationMemory",),
    "personas": ("ConversationPersona",),
    "profile": ("Profile",),
    "prompts": (
        "PRESETS",
        "ChatTemplatePrompt",
        "PoetPrompt",
        "PromptFile",
        "PromptFormatter",
        "PromptPart",
    ),
    "recipes": ("Recipe", "RecipeOverride", "RecipeStatus"),
    "submissions": (
        "EventKind",
        "Failure",
        "GenerationParams",
        "Quantization",
        "Stage",
        "StageRun",
        "Status",
        "StressReport",
        "Submission",
        "SubmissionEvent",
        "SubmissionKind",
        "WeightDtype",
    ),
    "sweeps": ("Sweep", "SweepRequest", "load_sweep"),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [  # held to _ROOMS by a test
    "BOTS",
    "PRESETS",
    "Alerts",
    "ApiKey",
    "AsyncClient",
    "Blame",
    "Bot",
    "Character",
    "CharacterForm",
    "ChatTemplatePrompt",
    "Client",
    "Conversation",
    "ConversationMemory",
    "ConversationOpened",
    "ConversationPersona",
    "Costs",
    "CreatedKey",
    "DeveloperCost",
    "Erasure",
    "EventKind",
    "Failure",
    "Feedback",
    "FeedbackPage",
    "FeedbackRecorded",
    "GenerationParams",
    "GuanacoError",
    "Identity",
    "Leaderboard",
    "LeaderboardRow",
    "LoreEntry",
    "Lorebook",
    "Message",
    "PoetPrompt",
    "Profile",
    "PromptFile",
    "PromptFormatter",
    "PromptPart",
    "Quantization",
    "Recipe",
    "RecipeOverride",
    "RecipeStatus",
    "Reply",
    "Role",
    "Sender",
    "ServiceLevel",
    "Stage",
    "StageRun",
    "Status",
    "StressReport",
    "Submission",
    "SubmissionCost",
    "SubmissionEvent",
    "SubmissionKind",
    "SubmissionMetrics",
    "Sweep",
    "SweepRequest",
    "Token",
    "Turn",
    "WeightDtype",
    "__version__",
    "load_formatter",
    "load_sweep",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _installed_version()
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'guanaco' has no attribute {name!r}")
    value = getattr(import_module(f"guanaco.{_ROOM_OF[name]}"), name)
    globals()[name] = value
    return value


def _installed_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("guanaco-platform")
    except PackageNotFoundError:  # a source tree that nobody installed
        return "unknown"


def __dir__() -> list[str]:
    return __all__
