"""A complete Hub model repo of three megabytes, made on the spot: the demo and the tests submit it through the real path.

It is a real Llama, and its weights are a bigram model written down by hand. Each token of the corpus has
an embedding of its own (one-hot), the two blocks add nothing (their output projections are zero), and row
j of the output matrix holds the log-probability that token j follows token i. So the replies read like
shuffled small talk instead of noise, and no training is needed.
"""

from __future__ import annotations

import array
import itertools
import json
import math
import random
import struct
from collections import Counter, defaultdict
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from guanaco_server.demo.corpus import CORPUS

HIDDEN = 256
HEADS = 4  # of 64 dimensions, which the CPU's attention kernels want
LAYERS = 2
INTERMEDIATE = 512
VOCABULARY = 512
POSITIONS = 2_048
BOS, EOS = "<s>", "</s>"
PEAK_LOGIT = 16.0  # e^-16 of the probability for anything that the corpus never says
OTHERS = HIDDEN - 1  # the dimension that all tokens beyond the first 255 share

# The four bytes of the float32 that each byte of noise stands for: a table for the first byte of each, the second, …
LEVELS = [
    bytes(column)
    for column in zip(
        *(struct.pack("=f", 0.03 * (drawn / 127.5 - 1)) for drawn in range(256)), strict=True
    )
]

Matrix = tuple[list[int], "array.array[float]"]  # shape, and values in row-major order


def make_tiny_repo(folder: Path, *, seed: int = 0) -> None:
    """Write the repo's files into a new or empty folder. Another seed gives another commit."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _train_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in _json_files(tokenizer).items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    (folder / "README.md").write_text("# A tiny bigram Llama\n\nMade by Guanaco's demo.\n")
    write_safetensors(folder / "model.safetensors", _weights(tokenizer, random.Random(seed)))  # noqa: S311 - weights, not secrets


def write_safetensors(path: Path, tensors: dict[str, Matrix]) -> None:
    """Matrices as bfloat16 tensors in the safetensors format."""
    header: dict[str, object] = {}
    position = 0
    for name, (shape, values) in tensors.items():
        end = position + 2 * len(values)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [position, end]}
        position = end
    encoded = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for _, values in tensors.values():
            file.write(_bfloat16(values))


def _bfloat16(values: array.array[float]) -> bytes:
    """Return the upper half of each little-endian float32."""
    whole = values.tobytes()
    halves = bytearray(len(whole) // 2)
    halves[0::2], halves[1::2] = whole[2::4], whole[3::4]
    return bytes(halves)


def _train_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_lines(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


def _lines() -> list[str]:
    """Make lines as a chat has them: each begins after a colon and ends its line."""
    return [f": {line}\n" for line in CORPUS.strip().splitlines()]


def _json_files(tokenizer: Tokenizer) -> dict[str, dict[str, object]]:
    bos, eos = tokenizer.token_to_id(BOS), tokenizer.token_to_id(EOS)
    return {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": VOCABULARY,
            "hidden_size": HIDDEN,
            "intermediate_size": INTERMEDIATE,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": HEADS,
            "head_dim": HIDDEN // HEADS,
            "hidden_act": "silu",
            "max_position_embeddings": POSITIONS,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10_000.0,
            "tie_word_embeddings": False,
            "bos_token_id": bos,
            "eos_token_id": eos,
            "torch_dtype": "bfloat16",
        },
        "generation_config.json": {"bos_token_id": bos, "eos_token_id": eos},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": EOS,
            "model_max_length": POSITIONS,
            "clean_up_tokenization_spaces": False,
        },
        "special_tokens_map.json": {"bos_token": BOS, "eos_token": EOS},
    }


def _weights(tokenizer: Tokenizer, rng: random.Random) -> dict[str, Matrix]:
    lines = [tokenizer.encode(line, add_special_tokens=False).ids for line in _lines()]
    dimensions = _dimensions(lines)
    weights: dict[str, Matrix] = {
        "model.embed_tokens.weight": _embeddings(dimensions),
        "model.norm.weight": _filled([HIDDEN], 1.0),
        "lm_head.weight": _output(lines, dimensions),
    }
    for layer in range(LAYERS):
        weights |= _block(f"model.layers.{layer}", rng)
    return weights


def _dimensions(lines: list[list[int]]) -> dict[int, int]:
    """Return the dimension of each token that has one of its own: the most frequent first."""
    counts = Counter(token for line in lines for token in line)
    return {token: index for index, (token, _) in enumerate(counts.most_common(OTHERS))}


def _embeddings(dimensions: dict[int, int]) -> Matrix:
    shape, values = _filled([VOCABULARY, HIDDEN], 0.0)
    for token in range(VOCABULARY):
        values[token * HIDDEN + dimensions.get(token, OTHERS)] = 1.0
    return shape, values


def _output(lines: list[list[int]], dimensions: dict[int, int]) -> Matrix:
    """The final norm turns a one-hot into sqrt(HIDDEN) times it, so the weights are divided by that."""
    shape, values = _filled([VOCABULARY, HIDDEN], 0.0)
    for previous, following in _bigrams(lines, dimensions).items():
        total = sum(following.values())
        for token, count in following.items():
            logit = PEAK_LOGIT + math.log(count / total)
            values[token * HIDDEN + previous] = logit / math.sqrt(HIDDEN)
    return shape, values


def _bigrams(lines: list[list[int]], dimensions: dict[int, int]) -> dict[int, Counter[int]]:
    """Count what follows each dimension; a dimension that nothing follows starts a new sentence."""
    following: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for line in lines:
        for token, successor in itertools.pairwise(line):
            following[dimensions.get(token, OTHERS)][successor] += 1
    starts = Counter(line[1] for line in lines)
    for dimension in range(HIDDEN):
        following.setdefault(dimension, starts)
    return following


def _block(prefix: str, rng: random.Random) -> dict[str, Matrix]:
    square, up = [HIDDEN, HIDDEN], [INTERMEDIATE, HIDDEN]
    return {
        f"{prefix}.input_layernorm.weight": _filled([HIDDEN], 1.0),
        f"{prefix}.post_attention_layernorm.weight": _filled([HIDDEN], 1.0),
        f"{prefix}.self_attn.q_proj.weight": _noise(square, rng),
        f"{prefix}.self_attn.k_proj.weight": _noise(square, rng),
        f"{prefix}.self_attn.v_proj.weight": _noise(square, rng),
        f"{prefix}.self_attn.o_proj.weight": _filled(square, 0.0),
        f"{prefix}.mlp.gate_proj.weight": _noise(up, rng),
        f"{prefix}.mlp.up_proj.weight": _noise(up, rng),
        f"{prefix}.mlp.down_proj.weight": _filled([HIDDEN, INTERMEDIATE], 0.0),
    }


def _filled(shape: list[int], value: float) -> Matrix:
    return shape, array.array("f", [value]) * math.prod(shape)


def _noise(shape: list[int], rng: random.Random) -> Matrix:
    """Make evenly distributed values between -0.03 and 0.03; one of 256 levels a byte, so that no loop in Python is needed."""
    drawn = rng.randbytes(math.prod(shape))
    whole = bytearray(4 * len(drawn))
    for place, level in enumerate(LEVELS):
        whole[place::4] = drawn.translate(level)
    values = array.array("f")
    values.frombytes(whole)
    return shape, values
