from __future__ import annotations

from pathlib import Path

import pytest

from guanaco.errors import InvalidFormatter
from guanaco.formatters import load_formatter
from guanaco.prompts import PRESETS, PromptFormatter


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_found_by_its_name(name: str) -> None:
    assert load_formatter(name) == PRESETS[name]


def test_a_json_and_a_yaml_file_give_the_same(tmp_path: Path) -> None:
    wanted = PromptFormatter(user_template="{user_name} says: {message}\n")
    (tmp_path / "f.json").write_text(wanted.model_dump_json())
    (tmp_path / "f.yaml").write_text('user_template: "{user_name} says: {message}\\n"\n')
    assert load_formatter(tmp_path / "f.json") == wanted
    assert load_formatter(str(tmp_path / "f.yaml")) == wanted


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("f.json", "{", "is not JSON"),
        ("f.yaml", "a: [", "is not YAML"),
        ("f.yaml", "[" * 5_000, "is not YAML"),
        ("f.yaml", "!!python/object/apply:os.system ['true']", "is not YAML"),
        ("f.yaml", "just text", "holds no mapping"),
        ("f.yaml", "", "holds no mapping"),
        ("f.yaml", 'memory_template: "none"', "must contain {memory}"),
        ("f.yaml", 'bot_template: "{bot_name.__class__}: {message}"', "bot_name.__class__"),
        ("f.yaml", "bot_templte: x", "bot_templte: Extra inputs are not permitted"),
        ("f.yaml", "x" * 200_000, "is over"),
        ("f.yaml", "a: \udcff", "is not YAML"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, name: str, content: str, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode("utf-8", errors="surrogateescape"))
    with pytest.raises(InvalidFormatter) as caught:
        load_formatter(path)
    assert says in caught.value.detail
    assert "\n" not in caught.value.detail


def test_a_name_that_is_nothing_lists_the_presets(tmp_path: Path) -> None:
    with pytest.raises(InvalidFormatter, match="neither a preset nor a file") as caught:
        load_formatter("chatlm")
    assert "chatml" in str(caught.value.hint)
    with pytest.raises(InvalidFormatter, match="cannot be read"):
        load_formatter(tmp_path)
