"""Stores the server and the key: ``guanaco login`` writes them and ``Client()`` reads them.

A file of the user's own (0600), ``~/.config/guanaco/profile.json`` or what GUANACO_PROFILE names.
GUANACO_URL and GUANACO_API_KEY take precedence. The file's key goes to the file's server only, so
that GUANACO_URL alone can lead no key astray.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from guanaco.errors import InvalidSettings

DEFAULT_URL = "http://127.0.0.1:8300"
LOGIN_HINT = "`guanaco login` writes it anew."


@dataclass(frozen=True)
class Profile:
    url: str = DEFAULT_URL
    key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise InvalidSettings(
                f"{self.url!r} is not a server's URL.", hint="It begins with http:// or https://."
            )
        object.__setattr__(self, "url", self.url.rstrip("/"))

    @staticmethod
    def load(environ: Mapping[str, str] | None = None) -> Profile:
        """Return the environment's values, else the file's, else the server on this machine without a key."""
        environ = os.environ if environ is None else environ
        url, key = environ.get("GUANACO_URL"), environ.get("GUANACO_API_KEY")
        if url and key:
            return Profile(url, key)
        stored = Profile.read(profile_path(environ)) or Profile()
        return (
            Profile(url, key).with_key_of(stored) if url else Profile(stored.url, key or stored.key)
        )

    @staticmethod
    def read(path: Path) -> Profile | None:
        """Return the file's profile; None without a file. InvalidSettings if it is broken or others may read it."""
        try:
            mode = path.stat().st_mode
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidSettings(f"The profile {path} cannot be read: {error}.") from None
        if os.name == "posix" and mode & 0o077:
            raise InvalidSettings(
                f"The profile {path} holds a key and other users may read it.",
                hint=f"Run `chmod 600 {path}`; if others have read it, have the key revoked.",
            )
        return _parse(path, text)

    def with_key_of(self, other: Profile) -> Profile:
        """Return this profile, with the other's key if this has none and both name the same server."""
        return other if self.key is None and self.url == other.url else self

    def save(self, path: Path) -> None:
        """Write the file at once or not at all, for its owner's eyes only."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # 0600
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(asdict(self), file, indent=2)
                file.write("\n")
            Path(name).replace(path)
        except OSError as error:
            raise InvalidSettings(
                f"The profile {path} cannot be written: {error.strerror}."
            ) from None


def delete_profile(path: Path) -> bool:
    """Delete a stored profile, also a broken one; False where there is none."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise InvalidSettings(f"The profile {path} cannot be deleted: {error.strerror}.") from None
    return True


def profile_path(environ: Mapping[str, str] | None = None) -> Path:
    environ = os.environ if environ is None else environ
    if named := environ.get("GUANACO_PROFILE"):
        return Path(named)
    config = environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(config) / "guanaco" / "profile.json"


def _parse(path: Path, text: str) -> Profile:
    try:
        stored = json.loads(text)
        url, key = stored["url"], stored.get("key")
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InvalidSettings(f"The profile {path} is broken.", hint=LOGIN_HINT) from None
    if not isinstance(url, str) or not isinstance(key, str | None):
        raise InvalidSettings(f"The profile {path} is broken.", hint=LOGIN_HINT)
    return Profile(url, key)
