"""Makes hostile model repos from a seed: each is a good repo with one thing changed.

A case says whether it ought to be refused. What is odd but may be served counts only by what it does to the platform.
Code in a repo touches a file of the canary folder where anybody runs it.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from guanaco.prompts import ChatTemplatePrompt, Prompt, PromptFormatter

Files = dict[str, bytes | None]  # None removes the good repo's file
Json = dict[str, Any]
WEIGHTS = "model.safetensors"
TEMPLATES = PromptFormatter()


@dataclass(frozen=True)
class HostileRepo:
    """``lie`` names what the Hub does wrong with it (hub.py)."""

    name: str
    kind: str
    files: Files
    must_be_refused: bool = True
    lie: str | None = None
    formatter: Prompt = field(default=TEMPLATES)


Maker = Callable[["GoodRepo", random.Random, Path], Iterator[HostileRepo]]


class GoodRepo:
    """What the hostile ones are made of."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: Json = json.loads((folder / "config.json").read_text())
        self.tokenizer: Json = json.loads((folder / "tokenizer.json").read_text())
        self.tokenizer_config: Json = json.loads((folder / "tokenizer_config.json").read_text())
        weights = (folder / WEIGHTS).read_bytes()
        (length,) = struct.unpack("<Q", weights[:8])
        self.header: Json = json.loads(weights[8 : 8 + length])
        self.data = weights[8 + length :]

    def weights(self, header: Json | bytes, data: bytes | None = None) -> bytes:
        encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(encoded)) + encoded + (self.data if data is None else data)

    def header_with(self, **changes: Any) -> Json:
        """Return the header with changes of its first tensor."""
        first = next(name for name in self.header if name != "__metadata__")
        return self.header | {first: self.header[first] | changes}


def hostile_repos(good: GoodRepo, seed: int, canaries: Path) -> list[HostileRepo]:
    """Return every case, the same for the same seed."""
    chance = random.Random(seed)
    return [repo for maker in MAKERS for repo in maker(good, chance, canaries)]


def write_repo(good: GoodRepo, repo: HostileRepo, folder: Path) -> None:
    """Write a repo; what it has in common with the good one is linked, not copied."""
    folder.mkdir(parents=True)
    for path in good.folder.iterdir():
        if path.name not in repo.files:
            (folder / path.name).hardlink_to(path)
    for name, content in repo.files.items():
        if content is not None:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def _dumps(content: Any) -> bytes:
    return json.dumps(content).encode()


