"""Renders a prompt that a developer tries out: one at a time for each, and few at once, since strangers' templates take time."""

from __future__ import annotations

import asyncio

from guanaco.errors import BadPrompt, InvalidInput, MissingFile, PromptFailed, TooManyAttempts
from guanaco.trials import PromptTrial, RenderedPrompt, default_budget
from guanaco_server.accounts.service import Account
from guanaco_server.prompts.sample import SAMPLE
from guanaco_server.prompts.service import CORRECT_IT, PromptService, is_by_chat_template
from guanaco_server.submissions.service import SubmissionService
from guanaco_server.tokenization.service import Tokenizers

AT_ONCE = 2  # for all developers
RETRY_S = 1.0


class PromptTrials:
    def __init__(
        self, submissions: SubmissionService, prompts: PromptService, tokenizers: Tokenizers
    ) -> None:
        self._submissions = submissions
        self._prompts = prompts
        self._tokenizers = tokenizers
        self._places = asyncio.Semaphore(AT_ONCE)
        self._busy: set[str] = set()

    async def render(self, account: Account, trial: PromptTrial) -> RenderedPrompt:
        """Render the prompt that a model would get. It is checked as a submission's is, before it is rendered.

        Raises:
            SubmissionNotFound: The submission is none of the account's.
            InvalidInput: There is neither a formatter nor a submission, or nothing is serialized yet.
            BadChatTemplate, BadPrompt, MissingFile, MessageTooLong: What a submission would fail with.
            TooManyAttempts: Another trial of this account is not done yet.
        """
        if account.id in self._busy:
            raise TooManyAttempts(RETRY_S)
        self._busy.add(account.id)
        try:
            async with self._places:
                return await self._render(account, trial)
        finally:
            self._busy.discard(account.id)

    async def _render(self, account: Account, trial: PromptTrial) -> RenderedPrompt:
        formatter, key = trial.formatter, SAMPLE
        budget = trial.max_input_tokens or default_budget()
        if trial.submission is not None:
            submission_id = await self._submissions.aliases.resolve(account, trial.submission)
            submission = await self._submissions.require_visible(account, submission_id)
            if submission.artifact_key is None:
                raise InvalidInput(
                    f"{submission.id} is not serialized yet, so it has no tokenizer.",
                    hint="Try the prompt without a submission, or wait until it is.",
                )
            formatter, key = formatter or submission.formatter, submission.artifact_key
            budget = trial.max_input_tokens or submission.params.max_input_tokens
        if formatter is None:
            raise InvalidInput("There is nothing to render: give a formatter, or a submission.")
        if key == SAMPLE and is_by_chat_template(formatter):
            raise MissingFile(
                "This prompt goes through the model's chat template.",
                hint="Name a submission of that model.",
            )
        try:
            await self._prompts.check_served(formatter, key, trial.bot)
        except PromptFailed as error:
            raise BadPrompt(error.detail, hint=CORRECT_IT) from None
        prompt = await self._prompts.render(
            formatter=formatter,
            artifact_key=key,
            max_input_tokens=budget,
            bot=trial.bot,
            user_name=trial.user_name,
            turns=trial.turns,
        )
        tokens = await self._tokenizers.whole(key, prompt)
        return RenderedPrompt(prompt=prompt, tokens=tokens, max_input_tokens=budget)
