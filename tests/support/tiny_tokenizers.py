"""Small tokenizers of the two families that models use, made on the spot."""

from __future__ import annotations

import string

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "the quick brown fox jumps over the lazy dog, 1234567890 times; it's (really) true!",
    "dábel ďas žluť příliš žluťoučký kůň úpěl ďábelské ódy",
    "def add(a, b):\n    return a + b\n\n\n# done\t\tok",
    "日本語のテキスト 漢字 \U0001f600 \U0001f600",
]
BOS, EOS, UNK = "<s>", "</s>", "<unk>"


def byte_level_backend(*, adds_bos: bool = True) -> tokenizers.Tokenizer:
    """Byte-level BPE, as GPT-2's and Llama 3's; all 256 bytes are tokens. BOS has id 1, EOS 2."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=[UNK, BOS, EOS], show_progress=False
    )
    backend.train_from_iterator(CORPUS * 3, trainer)
    backend.add_tokens([AddedToken("<tool_call>"), AddedToken("two words"), AddedToken("é!")])
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing(single=[BOS, "$A"], special_tokens=[(BOS, 1)])
    return backend


def sentencepiece_vocabulary() -> list[str]:
    """Unknown, BOS, EOS, the 256 byte tokens, then pieces by falling score. No byte of a piece is lost."""
    words = ["▁t", "he", "▁the", "▁d", "og", "▁dog", "▁▁", "▁é", "ab", "abc", "▁a", "▁ab"]
    pieces = ["▁", *string.ascii_letters, *string.digits, *".,!?;:()é☃"]
    return [UNK, BOS, EOS, *(f"<0x{byte:02X}>" for byte in range(256)), *words, *pieces]


def sentencepiece_backend(*, decoder: tokenizers.decoders.Decoder | None = None) -> tokenizers.Tokenizer:
    """BPE with U+2581 for spaces and byte fallback, as Llama 2's. BOS has id 1, EOS 2."""
    vocabulary = {token: token_id for token_id, token in enumerate(sentencepiece_vocabulary())}
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "d"), ("o", "g"), ("▁d", "og"), ("▁", "▁")]
    merges += [("▁", "é"), ("a", "b"), ("ab", "c"), ("▁", "a"), ("▁a", "b")]
    backend = tokenizers.Tokenizer(
        models.BPE(vocabulary, merges, unk_token=UNK, fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoder or decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([UNK, BOS, EOS])
    backend.post_processor = processors.TemplateProcessing(single=[BOS, "$A"], special_tokens=[(BOS, 1)])
    return backend
