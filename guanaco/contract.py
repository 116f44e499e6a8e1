"""Strict when asked, tolerant when read: how the contract's models meet another version of Guanaco.

A request is validated as pydantic does it: an unknown field or word is refused with a sentence. Rows, files and
answers, which another version may have written, are read with a ``Reader``:

- An unknown field is ignored, or kept in ``model_extra``: ``to_stored`` then writes it back, so that a process that
  rewrites a row loses nothing that a newer one has put there.
- An unknown word becomes an unknown member of its ``OpenEnum``, an unknown kind of prompt an ``UnknownPrompt``.
  Each reader decides what it does with them; docs/decisions/0015-strict-when-asked-tolerant-when-read.md says what.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import lru_cache
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel, TypeAdapter, ValidationInfo
from pydantic_core import from_json

from guanaco.open_enum import TOLERANT, OpenEnum

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


def is_tolerant(info: ValidationInfo) -> bool:
    """Tell whether a validator runs for a ``Reader``."""
    return info.context is TOLERANT


class Reader(Generic[T]):
    """Reads what another version of Guanaco may have written. Raises pydantic's ValidationError."""

    def __init__(self, kind: Any, *, keeps_unknown_fields: bool = False) -> None:
        """``kind`` is a model, or any annotation that pydantic understands."""
        self.kind = kind
        self._adapter: TypeAdapter[T] = TypeAdapter(kind)
        self._keeps_unknown_fields = keeps_unknown_fields

    def from_json(self, data: str | bytes) -> T:
        if self._keeps_unknown_fields:
            return self.from_python(from_json(data))
        return self._adapter.validate_json(data, extra="ignore", context=TOLERANT)

    def from_python(self, value: Any) -> T:
        """Read the value from decoded JSON."""
        if not self._keeps_unknown_fields:
            return self._adapter.validate_python(value, extra="ignore", context=TOLERANT)
        found = self._adapter.validate_python(value, extra="allow", context=TOLERANT)
        _unset_empty_extra(found)
        return found


def reader(kind: type[T]) -> Reader[T]:
    """Return the reader of a model or a list of them; made once."""
    return cast(Reader[T], _reader(cast(Hashable, kind)))


def to_stored(model: BaseModel) -> dict[str, Any]:
    """Return the model as JSON, with the unknown fields that it was read with."""
    dumped = model.model_dump(mode="json")
    _add_unknown_fields(model, dumped)
    return dumped


def known_fields(model: BaseModel) -> dict[str, Any]:
    """Return the model's values by field, without unknown fields: what ``dict(model)`` gives for one that was not stored."""
    return {name: getattr(model, name) for name in type(model).model_fields}


def carry_unknown_fields(old: BaseModel, new: M) -> M:
    """``new`` with the unknown fields of ``old``, which it replaces; the same for the models within them."""
    carried: dict[str, Any] = {}
    for name in type(new).model_fields:
        before, after = getattr(old, name, None), getattr(new, name)
        if isinstance(before, BaseModel) and isinstance(after, type(before)):
            carried[name] = carry_unknown_fields(before, after)
    copied = new.model_copy(update=carried)
    extra = {**(old.model_extra or {}), **(new.model_extra or {})}
    object.__setattr__(copied, "__pydantic_extra__", extra or None)
    return copied


def without_unknown_fields(model: M) -> M:
    """Return the model with none but the fields that this version knows."""
    return reader(type(model)).from_python(model.model_dump(mode="json"))


def unknown_members(value: Any, place: str = "") -> Iterator[str]:
    """Yield the places where a model holds a word or a prompt that this version does not know: ``formatter``, ``entry.0.kind``."""
    if isinstance(value, OpenEnum):
        if value.is_unknown:
            yield place
    elif isinstance(value, BaseModel):
        if getattr(value, "is_unknown", False):
            yield place
        for name in type(value).model_fields:
            yield from unknown_members(getattr(value, name), f"{place}.{name}".lstrip("."))
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from unknown_members(key, f"{place}.{key}".lstrip("."))
            yield from unknown_members(one, f"{place}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for number, one in enumerate(value):
            yield from unknown_members(one, f"{place}.{number}".lstrip("."))


@lru_cache(maxsize=256)
def _reader(kind: Hashable) -> Reader[Any]:
    return Reader(kind)


def _add_unknown_fields(value: Any, dumped: Any) -> None:
    """Add to ``dumped``, the JSON of ``value``, what ``value`` was read with and does not know."""
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            if name in dumped:
                _add_unknown_fields(getattr(value, name), dumped[name])
        for name, extra in (value.model_extra or {}).items():
            dumped.setdefault(name, extra)
    elif isinstance(value, dict):
        for one, its_json in zip(value.values(), dumped.values(), strict=True):
            _add_unknown_fields(one, its_json)
    elif isinstance(value, list | tuple):
        for one, its_json in zip(value, dumped, strict=True):
            _add_unknown_fields(one, its_json)


def _unset_empty_extra(value: Any) -> None:
    """Make a model without unknown fields equal to the same model that was never stored."""
    if isinstance(value, BaseModel):
        if value.__pydantic_extra__ == {}:
            object.__setattr__(value, "__pydantic_extra__", None)
        for name in type(value).model_fields:
            _unset_empty_extra(getattr(value, name))
    elif isinstance(value, list | tuple):
        for one in value:
            _unset_empty_extra(one)
    elif isinstance(value, dict):
        for one in value.values():
            _unset_empty_extra(one)
