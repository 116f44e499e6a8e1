"""The demo's tiny model: a complete repo whose replies are made of words."""

from __future__ import annotations

import array
import json
import math
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from guanaco_server.demo.corpus import CORPUS
from guanaco_server.demo.tiny_repo import HIDDEN, VOCABULARY, make_tiny_repo
from guanaco_server.formats.safetensors_header import TensorInfo, read_header

SENTENCES = CORPUS.strip().splitlines()


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "tiny"
    make_tiny_repo(folder)
    return folder


class Bigrams:
    """A Llama whose blocks add nothing: embedding, final norm, output matrix."""

    def __init__(self, repo: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(repo / "tokenizer.json"))
        self._embeddings = values(repo, "model.embed_tokens.weight")
        self._output = values(repo, "lm_head.weight")

    def reply(self, prompt: str, tokens: int, rng: random.Random) -> str:
        """Sampled at temperature 1 from the whole vocabulary."""
        last = self.tokenizer.encode(prompt).ids[-1]
        said = []
        for _ in range(tokens):
            chances = [math.exp(logit) for logit in self._logits(last)]
            last = rng.choices(range(VOCABULARY), chances)[0]
            said.append(last)
        return self.tokenizer.decode(said)

    def _logits(self, token: int) -> list[float]:
        hidden = self._embeddings[token * HIDDEN : (token + 1) * HIDDEN]
        scale = 1 / math.sqrt(sum(value * value for value in hidden) / HIDDEN)
        used = [(index, value * scale) for index, value in enumerate(hidden) if value]
        return [
            sum(self._output[row * HIDDEN + index] * value for index, value in used)
            for row in range(VOCABULARY)
        ]


def values(repo: Path, name: str) -> list[float]:
    """A tensor's values; a bfloat16 is the upper half of a float32."""
    infos, offset = read_header(repo / "model.safetensors")
    info = next(info for info in infos if info.name == name)
    data = (repo / "model.safetensors").read_bytes()[offset + info.start : offset + info.end]
    whole = bytearray(2 * len(data))
    whole[2::4], whole[3::4] = data[0::2], data[1::2]
    return array.array("f", bytes(whole)).tolist()


def test_the_repo_is_complete_and_small(repo: Path) -> None:
    assert {path.name for path in repo.iterdir()} == {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "model.safetensors",
        "README.md",
    }
    assert sum(path.stat().st_size for path in repo.iterdir()) < 3_500_000


def test_weights_have_the_shapes_and_type_of_the_config(repo: Path) -> None:
    config = json.loads((repo / "config.json").read_text())
    infos: dict[str, TensorInfo] = {
        info.name: info for info in read_header(repo / "model.safetensors")[0]
    }
    assert {info.dtype for info in infos.values()} == {"BF16"}
    assert config["torch_dtype"] == "bfloat16"
    assert len(infos) == 3 + 9 * config["num_hidden_layers"]
    vocabulary, hidden = config["vocab_size"], config["hidden_size"]
    assert infos["lm_head.weight"].shape == (vocabulary, hidden)
    assert infos["model.layers.1.mlp.down_proj.weight"].shape == (
        hidden,
        config["intermediate_size"],
    )


@pytest.mark.parametrize("name", ["self_attn.o_proj", "mlp.down_proj"])
def test_the_blocks_add_nothing(repo: Path, name: str) -> None:
    assert not any(values(repo, f"model.layers.0.{name}.weight"))


def test_one_seed_is_one_commit_and_another_seed_another(repo: Path, tmp_path: Path) -> None:
    make_tiny_repo(tmp_path / "same")
    make_tiny_repo(tmp_path / "other", seed=1)
    for path in repo.iterdir():
        assert (tmp_path / "same" / path.name).read_bytes() == path.read_bytes()
        is_alike = (tmp_path / "other" / path.name).read_bytes() == path.read_bytes()
        assert is_alike == (path.name != "model.safetensors")


def test_the_tokenizer_gives_back_every_sentence(repo: Path) -> None:
    tokenizer = Tokenizer.from_file(str(repo / "tokenizer.json"))
    for sentence in (*SENTENCES, "Grüße, 你好 🦙\n"):
        assert tokenizer.decode(tokenizer.encode(sentence).ids) == sentence


@pytest.mark.parametrize("prompt", ["Luna:", "Luna: ", "You: Hello!\nLuna:"])
def test_a_reply_begins_a_sentence_and_is_made_of_words(repo: Path, prompt: str) -> None:
    text = Bigrams(repo).reply(prompt, 300, random.Random(0))
    lines = [words(line) for line in text.splitlines() if words(line)]
    said = [word for line in lines for word in line][:-1]  # the last one may be cut
    known = {word for sentence in SENTENCES for word in words(sentence)}
    assert sum(word in known for word in said) > 0.9 * len(said), text
    assert len(lines) > 3
    assert {line[0] for line in lines} <= {words(sentence)[0] for sentence in SENTENCES}, text


def words(text: str) -> list[str]:
    return [word.strip(",.?") for word in text.split()]
