"""Whether a reward model that is served gives scores that can be used.

    numbers        every score is finite
    not constant   different replies to one conversation get different scores

Whoever fails one is told which, with the scores.
"""

from __future__ import annotations

import asyncio

from guanaco.errors import ContentCheckFailed, ModelServerDied
from guanaco_server.deployments.model_server import ModelServer, ModelServerFault, NotANumber
from guanaco_server.deployments.reward_score import reward_score

CONVERSATION = "You: Hi! How was your day?\nLuna:"
REPLIES = (
    " It was lovely, I walked along the sea.",
    " no",
    " Luna Luna Luna Luna",
    " Why do you ask?",
)
TEXTS = tuple(CONVERSATION + reply for reply in REPLIES)


async def check_scores(
    model_server: ModelServer, endpoint: str, model: str, deadline_s: float
) -> list[str]:
    """What was found, by check; ContentCheckFailed, or ModelServerDied where it cannot score at all."""
    try:
        async with asyncio.timeout(deadline_s):
            logits = await model_server.classify(endpoint, model, TEXTS)
    except NotANumber as fault:
        raise ContentCheckFailed(
            f"Content check `numbers` failed: {fault}",
            hint="The weights hold NaN, or overflow in their type: --dtype bfloat16 has a wider range than float16.",
        ) from None
    except ModelServerFault as fault:
        raise ModelServerDied(f"The model server is up but cannot score: {fault}") from None
    except TimeoutError:
        raise ContentCheckFailed(
            f"Content check `ends` failed: {len(TEXTS)} replies were not scored within {deadline_s:g} s.",
            hint="Submit a smaller reward model.",
        ) from None
    scores = [reward_score(each) for each in logits]
    shown = ", ".join(f"{score:.4g}" for score in scores)
    if len(set(scores)) == 1:
        raise ContentCheckFailed(
            f"Content check `not constant` failed: {len(scores)} different replies all have the score {scores[0]:.4g}.",
            hint="The head was not trained, or its weights were lost when the model was saved.",
        )
    return [
        f"Content check `numbers` passed: the scores of {len(scores)} replies are {shown}.",
        f"Content check `not constant` passed: {len(set(scores))} of the scores are different.",
    ]
