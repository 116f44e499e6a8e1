"""A sentencepiece model as a tokenizer of the `tokenizers` library, which encodes text to the same ids.

transformers 5 has converters of its own, one for each tokenizer class. They leave out the dummy prefix, the
collapsing of spaces or the character map, each for other classes, so the ids are not those that the model was
trained with. Here everything is taken from the model file's own normalizer and trainer specification.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers

SPACE = "▁"
UNIGRAM, BPE = 1, 2  # TrainerSpec.ModelType
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # SentencePiece.Type
MAX_PIECES = 2_000_000
MAX_PIECE_CHARS = 512
SAMPLES = (
    "Hello there, how are you?",
    "User: I'm fine; it's 12:30 (in 2024)!\nBot: *smiles* \"Good.\"",
    "two  spaces, three   spaces",
    "naïve café, 日本語, Привет, مرحبا, 🙂",
    "ﬁne Ⅷ ½ \uff21",
    "def f(x):\treturn x[0] + {'a': 1}",
    "x",
)
PIECES_TRIED = 2_000

Piece = Any  # sentencepiece_model_pb2.ModelProto.SentencePiece


def read_model(data: bytes) -> Any:
    """Return the model's protocol buffer; ValueError if it is none of ours."""
    model = sentencepiece_model_pb2.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception:  # noqa: BLE001 - protobuf's DecodeError, which is no public class
        raise ValueError("tokenizer.model is no sentencepiece model") from None
    if not 0 < len(model.pieces) <= MAX_PIECES:
        raise ValueError(f"tokenizer.model has {len(model.pieces):,} pieces")
    if any(len(piece.piece) > MAX_PIECE_CHARS for piece in model.pieces):
        raise ValueError(f"tokenizer.model has a piece of over {MAX_PIECE_CHARS} characters")
    if len({piece.piece for piece in model.pieces}) != len(model.pieces):
        raise ValueError("tokenizer.model has the same piece twice")
    return model


def build_tokenizer(model: Any) -> Tokenizer:
    tokenizer = Tokenizer(_model(model))
    if steps := list(_normalizers(model.normalizer_spec)):
        tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(list(_decoders(model)))
    tokenizer.add_tokens(
        [
            AddedToken(piece.piece, normalized=False, special=piece.type == CONTROL)
            for piece in model.pieces
            if piece.type in (CONTROL, USER_DEFINED) and piece.piece
        ]
    )
    return tokenizer


def require_same_ids(tokenizer: Tokenizer, model: Any) -> None:
    """ValueError if it encodes a sample, or one of the model's own pieces, to other ids than sentencepiece."""
    reference = SentencePieceProcessor(model_proto=model.SerializeToString())
    special = {piece.piece for piece in model.pieces if piece.type in (CONTROL, USER_DEFINED)}
    for text in (*SAMPLES, *_pieces_to_try(model.pieces)):
        if any(token in text for token in special if token):
            continue  # special tokens in a text are cut out first: the prompts are written so
        if tokenizer.encode(text, add_special_tokens=False).ids != reference.encode(text):
            raise ValueError(f"tokenizer.model encodes {text[:40]!r} in a way that cannot be kept")


def _model(model: Any) -> models.Model:
    spec = model.trainer_spec
    if spec.model_type == UNIGRAM:
        scores = [(piece.piece, piece.score) for piece in model.pieces]
        return models.Unigram(scores, spec.unk_id, spec.byte_fallback)
    if spec.model_type == BPE:
        return models.BPE(
            {piece.piece: number for number, piece in enumerate(model.pieces)},
            _merges(model.pieces),
            unk_token=model.pieces[spec.unk_id].piece,
            fuse_unk=True,
            byte_fallback=spec.byte_fallback,
        )
    raise ValueError("tokenizer.model is neither a unigram nor a BPE model")


def _merges(pieces: Iterable[Piece]) -> list[tuple[str, str]]:
    """sentencepiece merges whichever neighbours make the piece with the highest score."""
    scores = {piece.piece: piece.score for piece in pieces if piece.type == NORMAL}
    merges = [
        (-score, place, piece[:cut], piece[cut:])
        for place, (piece, score) in enumerate(scores.items())
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    return [(left, right) for _, _, left, right in sorted(merges)]


def _normalizers(spec: Any) -> Iterator[normalizers.Normalizer]:
    if spec.precompiled_charsmap:
        yield normalizers.Precompiled(spec.precompiled_charsmap)
    if spec.remove_extra_whitespaces:
        yield normalizers.Replace(Regex("^ +| +$"), "")
        yield normalizers.Replace(Regex(" {2,}"), " ")
    if spec.add_dummy_prefix:
        yield normalizers.Prepend(SPACE)
    if spec.escape_whitespaces:
        yield normalizers.Replace(" ", SPACE)


def _decoders(model: Any) -> Iterator[decoders.Decoder]:
    yield decoders.Replace(SPACE, " ")
    if model.trainer_spec.byte_fallback:
        yield decoders.ByteFallback()
    yield decoders.Fuse()
    if model.normalizer_spec.add_dummy_prefix:
        yield decoders.Strip(" ", 1, 0)


def _pieces_to_try(pieces: Any) -> Iterator[str]:
    step = max(len(pieces) // PIECES_TRIED, 1)
    for number in range(0, len(pieces), step):
        if pieces[number].type == NORMAL:
            yield pieces[number].piece.replace(SPACE, " ")
