"""Lists the commands of `guanaco --help` in sections, by who needs them, and says what options take in plain words."""

from __future__ import annotations

from functools import partial
from typing import Any

import typer
from typer.core import TyperGroup

SECTIONS: dict[str, tuple[str, ...]] = {
    "Start": ("login", "whoami", "logout", "doctor", "demo"),
    "Submissions": (
        *("check", "plan", "submit", "sweep", "submissions", "status", "logs", "cancel"),
        *("redeploy", "promote", "rollback", "deactivate", "reactivate", "teardown", "delete"),
        *("alias", "tag", "show-prompt", "card", "prompts", "quota"),
    ),
    "Feedback and figures": (
        *("feedback", "evaluate", "stress", "leaderboard", "chat", "costs", "webhook"),
    ),
    "Apps": ("characters", "conversations", "duels"),
    "Competitions": ("competitions", "simulate", "experiments", "votes", "assignment"),
    "Operating a platform": (
        *("up", "settings", "migrate", "first-key", "keys", "recipe", "slo", "alerts"),
        *("backup", "restore", "users", "audit"),
    ),
}
OTHER = "More commands"


TYPES = {"str": "TEXT", "int": "N", "float": "NUMBER", "datetime": "TIME", "Path": "PATH"}


class SectionedGroup(TyperGroup):
    """A group whose help has a heading for each section, and names no type of Python."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        name_plainly(command)
        return command

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")  # pydantic's, in new Typers
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        shown = {
            name: command
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None and not command.hidden
        }
        listed = {name for names in SECTIONS.values() for name in names}
        others = tuple(name for name in shown if name not in listed)
        width = max(map(len, shown), default=0)
        limit = formatter.width - 4 - width
        for title, names in {**SECTIONS, OTHER: others}.items():
            rows = [
                (name.ljust(width), shown[name].get_short_help_str(limit))
                for name in names
                if name in shown
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def name_plainly(command: Any) -> None:
    """Have help say TEXT, N or TIME where it would name a type of Python, and REPO, [ID] or up|down for arguments, without braces."""
    for child in getattr(command, "commands", {}).values():
        name_plainly(child)
    for param in getattr(command, "params", ()):
        if param.param_type_name == "argument":
            param.display_type = _nothing
            if param.metavar is None and param.type_descriptor.is_choice:
                param.metavar = "|".join(map(str, param.type_descriptor.choices))
            param.get_usage_pieces = partial(_usage_pieces, param)
        elif param.metavar is None and not param.type_descriptor.is_choice:
            type_name = param.bare_type().removeprefix("list[").removesuffix("]")
            param.metavar = TYPES.get(type_name)


def _nothing(ctx: Any) -> str:
    return ""


def _usage_pieces(argument: Any, ctx: Any) -> list[str]:
    """Write an argument as `gh` and git do: REPO, or [ID] where it may be left out, and dots where it may be repeated."""
    name = argument.display_name_raw
    if name.startswith("["):
        return [name]
    dots = "..." if argument.nargs != 1 and not name.endswith(("...", "…")) else ""
    return [f"{name}{dots}" if argument.required else f"[{name}{dots}]"]