def _headers(good: GoodRepo, chance: random.Random, _canaries: Path) -> Iterator[HostileRepo]:
    """Yield lies in the header of the safetensors file."""
    shape = next(iter(v for k, v in good.header.items() if k != "__metadata__"))["shape"]
    size = len(good.data)
    wrong: dict[str, Json] = {
        "negative-shape": {"shape": [-1, *shape[1:]]},
        "huge-shape": {"shape": [2**62, 2**62]},
        "float-shape": {"shape": [float(shape[0]), *shape[1:]]},
        "text-shape": {"shape": "8x8"},
        "long-shape": {"shape": [1] * 100_000},
        "no-shape": {"shape": None},
        "dtype-unknown": {"dtype": "F1024"},
        "dtype-number": {"dtype": 7},
        "offsets-swapped": {"data_offsets": [size, 0]},
        "offsets-outside": {"data_offsets": [0, 2**63]},
        "offsets-negative": {"data_offsets": [-8, 8]},
        "offsets-text": {"data_offsets": "all"},
        "offsets-three": {"data_offsets": [0, 1, 2]},
        "offsets-infinite": {"data_offsets": [0, math.inf]},
        "offsets-true": {"data_offsets": [False, True]},
        "extra-key": {"code": "__import__('os')"},
    }
    for name, change in wrong.items():
        made = good.weights(good.header_with(**change))
        yield HostileRepo(f"header-{name}", "headers", {WEIGHTS: made}, name != "extra-key")
    raw = {
        "empty-file": b"",
        "short-file": b"\x08\x00",
        "length-huge": struct.pack("<Q", 2**63) + b"{}",
        "length-100mb": struct.pack("<Q", 100 * 2**20) + b"{}",
        "length-zero": bytes(8) + good.data,
        "not-json": good.weights(b"{not json"),
        "deep": good.weights(b'{"a":' * 50_000 + b"1" + b"}" * 50_000),
        "deep-list": good.weights(b"[" * 100_000 + b"]" * 100_000),
        "list": good.weights(b"[]"),
        "nul": good.weights(b"\0" * 64),
        "digits": good.weights(b'{"a":' + b"9" * 100_000 + b"}"),
        "same-name-twice": good.weights(_dumps(good.header)[:-1] + b"," + _dumps(good.header)[1:]),
        "cut": good.weights(good.header, good.data[:100]),
        "more": good.weights(good.header, good.data + b"MZ" * 1_000),
        "million-tensors": good.weights(
            b"{" + b",".join(b'"t%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % n for n in range(200_000)) + b"}"
        ),
        "zip": b"PK\x03\x04" + chance.randbytes(4_000),
        "elf": b"\x7fELF" + chance.randbytes(4_000),
    }  # fmt: skip
    for name, content in raw.items():
        yield HostileRepo(f"header-{name}", "headers", {WEIGHTS: content})
    for number in range(25):
        flipped = bytearray(good.weights(good.header)[: 8 + 400])
        for _ in range(1 + number % 4):
            flipped[chance.randrange(len(flipped))] = chance.randrange(256)
        yield HostileRepo(f"header-flipped-{number}", "headers", {WEIGHTS: bytes(flipped)})
    for number, name in enumerate(
        ("../../up", "/etc/passwd", "a\x00b", "\u202egpj", "x" * 100_000, "")
    ):
        header = good.header | {name: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}
        label = f"header-name-{number}"
        yield HostileRepo(label, "headers", {WEIGHTS: good.weights(header)}, must_be_refused=False)


def _tokenizers(good: GoodRepo, chance: random.Random, _canaries: Path) -> Iterator[HostileRepo]:
    """Yield tokenizers that are broken, that eat time, or that eat memory."""

    def repo(name: str, refuse: bool = True, **changes: Any) -> HostileRepo:
        content = _dumps(good.tokenizer | changes)
        return HostileRepo(f"tokenizer-{name}", "tokenizers", {"tokenizer.json": content}, refuse)

    model = good.tokenizer["model"]
    word_piece = {"type": "WordPiece", "unk_token": "a", "vocab": {"a": 0, "b": 1}}
    for power in (4, 6, 9):
        piece = word_piece | {
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 10**power,
        }
        yield repo(
            f"wordpiece-{power}",
            power > 4,
            model=piece,
            pre_tokenizer={"type": "WhitespaceSplit"},
            decoder=None,
            post_processor=None,
        )
    for length in (10**3, 10**5, 10**7):
        piece = word_piece | {
            "continuing_subword_prefix": "#" * length,
            "max_input_chars_per_word": 100,
        }
        yield repo(f"prefix-{length}", model=piece, decoder=None, post_processor=None)
    for number, pattern in enumerate(
        ("(a+)+$", "(a|a)*$", "(.*)*x", "(a*)*b", "(?:a|aa)+$", "(x+x+)+y", "^(([a-z])+.)+[A-Z]([a-z])+$", "(a+){10,}c", "(?=(a+))a*b", "a{1,1000}{1,1000}")
    ):  # fmt: skip
        split = {
            "type": "Split",
            "pattern": {"Regex": pattern},
            "behavior": "Isolated",
            "invert": False,
        }
        yield repo(f"split-{number}", pre_tokenizer=split)
        replace = {"type": "Replace", "pattern": {"Regex": pattern}, "content": ""}
        yield repo(f"replace-{number}", normalizer=replace)
    for length in (1_000, 10**6):
        grows = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * length}
        yield repo(f"grows-{length}", normalizer=grows)
        yield repo(f"prepend-{length}", normalizer={"type": "Prepend", "prepend": "a" * length})
    doubles = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    yield repo("doubles-40", normalizer={"type": "Sequence", "normalizers": [doubles] * 40})
    yield repo("added-100000", False, added_tokens=[_added(n) for n in range(100_000)])
    yield repo("added-long", False, added_tokens=[_added(0) | {"content": "a" * 10**6}])
    nested: Json = {"type": "Sequence", "normalizers": []}
    for _ in range(300):
        nested = {"type": "Sequence", "normalizers": [nested]}
    yield repo("nested-300", normalizer=nested)
    yield repo(
        "charsmap-garbage", normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    )
    yield repo(
        "charsmap-huge",
        normalizer={"type": "Precompiled", "precompiled_charsmap": _charsmap(2**20)},
    )
    yield repo(
        "charsmap-large",
        normalizer={"type": "Precompiled", "precompiled_charsmap": _charsmap(2**12)},
    )
    template = [{"SpecialToken": {"id": "a", "type_id": 0}}] * 200_000
    yield repo("template-200000", post_processor={"type": "TemplateProcessing", "single": template, "pair": [], "special_tokens": {"a": {"id": "a", "ids": [0], "tokens": ["a"]}}})  # fmt: skip
    for name, wrong in {
        "no-model": None, "text-model": "BPE", "unknown-model": {"type": "Neural"}, "empty-bpe": {"type": "BPE", "vocab": {}, "merges": []},
        "negative-ids": model | {"vocab": {"a": -1}}, "float-ids": model | {"vocab": {"a": 0.5}}, "huge-ids": model | {"vocab": {"a": 2**40}},
        "no-merge": model | {"merges": [["never", "there"]]}, "bad-merges": model | {"merges": ["a"]}, "dropout": model | {"dropout": 2.0},
        "unigram-empty": {"type": "Unigram", "vocab": [], "unk_id": 0}, "unigram-nan": {"type": "Unigram", "vocab": [["a", -1e308], ["b", 1e308]], "unk_id": 9},
        "ids-outside": model | {"vocab": {f"t{n}": n + 10**6 for n in range(10)}, "merges": []},
    }.items():  # fmt: skip
        yield repo(name, name != "dropout", model=wrong)
    for number in range(12):
        text = bytearray(_dumps(good.tokenizer))
        for _ in range(3):
            text[chance.randrange(len(text))] = chance.choice(b'{}[]",:\\0a')
        yield HostileRepo(
            f"tokenizer-flipped-{number}", "tokenizers", {"tokenizer.json": bytes(text)}, False
        )
    for name, content in {"none": None, "empty": b"", "deep": b"[" * 200_000, "nul": bytes(1_000), "list": b"[]", "utf-16": "{}".encode("utf-16")}.items():  # fmt: skip
        yield HostileRepo(f"tokenizer-{name}", "tokenizers", {"tokenizer.json": content})


