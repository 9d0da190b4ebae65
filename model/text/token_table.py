"""What every token of a vocabulary contributes to decoded text: its raw bytes, and its text where those
are whole.

Two families of decoders are read. Byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM) spells each byte of a
token as one printable character. SentencePiece-like ones (Llama 2, Mistral) hold plain text with U+2581
for a space, and spell bytes that are in no piece as tokens `<0x00>` to `<0xFF>`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import tokenizers

from model.config import ModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_ANCHOR = "x"
_NOT_A_BYTE = "\uffff"


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Entry i belongs to token id i; ids without a token have empty entries.

    `texts[i]` is the token's text anywhere but at the start of a text, or None where its bytes are not whole
    UTF-8 characters and have to be joined with its neighbours'. `raw[i]` are its bytes.
    """

    texts: list[str | None]
    raw: list[bytes]
    byte_level: bool
    trims_start: bool  # the decoder drops a space from the first token of a text


def build_token_table(backend: tokenizers.Tokenizer, tokens: list[str | None]) -> TokenTable:
    """`tokens` as `tokens_by_id` gives them. Raises ModelError for a decoder that looks at several tokens."""
    steps = _decoder_steps(backend)
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds:
        if not set(kinds) <= {"ByteLevel", "Fuse"}:
            raise ModelError(f"tokenizer.json: unsupported decoder, {' + '.join(kinds)}")
        raw = [_byte_level_bytes(token) for token in tokens]
        return TokenTable([_whole_text(data) for data in raw], raw, byte_level=True, trims_start=False)
    for step in steps:
        _check_metaspace_step(step)
    raw = _metaspace_bytes(backend, tokens, byte_fallback="ByteFallback" in kinds)
    texts = [_whole_text(data) for data in raw]
    return TokenTable(texts, raw, byte_level=False, trims_start=bool({"Strip", "Metaspace"} & set(kinds)))


def tokens_by_id(backend: tokenizers.Tokenizer) -> list[str | None]:
    """The vocabulary's tokens, added ones too, in the order of their ids; None where an id has no token."""
    vocabulary = backend.get_vocab(with_added_tokens=True)
    tokens: list[str | None] = [None] * (max(vocabulary.values(), default=-1) + 1)
    for token, token_id in vocabulary.items():
        tokens[token_id] = token
    return tokens


def _whole_text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _byte_alphabet() -> dict[int, str]:
    """`str.translate` table from GPT-2's printable spelling of a byte to the character with that code point.

    Printable Latin-1 bytes spell themselves; the others take the characters from U+0100 on, in order.
    Characters below U+0100 that spell no byte map to one that Latin-1 cannot encode.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    table = {byte: chr(byte) if byte in printable else _NOT_A_BYTE for byte in range(256)}
    others = [byte for byte in range(256) if byte not in printable]
    return table | {0x100 + i: chr(byte) for i, byte in enumerate(others)}


_BYTE_ALPHABET = _byte_alphabet()


def _byte_level_bytes(token: str | None) -> bytes:
    if token is None:
        return b""
    try:
        return token.translate(_BYTE_ALPHABET).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode()  # an added token that is not spelled in bytes, such as one with a space


def _metaspace_bytes(
    backend: tokenizers.Tokenizer, tokens: list[str | None], *, byte_fallback: bool
) -> list[bytes]:
    raw = []
    for token in tokens:
        byte = _BYTE_TOKEN.match(token) if token and byte_fallback else None
        if byte:
            raw.append(bytes([int(byte[1], 16)]))
        else:
            raw.append(_text_after_anchor(backend, token).encode() if token else b"")
    return raw


def _text_after_anchor(backend: tokenizers.Tokenizer, token: str) -> str:
    """The token's text where another token precedes it, so that nothing is trimmed from it."""
    if backend.decoder is None:
        return " " + token  # tokens without a decoder are joined by spaces
    return str(backend.decoder.decode([_ANCHOR, token]))[len(_ANCHOR) :]


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    if backend.decoder is None:
        return []
    decoder = json.loads(backend.decoder.__getstate__())
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]


def _check_metaspace_step(step: dict[str, Any]) -> None:
    """Refuse steps by which a token's text depends on more than whether it is the first one."""
    kind = step["type"]
    if kind == "Replace" and "String" in step["pattern"]:
        return
    if kind == "Strip" and step["stop"] == 0:
        return
    if kind not in ("ByteFallback", "Fuse", "Metaspace"):
        raise ModelError(f"tokenizer.json: unsupported decoder step {json.dumps(step, ensure_ascii=False)}")
