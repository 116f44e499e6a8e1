"""A fixed text, by whose log-probabilities two ways of serving one model are compared.

Perplexity is exp(-1/(n-1) · Σ log p(token i | tokens before i)) over a text's tokens 2 to n; Jelinek, Mercer,
Bahl and Baker, "Perplexity, a measure of the difficulty of speech recognition tasks", 1977. Only the ratio of
two says something: both are of the same text, in the same tokens. The text was written for Guanaco and has about
300 tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from guanaco_server.deployments.deployment import Deployment
from guanaco_server.tokenization.service import Tokenizers

SPARE_TOKENS = 8  # for special tokens, and for the one that vLLM insists on generating


class FixedText:
    def __init__(self, tokenizers: Tokenizers) -> None:
        self._tokenizers = tokenizers

    async def within(self, deployment: Deployment) -> str:
        """Return the text, cut to what the model server has room for."""
        room = deployment.max_model_tokens - SPARE_TOKENS
        end = await self._tokenizers.characters_of(deployment.artifact_key, TEXT, room)
        return TEXT[:end]


def perplexity(logprobs: Sequence[float]) -> float:
    """Infinite where it is too large for a float."""
    try:
        return math.exp(-math.fsum(logprobs) / len(logprobs))
    except OverflowError:
        return math.inf


TEXT = """\
The ferry left the island at six in the morning, when the harbour was still grey and the gulls had not begun to \
quarrel. Marta stood at the rail with a paper cup of coffee and watched the lighthouse grow small. She had kept it \
for eleven years, and now a machine the size of a suitcase did the same work without sleeping, without complaining \
about the cold, and without writing down the names of the ships that went by.

"You could have stayed," said the boy who sold the tickets. "They would have let you live there."

"A house without work is only a house," she answered. She took a notebook out of her coat and opened it on the last \
page. There were three columns: the date, the weather and the ship. In the first years she had written only what was \
necessary. Later she had added other things: a seal on the rocks, a letter from her sister, the taste of the first \
tomato that ever ripened on the south side of the tower.

The boy read a few lines over her shoulder. He asked why she had counted the ships at all, since nobody had told her \
to. Marta thought about it until the engine changed its note and the mainland came out of the mist. If you look at \
the same water every day, she told him, you have to decide whether you see the same thing each time or something new. \
Counting was how she had decided. Then she gave him the notebook, because two pages were empty, and because the next \
ferry would leave at noon.
"""