def _added(number: int) -> Json:
    return {"id": number, "content": f"added {number}", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}  # fmt: skip


def _charsmap(length: int) -> str:
    """Return a SentencePiece map whose double array maps "a" to so many bytes."""
    import base64

    units = [0] * 512
    units[0] = 256 << 10  # the root's children begin at 256
    units[256 ^ 97] = 97 | 1 << 8 | (256 ^ 97 ^ 300) << 10
    units[300] = 1 << 31
    trie = b"".join(struct.pack("<I", unit & 0xFFFFFFFF) for unit in units)
    return base64.b64encode(struct.pack("<I", len(trie)) + trie + b"b" * length + b"\0").decode()


def _configs(good: GoodRepo, _chance: random.Random, canaries: Path) -> Iterator[HostileRepo]:
    """Yield configs that do not fit their tensors, that name code, or that are no configs."""

    def repo(name: str, refuse: bool = True, **changes: Any) -> HostileRepo:
        return HostileRepo(
            f"config-{name}", "configs", {"config.json": _dumps(good.config | changes)}, refuse
        )

    for figure in (
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "vocab_size",
        "intermediate_size",
    ):
        for value in (10**9, 0, -1, 1.5, "many", None, [8], good.config.get(figure, 1) + 1):
            label = f"{figure}-{value}".replace("[", "").replace("]", "").replace("_", "-")
            if figure == "num_attention_heads" and value == good.config.get(figure, 1) + 1:
                continue  # may divide the hidden size
            yield repo(label, True, **{figure: value})
    code: dict[str, Json] = {
        "auto-map": {"auto_map": {"AutoModelForCausalLM": "code.Model"}}, "auto-map-nested": {"text_config": {"auto_map": {"AutoConfig": "code.Config"}}},
        "auto-map-remote": {"auto_map": {"AutoModel": "evil/repo--code.Model"}}, "unknown": {"architectures": ["EvilForCausalLM"]},
        "no-architecture": {"architectures": []}, "architecture-text": {"architectures": "LlamaForCausalLM"}, "architecture-number": {"architectures": [7]},
        "speculators": {"speculators_config": {"algorithm": "eagle", "verifier": {"name_or_path": "evil/x"}}},
        "positions": {"max_position_embeddings": -1}, "positions-text": {"max_position_embeddings": "long"},
        "quantized": {"quantization_config": {"quant_method": "evil"}},
    }  # fmt: skip
    for name, changes in code.items():
        files: Files = {
            "config.json": _dumps(good.config | changes),
            "code.py": b"import pathlib\npathlib.Path(%r).touch()\n"
            % str(canaries / f"code-{name}"),
        }
        yield HostileRepo(f"config-{name}", "configs", files)
    odd: dict[str, Json] = {
        "dtype": {"torch_dtype": {"a": 1}}, "rope": {"rope_scaling": {"type": "evil", "factor": 1e308}}, "eps": {"rms_norm_eps": "nan"},
        "big": {"notes": "x" * 500_000}, "token-ids": {"eos_token_id": [10**9] * 100},
    }  # fmt: skip
    for name, changes in odd.items():
        yield repo(name, False, **changes)
    for name, content in {"none": None, "empty": b"", "deep": b'{"a":' * 100_000, "list": b"[]", "2mb": b'{"a":"' + b"x" * 2**21 + b'"}', "binary": bytes(range(256))}.items():  # fmt: skip
        yield HostileRepo(f"config-{name}", "configs", {"config.json": content})


