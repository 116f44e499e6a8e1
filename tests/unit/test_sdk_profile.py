from __future__ import annotations

from pathlib import Path

import pytest

from guanaco.client import Client
from guanaco.errors import InvalidSettings
from guanaco.profile import DEFAULT_URL, Profile, profile_path

STORED = Profile("http://stored.test", "stored-key")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    STORED.save(tmp_path / "profile.json")
    return {"GUANACO_PROFILE": str(tmp_path / "profile.json")}


def test_a_profile_comes_back_as_it_was_stored(environ: dict[str, str]) -> None:
    assert Profile.load(environ) == STORED


def test_without_a_file_it_is_the_server_on_this_machine(tmp_path: Path) -> None:
    assert Profile.load({"GUANACO_PROFILE": str(tmp_path / "none")}) == Profile(DEFAULT_URL, None)


def test_only_its_owner_reads_the_file_and_nothing_remains(tmp_path: Path) -> None:
    path = tmp_path / "new" / "profile.json"
    STORED.save(path)
    STORED.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_a_profile_that_others_may_read_is_refused(environ: dict[str, str]) -> None:
    path = profile_path(environ)
    path.chmod(0o644)
    with pytest.raises(InvalidSettings) as caught:
        Profile.load(environ)
    assert f"chmod 600 {path}" in str(caught.value.hint)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"url": 5}', '{"url": "http://x", "key": 5}', "\xff"]
)
def test_a_broken_profile_is_one_sentence(text: str, environ: dict[str, str]) -> None:
    profile_path(environ).write_text(text, encoding="latin-1")
    with pytest.raises(InvalidSettings, match="profile"):
        Profile.load(environ)


def test_the_environment_takes_precedence(environ: dict[str, str]) -> None:
    assert Profile.load(environ | {"GUANACO_API_KEY": "mine"}) == Profile(STORED.url, "mine")
    both = {"GUANACO_URL": "http://other.test/", "GUANACO_API_KEY": "mine"}
    assert Profile.load(environ | both) == Profile("http://other.test", "mine")


def test_the_stored_key_goes_to_its_own_server_only(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Profile.load(environ | {"GUANACO_URL": "http://other.test"}).key is None
    assert Profile.load(environ | {"GUANACO_URL": STORED.url}).key == STORED.key
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    for name in ("GUANACO_URL", "GUANACO_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert Client("http://other.test").transport.address.key is None
    assert Client().transport.address.key == STORED.key


def test_a_url_without_a_scheme_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="localhost:8300"):
        Profile("localhost:8300")


def test_a_profile_does_not_show_its_key() -> None:
    assert "stored-key" not in repr(STORED)


def test_the_profile_lies_where_the_desktop_says(tmp_path: Path) -> None:
    assert profile_path({"XDG_CONFIG_HOME": "/c"}) == Path("/c/guanaco/profile.json")
    assert profile_path({}) == Path.home() / ".config/guanaco/profile.json"
