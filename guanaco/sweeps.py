"""Sweeps: variants of one repo, each a submission, entered together; and the file that describes them.

    sweep.yaml ──SweepFile.expand──▶ SweepRequest (a list of whole submissions) ──POST /sweeps──▶ Sweep

The variants of a sweep are checked and serialized once, and those that differ only in what a request carries share a
model server. A sweep counts once against its developer's quota.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from guanaco.errors import GuanacoError, InvalidInput
from guanaco.errors.validation import one_sentence
from guanaco.forms import OneLine, Repo, Revision
from guanaco.parameters import GenerationParams
from guanaco.submissions import (
    Quantization,
    Status,
    Submission,
    SubmissionKind,
    SubmissionRequest,
    WeightDtype,
)
from guanaco.yaml_files import parse_yaml, unreadable

if TYPE_CHECKING:
    from guanaco.prompts import Prompt

MAX_VARIANTS = 64
MAX_NAME_CHARS = 64
MAX_FILE_BYTES = 1_000_000
FORMATTERS = ("formatter", "reward_formatter")
CHOICES = (*FORMATTERS, "prompt", "dtype", "quantization", "reward")
PARAMETERS = tuple(GenerationParams.model_fields)
TOO_MANY = f"A sweep has at most {MAX_VARIANTS} variants"


class SweepRequest(BaseModel):
    """All variants are of one repo and revision, and each has a name of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: OneLine | None = Field(default=None, description="The repo's name otherwise.")
    variants: tuple[SubmissionRequest, ...] = Field(min_length=1, max_length=MAX_VARIANTS)

    @model_validator(mode="after")
    def _is_of_one_repo(self) -> Self:
        first = self.variants[0]
        for place, one in enumerate(self.variants):
            if (one.repo, one.revision) != (first.repo, first.revision):
                raise ValueError(f"variants.{place} is of another repo or revision than the first")
            if one.kind is not SubmissionKind.CHAT:
                raise ValueError(
                    f"variants.{place} is a reward model; a sweep has chat models only"
                )
            if one.name is None:
                raise ValueError(f"variants.{place} has no name")
        names = Counter(one.name for one in self.variants)
        if twice := [str(name) for name, times in names.items() if times > 1]:
            raise ValueError(
                f"Each variant must have a name of its own: {twice[0]!r} is there twice"
            )
        return self

    @property
    def digest(self) -> str:
        """SHA-256 over the request: the same file makes the same text."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


class Sweep(BaseModel):
    """A sweep and its submissions, in the order of the request."""

    id: str
    name: str
    developer: str
    repo: str
    revision: str | None
    created_at: datetime
    submissions: list[Submission]

    @property
    def is_in_progress(self) -> bool:
        return any(one.is_in_progress for one in self.submissions)

    def count(self, *statuses: Status) -> int:
        """Return how many of its submissions have one of the statuses."""
        return sum(one.status in statuses for one in self.submissions)


class SweepFile(BaseModel):
    """A sweep as people write it: what all variants have, and a grid, a list of variants, or both.

    The keys of ``grid`` and of each variant are generation parameters, ``formatter``, ``reward_formatter``, ``reward``,
    ``dtype`` and ``quantization``. The grid's values are combined with each other; the list's variants follow them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    repo: Repo
    revision: Revision | None = None
    name: OneLine | None = None
    names: str | None = Field(default=None, description="Template, such as `warm {temperature}`.")
    params: dict[str, Any] = {}
    formatter: Any = None
    reward_formatter: Any = None
    dtype: str | None = None
    quantization: str | None = None
    reward: str | None = None
    grid: dict[str, list[Any]] = {}
    variants: list[dict[str, Any]] = []

    def expand(self, folder: Path | None = None) -> SweepRequest:
        """Return the request for all variants. Prompt files are looked for in ``folder`` first.

        Raises:
            InvalidInput: A variant is wrong; the sentence says which, by its place in the file.
        """
        self._require_size()
        variants = [
            self._variant(number, place, values, folder)
            for number, (place, values) in enumerate(self._listed(), 1)
        ]
        try:
            return SweepRequest(name=self.name, variants=tuple(variants))
        except ValidationError as error:
            raise InvalidInput(one_sentence(error)) from None

    def _require_size(self) -> None:
        for key, values in self.grid.items():
            if not values:
                raise InvalidInput(f"grid.{key}: it has no values.")
        size = len(self.variants)
        combinations = 1 if self.grid else 0
        for values in self.grid.values():
            combinations *= len(values)
        if size + combinations == 0:
            raise InvalidInput("The sweep has no variants: it needs `grid:` or `variants:`.")
        if size + combinations > MAX_VARIANTS:
            raise InvalidInput(f"{TOO_MANY}, and this file makes {size + combinations:,}.")

    def _listed(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each variant's place in the file, and what it has of its own."""
        if self.grid:
            for values in itertools.product(*self.grid.values()):
                chosen = dict(zip(self.grid, values, strict=True))
                words = ", ".join(f"{key}={_word(value)}" for key, value in chosen.items())
                yield f"grid ({words})", chosen
        for number, given in enumerate(self.variants):
            nested = given.get("params", {})
            if not isinstance(nested, dict):
                raise InvalidInput(f"variants.{number}.params: it should map names to values.")
            own = {key: value for key, value in given.items() if key != "params"}
            yield f"variants.{number}", own | nested

    def _variant(
        self, number: int, place: str, own: dict[str, Any], folder: Path | None
    ) -> SubmissionRequest:
        given = self.model_dump(include={*CHOICES}, exclude_none=True)
        fields: dict[str, Any] = given | {k: v for k, v in own.items() if k in CHOICES}
        params = self.params | {k: v for k, v in own.items() if k in PARAMETERS}
        unknown = own.keys() - {*CHOICES, *PARAMETERS, "name"}
        if unknown:
            near = get_close_matches(min(unknown), (*CHOICES, *PARAMETERS, "name"), n=1)
            meant = f"; perhaps you mean {near[0]}" if near else ""
            raise InvalidInput(
                f"{place}: a variant cannot have {min(unknown)!r}{meant}.",
                hint=f"It may have name, {', '.join((*CHOICES, *PARAMETERS))}.",
            )
        name = own.get("name") or self._name(number, own, fields, params)
        try:
            for key in FORMATTERS:
                if fields.get(key) is not None:
                    fields[key] = _formatter(fields[key], folder)
            fields = {key: value for key, value in fields.items() if value is not None}
            return SubmissionRequest.model_validate(
                fields
                | {"repo": self.repo, "revision": self.revision, "name": name, "params": params}
            )
        except ValidationError as error:
            raise InvalidInput(f"{place}: {one_sentence(error, SubmissionRequest)}") from None
        except GuanacoError as error:
            raise InvalidInput(f"{place}: {error.detail}", hint=error.hint) from None

    def _name(
        self,
        number: int,
        own: Mapping[str, Any],
        fields: Mapping[str, Any],
        params: Mapping[str, Any],
    ) -> str:
        short = self.repo.rpartition("/")[2]
        if self.names is not None:
            known = {"repo": short, "number": number, **fields, **_defaults(), **params}
            try:
                return self.names.format_map({key: _word(value) for key, value in known.items()})
            except (KeyError, ValueError, IndexError, AttributeError):
                raise InvalidInput(
                    f"names: {self.names!r} is no template of this sweep.",
                    hint=f"It may have {{repo}}, {{number}} and the fields of a variant, such as {{{PARAMETERS[0]}}}.",
                ) from None
        changes = " ".join(f"{key}={_word(value)}" for key, value in own.items() if key != "name")
        name = f"{short} {changes}".strip()
        if len(name) <= MAX_NAME_CHARS:
            return name
        end = f" #{number}"
        return name[: MAX_NAME_CHARS - len(end)].rstrip() + end


def load_sweep(file: str | Path) -> SweepRequest:
    """Read a sweep from a YAML or JSON file.

    Args:
        file: Its path; files that it names lie beside it.

    Returns:
        The request with every variant, for `Client.submit_sweep`.

    Raises:
        InvalidInput: It cannot be read or is no sweep; its one sentence says what is wrong.
    """
    path = Path(file)
    try:
        with path.open("rb") as opened:
            raw = opened.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            raise InvalidInput(f"{path} is over {MAX_FILE_BYTES:,} bytes.")
        described = SweepFile.model_validate(parse_yaml(raw))
    except ValidationError as error:
        raise InvalidInput(f"{path}: {one_sentence(error, SweepFile)}") from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise unreadable(path, error) from None
    try:
        return described.expand(path.parent)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error.detail}", hint=error.hint) from None