def _templates(good: GoodRepo, _chance: random.Random, canaries: Path) -> Iterator[HostileRepo]:
    """Yield chat templates that try to leave the sandbox, never end, or grow."""
    canary = str(canaries / "template")
    hostile = {
        "globals": "{{ cycler.__init__.__globals__.os.system('touch CANARY') }}",
        "subclasses": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "import": "{% import 'os' as os %}{{ os.system('touch CANARY') }}",
        "include": "{% include '/etc/passwd' %}",
        "format": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
        "attr": "{{ messages|attr('__class__')|attr('__init__')|attr('__globals__') }}",
        "namespace": "{% set n = namespace() %}{% set n.__class__ = 1 %}{{ n }}",
        "lipsum": "{{ lipsum.__globals__['os'].popen('touch CANARY').read() }}",
        "joiner": "{{ joiner.__init__.__globals__.__builtins__.open('CANARY', 'w') }}",
        "loop": "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
        "loops": "{% for a in range(99999) %}" * 6 + "x" + "{% endfor %}" * 6,
        "power": "{{ 9**9**9 }}",
        "multiply": "{{ 'x' * 10**12 }}",
        "center": "{{ 'x'.center(10**11) }}",
        "ljust": "{{ ('x'|list * 10**10)|length }}",
        "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "nested": "{% if true %}" * 500 + "{% endif %}" * 500,
        "parens": "{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}",
        "replace": "{% set s = 'x' %}"
        + "{% set s = s.replace('x', 'xxxxxxxxxx') %}" * 12
        + "{{ s }}",
        "range": "{{ range(10**12)|list|length }}",
        "exception": "{{ raise_exception('x' * 10**9) }}",
        "syntax": "{% for %}",
        "undefined": "{{ evil.attribute.deep }}",
        "silent": "",
        "long": "x" * 2_000_000,
    }
    for name, template in hostile.items():
        config = _dumps(
            good.tokenizer_config | {"chat_template": template.replace("CANARY", canary)}
        )
        files: Files = {"tokenizer_config.json": config}
        yield HostileRepo(
            f"template-{name}", "templates", files, False, formatter=ChatTemplatePrompt()
        )
    for name, wrong in {
        "number": 7,
        "list": [{"name": "default", "template": 7}],
        "mapping": {"a": "b"},
    }.items():
        files = {"tokenizer_config.json": _dumps(good.tokenizer_config | {"chat_template": wrong})}
        yield HostileRepo(
            f"template-{name}", "templates", files, False, formatter=ChatTemplatePrompt()
        )


