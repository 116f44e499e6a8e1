"""The demo's journey through the SDK: a developer submits, a user talks and rates, the developer reads; each step is shown."""

from __future__ import annotations

import time
from collections.abc import Sequence

from guanaco.accounts import Role
from guanaco.bots import BOTS
from guanaco.chat import Bot, ConversationOpened, Reply
from guanaco.client import Client
from guanaco.errors import GuanacoError, NoModelAvailable
from guanaco.feedback import Feedback
from guanaco.leaderboard import Leaderboard
from guanaco.submissions import Status, Submission
from guanaco_cli import words
from guanaco_cli.console import BOLD, GREEN, console
from guanaco_cli.demo.running_platform import RunningPlatform
from guanaco_cli.demo.timings import DemoReply, DemoTimings, Journey, rows_of
from guanaco_cli.feedback import print_feedback
from guanaco_cli.leaderboard import print_leaderboard
from guanaco_cli.progress import stage_progress

BOT = BOTS["marlowe"]
USER = "Sam"
USER_SAYS = "No geese. Where are we going?"
RATING = "She made me laugh, even without making sense."
ASSIGNMENT_PATIENCE_S = 15  # the router learns of a new model within a second or two
POLL_S = 0.2
RANKED_WITHIN_S = 10
RANKED_POLL_S = 0.1


def new_client(platform: RunningPlatform, role: Role, name: str) -> Client:
    """Return a client with a fresh key of that role."""
    with Client(platform.url, platform.admin_key) as admin:
        return Client(platform.url, admin.create_key(name, role).key)


def walk(developer: Client, backend: Client, repo: str, output: DemoOutput) -> Journey:
    """Submit, talk, rate, and read the rating back. Raise the first error."""
    started = time.perf_counter()
    output.show_submit(repo)
    submission = output.follow(developer, developer.submit(repo).id)
    _require_live(submission)
    live_after_s = time.perf_counter() - started
    first_reply = _talk(backend, output)
    replied_after_s = time.perf_counter() - started
    backend.rate(first_reply.conversation_id, True, RATING)
    feedback = list(developer.feedback(first_reply.submission_id))
    feedback_after_s = time.perf_counter() - started
    _require_rating(feedback, first_reply)
    return Journey(
        submission=submission,
        report=developer.stress(submission.id),
        first_reply=first_reply,
        feedback=feedback,
        leaderboard=_leaderboard_with(developer, first_reply.submission_id),
        live_after_s=live_after_s,
        replied_after_s=replied_after_s,
        feedback_after_s=feedback_after_s,
    )


def _leaderboard_with(developer: Client, submission_id: str) -> Leaderboard:
    """Return the leaderboard once it shows the rating, or as it is after RANKED_WITHIN_S."""
    deadline = time.monotonic() + RANKED_WITHIN_S
    while True:
        board = developer.leaderboard()
        ratings = {row.submission_id: row.feedback_count for row in board.rows}
        if ratings.get(submission_id) or time.monotonic() > deadline:
            return board
        time.sleep(RANKED_POLL_S)


def _require_live(submission: Submission) -> None:
    if submission.status is not Status.DEPLOYED:
        failure = submission.failure
        reason = failure.detail if failure else f"It is {words.spoken(submission.status)}."
        raise GuanacoError(
            f"{submission.id} did not come live: {reason}", hint=failure.hint if failure else None
        )


def _talk(backend: Client, output: DemoOutput) -> DemoReply:
    opened = _open_conversation(backend)
    output.show_talk(BOT, USER, USER_SAYS)
    for item in backend.stream_send(opened.conversation_id, USER_SAYS):
        if isinstance(item, Reply):
            output.end_reply()
            return DemoReply(opened.conversation_id, opened.submission_id, item)
        output.piece(item.text)
    raise AssertionError("a reply's stream ends with the reply, or raises")


def _open_conversation(backend: Client) -> ConversationOpened:
    deadline = time.monotonic() + ASSIGNMENT_PATIENCE_S
    while True:
        try:
            return backend.open_conversation("demo-user", BOT, consent=True, user_name=USER)
        except NoModelAvailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)


def _require_rating(feedback: list[Feedback], first_reply: DemoReply) -> None:
    if not any(
        one.conversation_id == first_reply.conversation_id and one.text == RATING
        for one in feedback
    ):
        raise GuanacoError("The rating did not come back to the developer.")


class DemoOutput:
    """Shows each step. With ``is_talk`` everything goes to stderr, so that stdout is free for JSON."""

    def __init__(self, *, is_verbose: bool, is_talk: bool) -> None:
        self._is_verbose = is_verbose
        self._is_talk = is_talk

    def show_submit(self, repo: str) -> None:
        console.say(f"\nA developer submits {repo}:", style=BOLD)

    def follow(self, client: Client, submission_id: str) -> Submission:
        """Show the stages live, and return the submission at their end."""
        with stage_progress(is_verbose=self._is_verbose) as progress:
            return client.wait(submission_id, progress.show)

    def show_talk(self, bot: Bot, user: str, content: str) -> None:
        console.say("\nA user of the app talks to it:", style=BOLD)
        self._line(f"{bot.name}: {bot.first_message}")
        self._line(f"{user}: {content}")
        self.piece(f"{bot.name}: ")

    def piece(self, text: str) -> None:
        console.piece(text, is_talk=self._is_talk)

    def end_reply(self) -> None:
        self._line("")

    def show_feedback(self, feedback: Sequence[Feedback], leaderboard: Leaderboard) -> None:
        console.say("\nThe user rates it, and the developer reads:", style=BOLD)
        print_feedback(feedback, is_talk=self._is_talk)
        console.say("The leaderboard:", style=BOLD)
        print_leaderboard(leaderboard, is_talk=self._is_talk)

    def show_timings(self, figures: DemoTimings) -> None:
        console.say("How long it took:", style=BOLD)
        console.table(("what", "took>"), rows_of(figures), is_talk=self._is_talk)
        console.say("All of it worked.", style=GREEN)

    def _line(self, text: str) -> None:
        self.piece(f"{text}\n")
