"""Stored prompts over HTTP."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from guanaco.accounts import Role
from guanaco.forms import AccountName, Slug
from guanaco.stored_prompts import (
    LabelMove,
    PromptLabel,
    PromptPush,
    PromptVersion,
    StoredPrompt,
)
from guanaco_server.accounts.auth import Auth
from guanaco_server.accounts.service import Account
from guanaco_server.http.routes import Routes
from guanaco_server.submissions.stored_prompts.labels import PromptLabels
from guanaco_server.submissions.stored_prompts.service import PromptStore

Developer = Annotated[
    AccountName | None, Query(description="Another developer's name; admins only.")
]


def router(store: PromptStore, labels: PromptLabels, auth: Auth) -> Routes:
    routes = Routes(prefix="/api/v1/prompts", tags=["prompts"])
    owner = auth.require(Role.DEVELOPER)

    @routes.post("", status_code=201)
    async def push_prompt(push: PromptPush, account: Account = owner) -> PromptVersion:
        """Store a version of a prompt. The same text as the newest version's is that version."""
        return await store.push(account, push)

    @routes.get("")
    async def list_prompts(
        developer: Developer = None, account: Account = owner
    ) -> list[StoredPrompt]:
        return await store.list_all(account, developer)

    @routes.get("/{name}")
    async def read_prompt(
        name: Slug, developer: Developer = None, account: Account = owner
    ) -> StoredPrompt:
        """Return a prompt's labels and newest versions."""
        return await store.get(account, name, developer)

    @routes.delete("/{name}", status_code=204)
    async def delete_prompt(
        name: Slug, developer: Developer = None, account: Account = owner
    ) -> None:
        """Delete a prompt with all versions. Submissions that name a version keep what they have; a label that is followed is in the way."""
        await store.delete(account, name, developer)

    @routes.get("/{name}/versions/{version}")
    async def read_prompt_version(
        name: Slug, version: Slug, developer: Developer = None, account: Account = owner
    ) -> PromptVersion:
        """Return one version with its text, by its number or by a label."""
        return await store.version(account, name, version, developer)

    @routes.put("/{name}/labels/{label}")
    async def move_prompt_label(
        name: Slug,
        label: Slug,
        move: LabelMove,
        developer: Developer = None,
        account: Account = owner,
    ) -> PromptLabel:
        """Have a label name a version. Every submission that follows it has that version within a second, without a redeploy."""
        return await labels.move(account, name, label, move, developer)

    @routes.delete("/{name}/labels/{label}", status_code=204)
    async def remove_prompt_label(
        name: Slug, label: Slug, developer: Developer = None, account: Account = owner
    ) -> None:
        await store.remove_label(account, name, label, developer)

    return routes