def _indexes(good: GoodRepo, _chance: random.Random, _canaries: Path) -> Iterator[HostileRepo]:
    """Yield indexes of several weight files that point elsewhere."""
    names = [name for name in good.header if name != "__metadata__"]
    whole = good.weights(good.header)
    targets = ["../../../etc/passwd", "/etc/passwd", "..\\up.safetensors", "missing.safetensors", "", ".", "CON", "a/../model.safetensors", "model.safetensors\0", "x" * 300 + ".safetensors", "weights.bin", "\u202emodel.safetensors"]  # fmt: skip
    for number, target in enumerate(targets):
        index = {"metadata": {}, "weight_map": dict.fromkeys(names, target)}
        files: Files = {
            WEIGHTS: None,
            "model.safetensors.index.json": _dumps(index),
            "model-00001-of-00001.safetensors": whole,
        }
        yield HostileRepo(f"index-target-{number}", "indexes", files)
    for name, wrong in {
        "text-map": {"weight_map": "all"}, "list-map": {"weight_map": []}, "no-map": {}, "number-target": {"weight_map": dict.fromkeys(names, 7)},
        "list": [], "unknown-tensor": {"weight_map": {"evil": "model-1.safetensors"}},
        "many-files": {"weight_map": {f"t{n}": f"model-{n}.safetensors" for n in range(50_000)}},
    }.items():  # fmt: skip
        files = {
            WEIGHTS: None,
            "model.safetensors.index.json": _dumps(wrong),
            "model-1.safetensors": whole,
        }
        yield HostileRepo(f"index-{name}", "indexes", files)
    files = {WEIGHTS: None, "a.safetensors": whole, "b.safetensors": whole, "model.safetensors.index.json": _dumps({"weight_map": dict.fromkeys(names, "a.safetensors")})}  # fmt: skip
    yield HostileRepo("index-tensor-twice", "indexes", files, False)
    for number in range(8):
        part = {"weight_map": dict.fromkeys(names[: number + 1], "m.safetensors")}
        files = {
            WEIGHTS: None,
            "model.safetensors.index.json": _dumps(part),
            "m.safetensors": whole[: 1_000 * number],
        }
        yield HostileRepo(f"index-part-{number}", "indexes", files)


