"""Enums to which later versions of Guanaco may add members. Imports pydantic only when pydantic asks."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Self, cast

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, ValidationInfo
    from pydantic_core import CoreSchema

TOLERANT = {"guanaco": "tolerant"}  # pydantic's validation context while a contract.Reader reads
UNKNOWN = "UNKNOWN"  # the name of every member that this version does not know


class OpenEnum(StrEnum):
    """A word of the contract. ``Status("new")`` is a ValueError, ``Status.read("new")`` an unknown member.

    An unknown member keeps its text, equals no known member, and is not listed by the class.
    """

    @property
    def is_unknown(self) -> bool:
        """True if this version does not know the member."""
        return self._name_ == UNKNOWN

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the member with this value, or an unknown one."""
        known = _members(cls).get(text)
        return cast(Self, known if known is not None else _unknown_member(cls, text))

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return (type(self).read, (self.value,))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.with_info_wrap_validator_function(cls._validate, handler(source))

    @classmethod
    def _validate(
        cls, value: Any, validate: Callable[[Any], OpenEnum], info: ValidationInfo
    ) -> OpenEnum:
        """Take a member as it is, unknown ones too; refuse unknown text unless a Reader reads."""
        if isinstance(value, cls):
            return value
        if info.context is TOLERANT and isinstance(value, str):
            return cls.read(value)
        return validate(value)


@cache
def _members(kind: type[OpenEnum]) -> dict[str, OpenEnum]:
    return {member.value: member for member in kind}


@lru_cache(maxsize=1024)
def _unknown_member(kind: type[OpenEnum], text: str) -> OpenEnum:
    member = str.__new__(kind, text)
    member._name_ = UNKNOWN
    member._value_ = text
    return member


def spoken(word: str) -> str:
    """Write a value as people say it: ``torn_down`` as ``torn down``."""
    return word.replace("_", " ")
