"""`tokenizer.model`, SentencePiece's own file, in the words of GGUF's metadata.

The file is one protobuf message; only the fields below matter for BPE as Llama 2 and Mistral use it.
Numbers of fields, and defaults: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from model.config import ModelError

_BPE = 2
_NORMAL = 1  # the kinds of pieces have the numbers that GGUF has for types of tokens

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_sentencepiece(path: Path) -> dict[str, Any]:
    """`tokenizer.ggml.*` for `read_gguf_tokenizer`.

    Raises ModelError for a damaged file, and for one that asks for what those keys cannot say.
    """
    try:
        return _metadata(path.read_bytes())
    except (LookupError, struct.error, UnicodeDecodeError, AttributeError, TypeError):
        raise ModelError(f"{path}: truncated or damaged") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: {error}") from None


def _metadata(content: bytes) -> dict[str, Any]:
    fields = list(_fields(content))
    pieces = [dict(_fields(value)) for number, value in fields if number == 1]
    trainer, normalizer = (
        dict(_fields(b"".join(value for number, value in fields if number == part))) for part in (2, 3)
    )
    if trainer.get(3, 1) != _BPE:
        raise ValueError("not of the kind BPE; others are not supported")
    if normalizer.get(2) or normalizer.get(4, 1):
        raise ValueError("normalizes text or removes spaces, which is not supported")
    ids = {
        name: _signed(trainer.get(number, default))
        for name, number, default in (("unknown", 40, 0), ("bos", 41, 1), ("eos", 42, 2))
    }
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [piece[1].decode() for piece in pieces],
        "tokenizer.ggml.scores": [struct.unpack("<f", piece.get(2, bytes(4)))[0] for piece in pieces],
        "tokenizer.ggml.token_type": [piece.get(3, _NORMAL) for piece in pieces],
        "tokenizer.ggml.add_space_prefix": bool(normalizer.get(3, 1)),
        **{f"tokenizer.ggml.{name}_token_id": token_id for name, token_id in ids.items() if token_id >= 0},
    }


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of each field: an int of a varint, else bytes."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value: Any
            value, position = _varint(message, position)
        else:
            if kind == _BYTES:
                length, position = _varint(message, position)
            else:
                length = {_FIXED64: 8, _FIXED32: 4}.get(kind, len(message))
            value, position = message[position : position + length], position + length
        if position > len(message):
            raise IndexError
        yield number, value


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """(value, position after it). Raises IndexError at the end of the message."""
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position


def _signed(value: int) -> int:
    """Of an int32, which is written as 64 bits of two's complement."""
    return value - (1 << 64) if value >= 1 << 63 else value
