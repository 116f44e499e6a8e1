"""Says what the demo does while it does it."""

from __future__ import annotations

from collections.abc import Sequence

from guanaco.chat import Bot
from guanaco.client import Client
from guanaco.feedback import Feedback
from guanaco.leaderboard import Leaderboard
from guanaco.submissions import Submission
from guanaco_cli.console import BOLD, GREEN, console
from guanaco_cli.demo.figures import Figures, rows_of
from guanaco_cli.feedback import print_feedback
from guanaco_cli.leaderboard import print_leaderboard
from guanaco_cli.progress import stage_progress


class Narrator:
    """With ``is_talk`` all of it goes to stderr, so that stdout is free for JSON."""

    def __init__(self, *, is_verbose: bool, is_talk: bool) -> None:
        self._is_verbose = is_verbose
        self._is_talk = is_talk

    def submits(self, repo: str) -> None:
        console.say(f"\nA developer submits {repo}:", style=BOLD)

    def follow(self, client: Client, submission_id: str) -> Submission:
        """Show the stages live; the submission at their end."""
        with stage_progress(is_verbose=self._is_verbose) as progress:
            return client.wait(submission_id, progress.show)

    def talks(self, bot: Bot, user: str, content: str) -> None:
        console.say("\nA user of the app talks to it:", style=BOLD)
        self._line(f"{bot.name}: {bot.first_message}")
        self._line(f"{user}: {content}")
        self.says(f"{bot.name}: ")

    def says(self, text: str) -> None:
        console.piece(text, is_talk=self._is_talk)

    def ends_reply(self) -> None:
        self._line("")

    def reads(self, feedback: Sequence[Feedback], leaderboard: Leaderboard) -> None:
        console.say("\nThe user rates it, and the developer reads:", style=BOLD)
        print_feedback(feedback, is_talk=self._is_talk)
        console.say("The leaderboard:", style=BOLD)
        print_leaderboard(leaderboard, is_talk=self._is_talk)

    def counts(self, figures: Figures) -> None:
        console.say("How long it took:", style=BOLD)
        console.table(("what", "took>"), rows_of(figures), is_talk=self._is_talk)
        console.say("All of it worked.", style=GREEN)

    def _line(self, text: str) -> None:
        self.says(f"{text}\n")
