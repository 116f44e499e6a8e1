from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import guanaco
from guanaco.bots import BOTS
from guanaco.prompts import PRESETS, fill

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", guanaco.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(guanaco, name) is not None


def test_type_checkers_see_the_same_names_as_the_program() -> None:
    tree = ast.parse(Path(guanaco.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.name
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported | {"__version__"} == set(guanaco.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = guanaco.nonsense  # type: ignore[attr-defined]


def test_importing_guanaco_imports_nothing_heavy() -> None:
    code = "import sys, guanaco; print(sorted({'httpx', 'pydantic', 'yaml', 'asyncio'} & set(sys.modules)))"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert shown.stdout.strip() == "[]"


def test_the_shipped_bots_are_whole_and_different() -> None:
    assert len(BOTS) == 4
    assert len({bot.memory for bot in BOTS.values()}) == 4
    for bot in BOTS.values():
        assert bot.name in bot.memory
        assert f"{bot.name}:" in bot.prompt
        assert "You:" in bot.prompt
        assert bot.first_message


@pytest.mark.parametrize("bot", BOTS.values(), ids=BOTS)
def test_shipped_bot_fits_into_the_smallest_context(bot: guanaco.Bot) -> None:
    preset = PRESETS["pygmalion"]
    persona = fill(preset.memory_template, bot_name=bot.name, memory=bot.memory)
    assert (
        len(persona) + len(bot.prompt) < 1_000
    )  # under 512 tokens even with the demo's tiny tokenizer
