"""Whether a submission's prompt can be made at all, before any weights are downloaded."""

from __future__ import annotations

from guanaco.bots import BOTS
from guanaco.errors import BadPrompt, ModelTooLarge, PromptFailed
from guanaco.prompts import Prompt
from guanaco_server.artifacts.checks import CheckedModel
from guanaco_server.artifacts.hub.hub import Hub, RepoSnapshot
from guanaco_server.prompts.chat_templates import FILES
from guanaco_server.prompts.service import PromptService, is_by_chat_template

MAX_BYTES = 4_000_000  # Gemma 3's tokenizer_config.json has 1.2 MB


async def check_prompt(
    hub: Hub, snapshot: RepoSnapshot, model: CheckedModel, prompts: PromptService, formatter: Prompt
) -> None:
    """MissingFile for a chat template that the repo lacks, BadChatTemplate or BadPrompt for what cannot be rendered."""
    files = {}
    if is_by_chat_template(formatter):
        files = await _template_files(hub, _tokenizers_repo(snapshot, model))
    try:
        await prompts.check(formatter, files, next(iter(BOTS.values())))
    except PromptFailed as error:
        raise BadPrompt(
            error.detail,
            hint="Submit with another prompt; `guanaco prompt render` tries one without submitting it.",
        ) from None


def _tokenizers_repo(snapshot: RepoSnapshot, model: CheckedModel) -> RepoSnapshot:
    """An adapter's own, if it brings a tokenizer; else its base's."""
    if model.base is None or (model.adapter and model.adapter.small_files):
        return snapshot
    return model.base


async def _template_files(hub: Hub, snapshot: RepoSnapshot) -> dict[str, bytes]:
    files = {}
    for name in FILES:
        file = snapshot.file(name)
        if file is None:
            continue
        if file.size_bytes > MAX_BYTES:
            raise ModelTooLarge(f"{name} has {file.size_bytes:,} bytes; {MAX_BYTES:,} are allowed.")
        files[name] = await hub.read(snapshot, name, 0, file.size_bytes)
    return files
