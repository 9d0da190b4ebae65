"""Builds a tokenizer from the metadata of a GGUF file.

The metadata holds the vocabulary and the merges, but of how text is split before merging only a name
(`tokenizer.ggml.pre`); the rules below are those of the tokenizers that the names stand for.
Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from model.config import ModelError

logger = logging.getLogger(__name__)

# Token types of `tokenizer.ggml.token_type`.
_UNKNOWN, CONTROL, _USER_DEFINED = 2, 3, 4

# Control tokens that end a turn or a text, by spelling, since metadata often names only one of a model's two.
_END_TOKENS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<|end|>")

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}|{_SYMBOLS_AND_SPACES}"
_LLAMA3 = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_SYMBOLS_AND_SPACES}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class GgufTokenizer:
    """What the metadata gives of a tokenizer: the library's object, and ids that it does not know of."""

    backend: tokenizers.Tokenizer
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]


def read_gguf_tokenizer(metadata: Mapping[str, Any], path: object) -> GgufTokenizer:
    """Build the tokenizer that `metadata` describes; `path` is named in errors (ModelError)."""
    kind = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if kind is None or not tokens:
        raise ModelError(f"{path}: holds no tokenizer (no tokenizer.ggml.tokens in its metadata)")
    if len(set(tokens)) != len(tokens):
        raise ModelError(f"{path}: tokenizer.ggml.tokens lists a token twice")
    if kind == "gpt2":
        backend = _byte_level_bpe(metadata, tokens, path)
        adds_bos = metadata.get("tokenizer.ggml.pre") in ("llama-bpe", "llama3", "llama-v3", "tekken")
    elif kind == "llama":
        backend = _sentencepiece_bpe(metadata, tokens, path)
        adds_bos = True
    else:
        raise ModelError(f"{path}: tokenizer.ggml.model {kind!r} is not supported (gpt2 and llama are)")
    _add_special_tokens(backend, metadata, tokens)
    bos = _token_id(metadata, "bos_token_id", tokens, path)
    if bos is not None and metadata.get("tokenizer.ggml.add_bos_token", adds_bos):
        prepend_bos(backend, bos)
    return GgufTokenizer(backend, bos, _eos_token_ids(metadata, tokens, path))


def prepend_bos(backend: tokenizers.Tokenizer, bos_id: int) -> None:
    """Let `backend` put BOS before every text that it encodes with special tokens."""
    # The token goes by a name of its own here, since its spelling may hold the template's separators.
    bos = {"id": "BOS", "ids": [bos_id], "tokens": [backend.id_to_token(bos_id)]}
    backend.post_processor = processors.TemplateProcessing(single=["BOS", "$A"], special_tokens=[bos])


def _byte_level_bpe(metadata: Mapping[str, Any], tokens: list[str], path: object) -> tokenizers.Tokenizer:
    pre = metadata.get("tokenizer.ggml.pre", "default")
    merges = metadata.get("tokenizer.ggml.merges")
    if merges is None:
        raise ModelError(f"{path}: holds no tokenizer.ggml.merges")
    ignore_merges = pre in ("llama-bpe", "llama3", "llama-v3", "tekken")
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    try:
        model = models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=ignore_merges)
    except Exception as error:  # the Rust side raises plain Exception
        reason = str(error).splitlines()[0]
        raise ModelError(f"{path}: tokenizer.ggml.merges cannot be read: {reason}") from None
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = _pre_tokenizer(pre, path)
    if pre in _QWEN2_NAMES:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


_QWEN2_NAMES = ("qwen2", "deepseek-r1-qwen")
_SPLIT_PATTERNS = {
    **dict.fromkeys(_QWEN2_NAMES, _QWEN2),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), _LLAMA3),
    "tekken": _TEKKEN,
}
_GPT2_NAMES = ("gpt-2", "default")
_SINGLE_DIGIT_NAMES = ("smollm", "starcoder", "refact", "command-r")


def _pre_tokenizer(pre: str, path: object) -> Any:
    """How text is split before merging, for the scheme that `tokenizer.ggml.pre` names."""
    if pre in _SPLIT_PATTERNS:
        split = pre_tokenizers.Split(Regex(_SPLIT_PATTERNS[pre]), behavior="isolated")
        return pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in _SINGLE_DIGIT_NAMES:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    if pre in _GPT2_NAMES:
        if pre == "default":
            logger.warning("%s names no pre-tokenizer; using GPT-2's, which may split text otherwise", path)
        return words
    known = ", ".join(sorted([*_SPLIT_PATTERNS, *_SINGLE_DIGIT_NAMES, *_GPT2_NAMES]))
    raise ModelError(f"{path}: tokenizer.ggml.pre {pre!r} is not supported (only {known})")


def _sentencepiece_bpe(metadata: Mapping[str, Any], tokens: list[str], path: object) -> tokenizers.Tokenizer:
    scores = metadata.get("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(tokens):
        raise ModelError(f"{path}: tokenizer.ggml.scores does not give each token's score")
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    unknown = _token_id(metadata, "unknown_token_id", tokens, path)
    model = models.BPE(
        vocab=vocabulary,
        merges=_merges_from_scores(vocabulary, scores),
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = tokenizers.Tokenizer(model)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    spaces = normalizers.Replace(" ", "▁")
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = spaces
    backend.decoder = decoders.Sequence(steps)
    return backend


def _merges_from_scores(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """The merges that SentencePiece's BPE performs: any two pieces that make a piece, best score first."""
    merges = []
    for piece, token_id in vocabulary.items():
        for split in range(1, len(piece)):
            left, right = piece[:split], piece[split:]
            if left in vocabulary and right in vocabulary:
                merges.append((-scores[token_id], vocabulary[left], vocabulary[right], left, right))
    merges.sort()
    return [(left, right) for *_, left, right in merges]


def _add_special_tokens(
    backend: tokenizers.Tokenizer, metadata: Mapping[str, Any], tokens: list[str]
) -> None:
    types = metadata.get("tokenizer.ggml.token_type", [])
    added = [
        AddedToken(token, special=kind != _USER_DEFINED, normalized=False)
        for token, kind in zip(tokens, types, strict=False)
        if kind in (_UNKNOWN, CONTROL, _USER_DEFINED)
    ]
    backend.add_tokens(added)  # their ids stay, since the vocabulary has them


def _token_id(metadata: Mapping[str, Any], name: str, tokens: list[str], path: object) -> int | None:
    token_id = metadata.get(f"tokenizer.ggml.{name}")
    if token_id is None:
        return None
    if not 0 <= token_id < len(tokens):
        raise ModelError(f"{path}: tokenizer.ggml.{name} {token_id} is not in the vocabulary")
    return int(token_id)


def _eos_token_ids(metadata: Mapping[str, Any], tokens: list[str], path: object) -> tuple[int, ...]:
    """Every token that ends a text: those that the metadata names first, then control tokens known to."""
    named = [_token_id(metadata, f"{name}_token_id", tokens, path) for name in ("eos", "eot", "eom")]
    types = metadata.get("tokenizer.ggml.token_type", [])
    by_spelling = [
        token_id
        for token_id, (token, kind) in enumerate(zip(tokens, types, strict=False))
        if kind == CONTROL and token in _END_TOKENS
    ]
    return tuple(dict.fromkeys([*(token_id for token_id in named if token_id is not None), *by_spelling]))
