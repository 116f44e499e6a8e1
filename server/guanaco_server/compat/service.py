"""The old client's calls, each over the service that the new ones use."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime

from guanaco.chat import Reply
from guanaco.competitions import Competition
from guanaco.errors import InvalidInput, SubmissionNotFound
from guanaco.feedback import Feedback
from guanaco.submissions import Status
from guanaco_server.accounts.service import Account
from guanaco_server.chat.gateway.replies import PreviewService
from guanaco_server.compat import translation
from guanaco_server.compat.schemas import (
    ChatReply,
    ChatRequest,
    OldLeaderboardRow,
    OldSubmission,
    OldSubmissionInfo,
    SubmitRequest,
    Submitted,
)
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.feedback.service import FeedbackService
from guanaco_server.leaderboard.service import LeaderboardService
from guanaco_server.statistics.votes import VoteCount
from guanaco_server.submissions.runs.events import EventFeed
from guanaco_server.submissions.service import SubmissionService


@dataclass(frozen=True)
class OldClientService:
    submissions: SubmissionService
    events: EventFeed
    previews: PreviewService
    feedback: FeedbackService
    leaderboard: LeaderboardService
    competitions: CompetitionService

    async def submit(self, account: Account, request: SubmitRequest) -> Submitted:
        reward = await self._reward_of(account, request.reward_repo)
        asked = translation.submission_request(request, reward)
        made = await self.submissions.submit(account, asked, None)
        return Submitted(submission_id=made.id)

    async def list_own(self, account: Account) -> dict[str, OldSubmission]:
        own = await self.submissions.list_own(account)
        repos = await self._reward_repos()
        return {one.id: translation.submission(one, repos) for one in own}

    async def read(self, account: Account, submission_id: str) -> OldSubmissionInfo:
        found = await self.submissions.require_visible(account, submission_id)
        logs = [
            translation.log_entry(event)
            async for event in self.events.follow(submission_id, 0, wait=False)
            if event is not None
        ]
        old = translation.submission(found, await self._reward_repos())
        return OldSubmissionInfo(**dict(old), logs=logs)

    async def deactivate(self, account: Account, submission_id: str) -> OldSubmission:
        return translation.submission(
            await self.submissions.deactivate(account, submission_id), await self._reward_repos()
        )

    async def redeploy(self, account: Account, submission_id: str) -> OldSubmission:
        """An inactive one is still served, and only has to take conversations again."""
        found = await self.submissions.require_visible(account, submission_id)
        again = (
            self.submissions.reactivate
            if found.status is Status.INACTIVE
            else self.submissions.redeploy
        )
        return translation.submission(
            await again(account, submission_id), await self._reward_repos()
        )

    async def teardown(self, account: Account, submission_id: str) -> OldSubmission:
        """One that is still on its way is cancelled, for which the old client has no call."""
        found = await self.submissions.require_visible(account, submission_id)
        end = self.submissions.cancel if found.status.is_in_progress else self.submissions.teardown
        return translation.submission(await end(account, submission_id), await self._reward_repos())

    async def evaluate(self, account: Account, submission_id: str) -> OldSubmission:
        """Nothing to start: users rate whatever is deployed, and its metrics are always current."""
        found = await self.submissions.require_visible(account, submission_id)
        return translation.submission(found, await self._reward_repos())

    async def chat(self, account: Account, submission_id: str, request: ChatRequest) -> ChatReply:
        preview = translation.preview_request(request)
        async with aclosing(await self.previews.preview(account, submission_id, preview)) as events:
            async for event in events:
                if isinstance(event, Reply):
                    return ChatReply(model_output=event.content, model_input=event.prompt or "")
        raise AssertionError("a reply ends with a Reply or an error")

    async def ranked(
        self, since: datetime | None, until: datetime | None
    ) -> dict[str, OldLeaderboardRow]:
        """Best first. With a window, the thumbs are those given in it, without those that rules leave out."""
        board = await self.leaderboard.leaderboard()
        all_of_them = {one.id: one for one in await self.submissions.catalog.list_all()}
        repos = await self._reward_repos()
        votes = {row.submission_id: VoteCount(row.thumbs_up, row.thumbs_down) for row in board.rows}
        if since is not None or until is not None:
            votes = await self.leaderboard.votes_between(since, until)
        rows = {}
        for row in board.rows:
            cast = votes.get(row.submission_id, VoteCount(0, 0))
            rows[row.submission_id] = translation.leaderboard_row(
                row, cast.up, cast.down, all_of_them.get(row.submission_id), repos
            )
        return rows

    async def read_feedback(self, account: Account, submission_id: str) -> AsyncIterator[bytes]:
        """One JSON object, in pieces; an empty one for a submission that the caller does not own."""
        try:
            found = await self.submissions.require_visible(account, submission_id)
            items = await self.feedback.stream(account, submission_id)
        except SubmissionNotFound:
            return _feedback_object(_nothing(), "")
        return _feedback_object(items, found.name)

    async def _reward_of(self, account: Account, repo: str | None) -> str | None:
        """Return the caller's newest live reward model of that repo; InvalidInput where there is none."""
        if repo is None:
            return None
        for one in await self.submissions.catalog.list_rewards():
            is_own = one.developer == account.name
            if is_own and one.repo == repo and one.status in (Status.DEPLOYED, Status.INACTIVE):
                return one.id
        raise InvalidInput(
            f"You have no live reward model of {repo}.",
            hint=f"`guanaco submit {repo} --kind reward` makes one; then submit this again.",
        )

    async def _reward_repos(self) -> dict[str, str]:
        """Return the repo of each reward model, by its id."""
        return {one.id: one.repo for one in await self.submissions.catalog.list_rewards()}

    async def list_competitions(self) -> list[Competition]:
        return await self.competitions.list_all()


async def _nothing() -> AsyncIterator[Feedback]:
    return
    yield  # an iterator, and an empty one


async def _feedback_object(items: AsyncIterator[Feedback], model_name: str) -> AsyncIterator[bytes]:
    """Written rating by rating, so that memory does not grow with them."""
    conversations = translation.ConversationIds()
    counts = {True: 0, False: 0}
    yield b'{"feedback": {'
    async for item in items:
        conversation_id = conversations.of(item)
        comma = "," if any(counts.values()) else ""
        counts[item.thumbs_up] += 1
        key = json.dumps(translation.feedback_id(conversation_id, item.at))
        value = translation.feedback(item, conversation_id, model_name).model_dump_json()
        yield f"{comma}{key}: {value}".encode()
    yield f'}}, "thumbs_up": {counts[True]}, "thumbs_down": {counts[False]}}}'.encode()
