"""Names of a repo's files that some file system would take for another file, or for none."""

from __future__ import annotations

import pytest

from guanaco.errors import CorruptConfig
from guanaco_server.artifacts.checking.checks import check_names
from guanaco_server.artifacts.hub.hub import RepoFile, RepoSnapshot


def snapshot(*paths: str) -> RepoSnapshot:
    return RepoSnapshot("acme/x", "0" * 40, tuple(RepoFile(path, 1) for path in paths))


def test_usual_names_pass() -> None:
    check_names(
        snapshot(
            "config.json", ".gitattributes", "README.md", "a/b/model-00001-of-00002.safetensors",
            "模型.txt", "images/café.png", "console.py", "com10", "a b", "...x",
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("paths", "says"),
    [
        (["../escape"], "forbidden name"),
        (["/etc/passwd"], "forbidden name"),
        (["a\\b"], "forbidden name"),
        (["a\nb"], "forbidden name"),
        (["a\x00b"], "forbidden name"),
        (["a\u202eb"], "forbidden name"),
        (["a//b"], "forbidden name"),
        (["a/./b"], "forbidden name"),
        (["a/"], "forbidden name"),
        ([""], "forbidden name"),
        ([".Git/config"], "forbidden name"),
        (["NUL"], "forbidden name"),
        (["a/con.json"], "forbidden name"),
        (["lpt1.tar.gz"], "forbidden name"),
        (["a" * 256], "forbidden name"),
        (["Config.json"], "cannot tell apart"),
        (["caf\u00e9", "cafe\u0301"], "cannot tell apart"),
        (["\uff43onfig.json"], "cannot tell apart"),
        ([str(number) for number in range(10_001)], "10,000 are allowed"),
        (["a\udc80b"], "forbidden name"),
    ],
)  # fmt: skip
def test_a_name_that_is_no_plain_name_is_refused(paths: list[str], says: str) -> None:
    with pytest.raises(CorruptConfig, match=says) as refused:
        check_names(snapshot("config.json", *paths))
    str(refused.value).encode()
