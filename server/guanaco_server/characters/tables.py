"""Characters, their versions, and the files of these."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, ForeignKeyConstraint, Index, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from guanaco.characters import CardSpec, CharacterTexts
from guanaco_server.database.tables import Table
from guanaco_server.database.types import EnumText, JsonColumn, Pydantic, UtcDateTime


class CharacterRow(Table):
    """A character. ``newest`` is the number of its newest version, of which lists show ``name`` to ``has_picture``.

    ``size_bytes`` is what all versions take.
    """

    __tablename__ = "characters"
    __table_args__ = (
        Index("ix_characters_account_id_created_at_id", "account_id", "created_at", "id"),
        Index("ix_characters_is_public_created_at_id", "is_public", "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"))
    owner: Mapped[str] = mapped_column(String(64))
    newest: Mapped[int]
    name: Mapped[str] = mapped_column(String(64))
    tags: Mapped[list[str]] = mapped_column(JsonColumn)
    greetings: Mapped[int]
    has_picture: Mapped[bool]
    is_public: Mapped[bool] = mapped_column(default=False)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class CharacterVersionRow(Table):
    """A version, which never changes. ``card`` is the JSON as it came, ``texts`` what this platform reads in it.

    ``files`` lists the path, hash and size of each file; ``picture`` is the hash of the one to show.
    """

    __tablename__ = "character_versions"

    character_id: Mapped[str] = mapped_column(ForeignKey("characters.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    spec: Mapped[CardSpec] = mapped_column(EnumText(CardSpec))
    card: Mapped[str] = mapped_column(deferred=True)  # up to a megabyte, which exports alone read
    texts: Mapped[CharacterTexts] = mapped_column(Pydantic(CharacterTexts))
    files: Mapped[list[dict[str, Any]]] = mapped_column(JsonColumn)
    picture: Mapped[str | None] = mapped_column(String(64))
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class CharacterFileRow(Table):
    """A file's bytes, once for all versions of a character that have it."""

    __tablename__ = "character_files"
    __table_args__ = (
        ForeignKeyConstraint(
            ["character_id"], ["characters.id"], name="fk_character_files_character_id_characters"
        ),
    )

    character_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    content: Mapped[bytes] = mapped_column(LargeBinary)
