"""The images cannot be built everywhere; what can go wrong in their files is looked at everywhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
LOCKED = re.compile(r"([A-Za-z0-9._-]+)==(\S+)(?: ; [^\\]+)?(?: --hash=sha256:[0-9a-f]{64})+")
SECRET = re.compile(r"password|secret|token|api_?key|BEGIN|AKIA|hf_[A-Za-z]{8}", re.I)
RELOCK = "`make lock` writes the locks anew"

each_dockerfile = pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
each_lock = pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)


def instructions(path: Path) -> list[tuple[str, str]]:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [
        (word, rest.strip())
        for word, _, rest in (line.partition(" ") for line in joined.splitlines())
        if word
    ]


def test_there_is_one_for_each_image() -> None:
    assert [path.stem for path in DOCKERFILES] == ["engine", "platform", "serializer"]


@each_dockerfile
def test_every_base_is_pinned_to_a_version(path: Path) -> None:
    stages: set[str] = set()
    for word, rest in instructions(path):
        if word != "FROM":
            continue
        base, _, stage = rest.partition(" AS ")
        if base not in stages and not base.startswith("engine-${"):
            assert re.search(r":v?\d+\.\d+\.\d+", base), base
        stages.add(stage)


@each_dockerfile
def test_last_user_is_unprivileged_and_no_health_check_is_built(path: Path) -> None:
    steps = instructions(path)
    assert [rest for word, rest in steps if word == "USER"][-1] == "10001:10001"
    assert {word for word, _ in steps} <= {
        "FROM",
        "ARG",
        "WORKDIR",
        "ENV",
        "COPY",
        "RUN",
        "LABEL",
        "USER",
        "EXPOSE",
        "ENTRYPOINT",
        "CMD",
    }
    after = [word for word, _ in steps[[word for word, _ in steps].index("USER") :]]
    assert "RUN" not in after


@each_dockerfile
def test_copied_files_exist_and_pass_the_ignore_file(path: Path) -> None:
    allowed = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    for word, rest in instructions(path):
        if word == "COPY" and "--from" not in rest:
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert {source, source.split("/")[0]} & allowed, source


@each_dockerfile
def test_packages_are_installed_by_hash_and_no_secret_is_included(path: Path) -> None:
    text = path.read_text()
    assert not SECRET.search(text)
    for _, rest in instructions(path):
        for install in re.findall(r"pip install [^&]*", rest):
            assert "--require-hashes" in install or "/wheels/" in install, install
            assert "--no-deps" in install


@each_dockerfile
def test_labels_say_what_it_is(path: Path) -> None:
    labels = " ".join(rest for word, rest in instructions(path) if word == "LABEL")
    for name in ("title", "description", "version", "revision", "licenses"):
        assert f"org.opencontainers.image.{name}=" in labels
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f'image.version="{version}"' in labels


@each_lock
def test_every_package_of_a_lock_has_a_version_and_hashes(path: Path) -> None:
    lines = packages(path)
    assert lines
    assert [line[:80] for line in lines if not LOCKED.fullmatch(line)] == []
    assert "://" not in path.read_text(), "where packages come from is not for a lock to say"


@pytest.mark.parametrize("extra", ["server", "serializer"])
def test_the_locks_have_what_the_extras_ask_for(extra: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = project["dependencies"] + project["optional-dependencies"][extra]
    names = {canonical(re.split(r"[\[><=;]", requirement)[0]) for requirement in asked}
    image = "platform" if extra == "server" else extra
    assert names - set(versions(ROOT / "requirements" / f"image-{image}.txt")) == set(), RELOCK


def test_the_platforms_image_has_the_versions_that_were_tested() -> None:
    tested = versions(ROOT / "requirements" / "platform.txt")
    image = versions(ROOT / "requirements" / "image-platform.txt")
    assert {
        name: version for name, version in image.items() if tested.get(name, version) != version
    } == {}, RELOCK


def versions(lock: Path) -> dict[str, str]:
    found = [LOCKED.fullmatch(line) for line in packages(lock)]
    return {canonical(match[1]): match[2] for match in found if match}


def packages(lock: Path) -> list[str]:
    """Return a line for each package, with its hashes."""
    lines = [line for line in lock.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r" \\\n\s*", " ", "\n".join(lines))
    return [line for line in joined.splitlines() if line]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
