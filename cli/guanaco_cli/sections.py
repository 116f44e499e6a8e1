"""Lists the commands of `guanaco --help` in sections, by who needs them."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

SECTIONS: dict[str, tuple[str, ...]] = {
    "Start": ("login", "whoami", "logout", "doctor", "demo"),
    "Submissions": (
        *("check", "plan", "submit", "sweep", "submissions", "status", "logs", "cancel"),
        *("redeploy", "promote", "rollback", "deactivate", "reactivate", "teardown", "delete"),
        *("alias", "tag", "card", "prompts", "quota"),
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


class SectionedGroup(TyperGroup):
    """A group whose help has a heading for each section."""

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
