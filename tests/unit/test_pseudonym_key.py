"""The same pseudonym key gives the same pseudonyms, wherever it is given."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from guanaco.errors import InvalidSettings
from guanaco_server.assembly.platform import pseudonym_key_of
from guanaco_server.backups.making import pseudonym_key
from guanaco_server.feedback.copies import Pseudonyms
from guanaco_server.runtime.data_dir import PSEUDONYM_KEY, DataDir
from guanaco_server.settings import Settings


def _pseudonym(folder: Path, given: str | None = None) -> str:
    settings = Settings(data_dir=folder, pseudonym_key=SecretStr(given) if given else None)
    key = pseudonym_key_of(settings, DataDir(folder))
    assert pseudonym_key(settings) == key, "a backup takes another one"
    return Pseudonyms(key).seen_by("developer", "app\nuser")


@pytest.mark.parametrize("end", ["", "\n", "\r\n"], ids=["bare", "line", "windows"])
def test_generated_key_may_move_to_the_setting(tmp_path: Path, end: str) -> None:
    made = _made(tmp_path)
    text = (tmp_path / PSEUDONYM_KEY).read_text()
    assert _pseudonym(tmp_path / "none", f"hex:{text}{end}") == made


def test_a_setting_is_read_as_the_version_before_read_it(tmp_path: Path) -> None:
    for text in ("correct horse battery staple", "ab12" * 16, "ab12\n"):
        settings = Settings(data_dir=tmp_path, pseudonym_key=SecretStr(text))
        assert pseudonym_key_of(settings, DataDir(tmp_path)) == text.encode()


@pytest.mark.parametrize("is_made", [True, False], ids=["made", "given"])
def test_a_gateway_process_is_lent_the_same_key(tmp_path: Path, is_made: bool) -> None:
    if not is_made:
        (tmp_path / PSEUDONYM_KEY).write_text("ab12" * 16)
    DataDir(tmp_path).lend_key(tmp_path / "gateway")
    assert _pseudonym(tmp_path / "gateway") == _pseudonym(tmp_path)


@pytest.mark.parametrize("text", ["hex:", "hex:xyz", ""], ids=["nothing", "no-digits", "empty"])
def test_a_setting_without_a_key_is_refused(tmp_path: Path, text: str) -> None:
    settings = Settings(data_dir=tmp_path, pseudonym_key=SecretStr(text))
    with pytest.raises(InvalidSettings, match="GUANACO_PSEUDONYM_KEY is"):
        pseudonym_key_of(settings, DataDir(tmp_path))


def test_a_file_that_is_not_hexadecimal_is_refused(tmp_path: Path) -> None:
    (tmp_path / PSEUDONYM_KEY).write_text("correct horse")
    with pytest.raises(InvalidSettings, match="not hexadecimal"):
        DataDir(tmp_path).pseudonym_key()


def test_an_empty_file_is_no_key(tmp_path: Path) -> None:
    (tmp_path / PSEUDONYM_KEY).touch()
    with pytest.raises(InvalidSettings, match="is empty"):
        DataDir(tmp_path).pseudonym_key()


def test_a_key_without_room_is_made_at_the_next_start(tmp_path: Path) -> None:
    with no_room(), pytest.raises(OSError, match="File too large"):
        DataDir(tmp_path).pseudonym_key()
    assert list(tmp_path.iterdir()) == []
    assert len(DataDir(tmp_path).pseudonym_key()) == 32


@contextmanager
def no_room() -> Iterator[None]:
    """Let this process write nothing into files."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def _made(folder: Path) -> str:
    DataDir(folder).pseudonym_key()
    return _pseudonym(folder)
