"""Models of a repo's check: the findings of the first two stages, without a submission."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from guanaco.submissions import Failure


class RepoCheck(BaseModel):
    """``failure`` is what a submission would have failed with; None where it would go on to be serialized."""

    model_config = ConfigDict(protected_namespaces=())

    repo: str
    commit: str | None = Field(description="Null if the repo was not found.")
    failure: Failure | None
    architecture: str | None = None
    parameter_count: int | None = None
    weight_bytes: int | None = None
    base_repo: str | None = Field(
        default=None, description="For a LoRA adapter: the repo of the model under it."
    )
    base_commit: str | None = None

    @property
    def is_passed(self) -> bool:
        return self.failure is None