def _adapters(good: GoodRepo, _chance: random.Random, _canaries: Path) -> Iterator[HostileRepo]:
    """Yield LoRA adapters on a base that is not theirs, or with figures that do not fit."""
    whole = {name: None for name in ("config.json", WEIGHTS)}
    fine: Json = {"peft_type": "LORA", "base_model_name_or_path": "acme/good", "r": 2, "lora_alpha": 4, "bias": "none", "target_modules": ["q_proj"]}  # fmt: skip
    wrong: dict[str, Json] = {
        "no-base": {"base_model_name_or_path": None}, "missing-base": {"base_model_name_or_path": "nobody/nothing"}, "own-base": {"base_model_name_or_path": "evil/adapter-own-base"},
        "path-base": {"base_model_name_or_path": "../../etc"}, "url-base": {"base_model_name_or_path": "http://127.0.0.1/x"}, "rank-0": {"r": 0}, "rank-huge": {"r": 10**9},
        "rank-text": {"r": "two"}, "rank-negative": {"r": -2}, "alpha-nan": {"lora_alpha": math.nan}, "alpha-infinite": {"lora_alpha": math.inf}, "type": {"peft_type": "PICKLE"},
        "bias": {"bias": "all"}, "modules-evil": {"target_modules": "(a+)+$"}, "modules-number": {"target_modules": 7}, "save": {"modules_to_save": ["lm_head"]},
        "dora": {"use_dora": True}, "auto-mapping": {"auto_mapping": {"base_model_class": "Evil", "parent_library": "evil"}}, "rank-pattern": {"rank_pattern": {"(a+)+$": 8}},
    }  # fmt: skip
    lora = {f"base_model.model.model.layers.0.self_attn.q_proj.lora_{side}.weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [16 * at, 16 * at + 16]} for at, side in enumerate("AB")}  # fmt: skip
    for name, change in wrong.items():
        files: Files = whole | {
            "adapter_config.json": _dumps(fine | change),
            "adapter_model.safetensors": good.weights(lora, bytes(32)),
        }
        yield HostileRepo(f"adapter-{name}", "adapters", files)
    pickled = whole | {"adapter_config.json": _dumps(fine), "adapter_model.bin": b"\x80\x04."}
    yield HostileRepo("adapter-pickle", "adapters", pickled)


def _code(good: GoodRepo, _chance: random.Random, canaries: Path) -> Iterator[HostileRepo]:
    """Yield code that a careless loader would run: pickles, modules, hooks."""
    for number, name in enumerate(("pytorch_model.bin", "model.pt", "model.ckpt", "consolidated.00.pth", "model.pkl", "training_args.bin", "optimizer.pt", "scheduler.pkl")):  # fmt: skip
        payload = _pickle(canaries / f"pickle-{number}")
        yield HostileRepo(f"code-only-{number}", "code", {WEIGHTS: None, name: payload})
        yield HostileRepo(f"code-beside-{number}", "code", {name: payload}, False)
        yield HostileRepo(f"code-as-weights-{number}", "code", {WEIGHTS: payload})
    for number, name in enumerate(("modeling_llama.py", "tokenization_llama.py", "custom_generate/generate.py", "sitecustomize.py", "conftest.py", "handler.py", "__init__.py", "torch.py", "json.py")):  # fmt: skip
        body = b"import pathlib\npathlib.Path(%r).touch()\n" % str(canaries / f"module-{number}")
        yield HostileRepo(f"code-module-{number}", "code", {name: body}, False)
    for kind in ("Evil", "../evil", "PreTrainedTokenizer", "os.system", 7):
        config = good.tokenizer_config | {"tokenizer_class": kind, "auto_map": {"AutoTokenizer": ["tokenization_evil.Evil", None]}}  # fmt: skip
        body = b"import pathlib\npathlib.Path(%r).touch()\n" % str(canaries / "tokenizer-code")
        files: Files = {"tokenizer_config.json": _dumps(config), "tokenization_evil.py": body}
        yield HostileRepo(
            f"code-tokenizer-{str(kind).strip('./').replace('/', '-')}", "code", files
        )


class _Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


def _pickle(canary: Path) -> bytes:
    written = io.BytesIO()
    pickle.dump(_Touch(canary), written)
    return written.getvalue()


def _lies(_good: GoodRepo, _chance: random.Random, _canaries: Path) -> Iterator[HostileRepo]:
    """Yield good repos on a Hub that lies about them."""
    from benchmarks.hostile.hub import LIES

    for lie, must_be_refused in LIES.items():
        yield HostileRepo(f"hub-{lie}", "lying Hub", {}, must_be_refused, lie=lie)


MAKERS: tuple[Maker, ...] = (
    _headers,
    _tokenizers,
    _configs,
    _templates,
    _indexes,
    _adapters,
    _code,
    _lies,
)
