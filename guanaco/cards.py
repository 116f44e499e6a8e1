"""A model card: what a repo's README.md says of its model, at the commit that was submitted."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ModelCard(BaseModel):
    """``text`` is Markdown that a stranger wrote. Links may lead anywhere, and images are not to be loaded."""

    model_config = ConfigDict(frozen=True)

    text: str = Field(description="The Markdown without its front matter, cut where it is long.")
    is_cut: bool = False
    license: str | None = Field(default=None, description="The name in the front matter.")
    base_models: tuple[str, ...] = Field(default=(), description="The names in the front matter.")
    tags: tuple[str, ...] = ()
