"""The tokenizer of a model: text to token ids and back, over Hugging Face's Rust `tokenizers`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import pre_tokenizers

from model.config import ModelError
from model.source import ModelSource
from model.text.gguf_tokenizer import CONTROL, prepend_bos, read_gguf_tokenizer
from model.text.pretrained_files import added_tokens, read_tokenizer_config, special_token
from model.text.sentencepiece_file import read_sentencepiece
from model.text.token_table import TokenTable, build_token_table, tokens_by_id
from model.weights.gguf_header import read_gguf_header

logger = logging.getLogger(__name__)


class InvalidTextError(UnicodeError):
    """Text that no tokenizer can encode: it holds half of a UTF-16 surrogate pair."""


class Tokenizer:
    """Encodes and decodes; safe to use from several threads, and encoding leaves the GIL to others.

    `bos_token_id` and `eos_token_ids` are what the tokenizer's files name (a model's
    `ModelConfig.eos_token_ids` may name more). `special_ids` are the ids that `skip_special_tokens`
    leaves out.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_token_id: int | None = None,
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._tokens = tokens_by_id(backend)
        self.vocab_size = len(self._tokens)
        """One more than the highest token id; a model's embedding may have more rows than that."""
        self.bos_token_id = bos_token_id
        self.eos_token_ids = tuple(dict.fromkeys(eos_token_ids))
        self.special_ids = frozenset(
            token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self.adds_bos = bos_token_id is not None and self._encode("", add_special_tokens=True)[:1] == [
            bos_token_id
        ]
        """Whether `encode` puts BOS first, unless told not to."""
        self._warned_of_bos = False

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Special tokens written out in it become their ids.

        With `add_special_tokens` the model's own (BOS, as a rule) are added, but a BOS that the text
        already begins with is not doubled. Raises InvalidTextError for a lone surrogate.
        """
        ids = self._encode(text, add_special_tokens)
        if add_special_tokens and self.adds_bos and self._begins_with_two_bos(ids):
            if not self._warned_of_bos:
                self._warned_of_bos = True
                logger.warning("a prompt begins with %r, which is added anyway: kept once", self.bos_token)
            return ids[1:]
        return ids

    def encode_chat(self, text: str) -> list[int]:
        """Token ids of a rendered chat template. The template owns BOS: none is added, and two become one."""
        ids = self._encode(text, add_special_tokens=False)
        return ids[1:] if self._begins_with_two_bos(ids) else ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of `ids`; invalid UTF-8 becomes U+FFFD. Raises ValueError for a negative id."""
        try:
            return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
        except OverflowError:
            raise ValueError("token ids must be between 0 and 2**32 - 1") from None

    def id_to_token(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it, or None for an id without a token."""
        return self._tokens[token_id] if 0 <= token_id < self.vocab_size else None

    def token_to_id(self, token: str) -> int | None:
        return self._backend.token_to_id(token)

    def token_bytes(self, token_id: int) -> bytes:
        """The token's own bytes, empty for an unknown id; those of all tokens of a text are its UTF-8."""
        return self.table.raw[token_id] if 0 <= token_id < self.vocab_size else b""

    def token_texts(self, *, skip_special_tokens: bool) -> list[str | None]:
        """`table.texts`, with or without the special tokens' text. Shared: not to be changed."""
        return self._texts_without_special if skip_special_tokens else self.table.texts

    def first_text(self, token_id: int) -> str:
        """The token's text where it begins a text."""
        token = self.id_to_token(token_id)
        if token is None:
            return ""
        return str(self._backend.decoder.decode([token])) if self._backend.decoder else token

    @property
    def bos_token(self) -> str | None:
        return None if self.bos_token_id is None else self.id_to_token(self.bos_token_id)

    @property
    def eos_token(self) -> str | None:
        return self.id_to_token(self.eos_token_ids[0]) if self.eos_token_ids else None

    @cached_property
    def table(self) -> TokenTable:
        return build_token_table(self._backend, self._tokens)

    @cached_property
    def _texts_without_special(self) -> list[str | None]:
        texts = self.table.texts.copy()
        for token_id in self.special_ids:
            texts[token_id] = ""
        return texts

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        try:
            # Faster than `encode`, which keeps offsets, and with the GIL released for all of it.
            (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except TypeError:
            raise InvalidTextError(_surrogate_message(text)) from None
        return list(encoding.ids)

    def _begins_with_two_bos(self, ids: list[int]) -> bool:
        return len(ids) > 1 and ids[0] == ids[1] == self.bos_token_id


def load_tokenizer(source: ModelSource) -> Tokenizer:
    """The tokenizer of a folder (`tokenizer.json`, else `tokenizer.model`) or of a GGUF file's metadata.

    Raises ModelError, in one line, where there is none or it is of a kind that Octavo does not read.
    """
    tokenizer = _from_gguf(source.path) if source.kind == "gguf" else _from_folder(source.path)
    _ = tokenizer.table  # refuses an unsupported decoder now rather than at the first token
    return tokenizer


def _from_gguf(path: Path) -> Tokenizer:
    parts = read_gguf_tokenizer(read_gguf_header(path).metadata, path)
    return Tokenizer(parts.backend, bos_token_id=parts.bos_token_id, eos_token_ids=parts.eos_token_ids)


def _from_folder(folder: Path) -> Tokenizer:
    config = read_tokenizer_config(folder)
    if not (folder / "tokenizer.json").is_file() and (folder / "tokenizer.model").is_file():
        return _from_sentencepiece(folder / "tokenizer.model", config)
    backend = _read_backend(folder)
    ids = {}
    for name in ("bos_token", "eos_token"):
        token = special_token(config, name)
        token_id = backend.token_to_id(token) if token else None
        if token_id is not None:
            ids[name] = token_id
            backend.add_special_tokens([token])  # keeps its id; makes it special where the file forgot to
    bos_id, eos_id = ids.get("bos_token"), ids.get("eos_token")
    if bos_id is not None and config.get("add_bos_token") and backend.post_processor is None:
        prepend_bos(backend, bos_id)
    return Tokenizer(backend, bos_token_id=bos_id, eos_token_ids=() if eos_id is None else (eos_id,))


def _from_sentencepiece(file: Path, config: dict[str, Any]) -> Tokenizer:
    """SentencePiece's file, with what the files beside it add or change, as if a GGUF file said all of it."""
    metadata = read_sentencepiece(file)
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    for token_id, token in added_tokens(file.parent, config):
        if token_id < len(tokens):
            continue  # told again
        if token_id > len(tokens):
            raise ModelError(
                f"{file.parent}: no token has the id {len(tokens)}, but {token!r} has a higher one"
            )
        tokens.append(token)
        metadata["tokenizer.ggml.scores"].append(0.0)
        metadata["tokenizer.ggml.token_type"].append(CONTROL)
    metadata["tokenizer.ggml.add_bos_token"] = config.get("add_bos_token", True)
    for name in ("bos", "eos"):
        named = special_token(config, f"{name}_token")
        if named in tokens:
            metadata[f"tokenizer.ggml.{name}_token_id"] = tokens.index(named)
    parts = read_gguf_tokenizer(metadata, file)
    if config.get("legacy") is False and metadata["tokenizer.ggml.add_space_prefix"]:
        # A space is added before the whole text only, not after every special token.
        parts.backend.normalizer = None
        parts.backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return Tokenizer(parts.backend, bos_token_id=parts.bos_token_id, eos_token_ids=parts.eos_token_ids)


def _read_backend(folder: Path) -> tokenizers.Tokenizer:
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ModelError(f"{folder}: neither tokenizer.json nor tokenizer.model")
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the Rust side raises plain Exception
        raise ModelError(f"{file}: {error}") from None


def _surrogate_message(text: object) -> str:
    if not isinstance(text, str):
        raise TypeError(f"a prompt's text must be a str, not {type(text).__name__}")
    position = next((i for i, character in enumerate(text) if "\ud800" <= character <= "\udfff"), None)
    return f"the text holds a lone surrogate at character {position}, which is not valid Unicode"