def engines_of(request: SweepRequest) -> int:
    """Return how many model servers the variants need, where all fit into one kind of GPU."""
    return len({engine_of(one.dtype, one.quantization, one.params) for one in request.variants})


def engine_of(
    dtype: WeightDtype, quantization: Quantization | None, params: GenerationParams
) -> tuple[WeightDtype, Quantization | None, int]:
    """Return what tells apart the model servers of one repo's variants."""
    return dtype, quantization, params.max_input_tokens + params.max_output_tokens


def _defaults() -> dict[str, Any]:
    return GenerationParams().model_dump()


def _formatter(given: Any, folder: Path | None) -> Prompt | dict[str, Any]:
    """A prompt that is written out stays as it is; a text names a preset or a file."""
    from guanaco.formatters import load_formatter
    from guanaco.prompts import PRESETS

    if isinstance(given, dict):
        return given
    if not isinstance(given, str):
        raise InvalidInput("formatter: it should be a preset, a file or a mapping.")
    beside = folder / given if folder is not None else Path(given)
    if given not in PRESETS and beside.is_file():
        return load_formatter(beside)
    return load_formatter(given)


def _word(value: Any) -> str:
    """Return a value as it stands in a name, on one line."""
    if isinstance(value, str):
        return Path(value).stem if value.endswith((".json", ".yaml", ".yml")) else value
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        return "inline " + hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()[:6]
    return json.dumps(value, ensure_ascii=False, default=str)
