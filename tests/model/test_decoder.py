"""The decoder against transformers on the same random weights: logits of all rows, however work is cut."""

from __future__ import annotations

import random

import pytest
import torch

from model.config import ModelError
from model.decoder import Decoder
from tests.support.decoders import CPU, Stepper, build_decoder, config_of
from tests.support.tiny_models import TINY_MODELS, make_tiny_model

NUM_BLOCKS = 256


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    error = (actual - expected).abs().max() / expected.abs().max()
    assert error < 1e-4, f"relative error {error:.2e}"


def random_pieces(rng: random.Random, total: int) -> list[int]:
    """Cut `total` tokens into a few chunks, then single tokens."""
    pieces = []
    while total > 8:
        pieces.append(rng.randint(1, min(40, total)))
        total -= pieces[-1]
    return pieces + [1] * total


@pytest.mark.parametrize("architecture", TINY_MODELS)
def test_logits_equal_transformers_under_any_chunking_and_batch(architecture: str) -> None:
    hf_model, _ = make_tiny_model(architecture)
    rng = random.Random(architecture)
    sequences = {key: [rng.randrange(320) for _ in range(rng.randint(2, 90))] for key in range(5)}
    with torch.inference_mode():
        expected = {key: hf_model(torch.tensor([ids])).logits[0] for key, ids in sequences.items()}
    for block_size in (1, 4, 16):
        num_blocks = NUM_BLOCKS if block_size > 1 else 512
        decoder = build_decoder(hf_model, block_size=block_size, num_blocks=num_blocks)
        stepper = Stepper(decoder, num_blocks, seed=block_size)
        pieces = {key: random_pieces(rng, len(ids)) for key, ids in sequences.items()}
        got: dict[int, list[torch.Tensor]] = {key: [] for key in sequences}
        while any(pieces.values()):
            members = [key for key, rest in pieces.items() if rest and rng.random() < 0.7]
            work = {}
            for key in members:
                start = stepper.cached.get(key, 0)
                work[key] = sequences[key][start : start + pieces[key].pop(0)]
            if work:
                for key, rows in stepper.step(work).items():
                    got[key].append(rows)
        for key in sequences:
            assert_close(torch.cat(got[key]), expected[key])


@pytest.mark.parametrize("architecture", ["smollm", "qwen3", "qwen2"])
def test_rows_that_are_not_wanted_change_nothing_but_their_own_logits(architecture: str) -> None:
    """The K and V that they leave behind are what the next step reads."""
    hf_model, _ = make_tiny_model(architecture)
    all_rows, last_rows = (Stepper(build_decoder(hf_model, num_blocks=64), 64) for _ in range(2))
    for work in ({0: [*range(3, 20)], 1: [5, 7, 32]}, {0: [9], 1: [11, 12]}, {0: [1], 1: [2], 2: [8, 9]}):
        expected, got = all_rows.step(work), last_rows.step(work, last_only=True)
        for key, rows in got.items():
            assert_close(rows, expected[key][-1:])


def test_long_context_crosses_scaled_rope_lengths() -> None:
    """Past the original length, where scaled frequencies matter most."""
    for architecture in ("llama3", "llama-yarn", "llama-linear"):
        hf_model, _ = make_tiny_model(architecture)
        ids = torch.randint(320, (300,), generator=torch.Generator().manual_seed(1))
        with torch.inference_mode():
            expected = hf_model(ids.unsqueeze(0)).logits[0]
        stepper = Stepper(build_decoder(hf_model, block_size=16), 64)
        rows = [stepper.step({0: part.tolist()})[0] for part in ids.split(128)]
        assert_close(torch.cat(rows), expected)


def test_wrong_shape_names_the_tensor_and_both_shapes() -> None:
    hf_model, _ = make_tiny_model("qwen2")
    decoder = build_decoder(hf_model)
    for name in ("model.layers.1.self_attn.k_proj.weight", "model.norm.weight", "model.embed_tokens.weight"):
        good = hf_model.state_dict()[name]
        bad = torch.cat((good, good[:1]))
        with pytest.raises(ModelError) as error:
            decoder.load_weight(name, bad)
        for part in (name, str(list(bad.shape)), str(list(good.shape))):
            assert part in str(error.value)


def test_unknown_tensor_and_architecture_are_named() -> None:
    hf_model, _ = make_tiny_model("smollm")
    decoder = build_decoder(hf_model)
    with pytest.raises(ModelError, match=r"lm_head\.weight"):  # tied: the checkpoint's copy has no place
        decoder.load_weight("lm_head.weight", torch.zeros(320, 96))
    fields = {name: getattr(decoder.config, name) for name in decoder.config.__slots__}
    config = type(decoder.config)(**{**fields, "architecture": "GPTBigcodeForCausalLM"})
    with pytest.raises(ModelError, match="GPTBigcodeForCausalLM"):
        Decoder(config, decoder.attention, torch.float32, CPU)


def test_checkpoint_names_are_those_of_transformers() -> None:
    for architecture in TINY_MODELS:
        hf_model, hf_config = make_tiny_model(architecture)
        decoder = build_decoder(hf_model)
        expected = set(hf_model.state_dict())
        if config_of(hf_config).tie_word_embeddings:
            expected.discard("lm_head.weight")
        assert decoder.checkpoint_names() == expected


def test_bf16_is_as_close_to_fp32_as_transformers_bf16_is() -> None:
    """Rounding where transformers rounds keeps our error near its own."""
    for architecture in ("smollm", "qwen3"):
        hf_model, _ = make_tiny_model(architecture)
        ids = torch.randint(320, (60,), generator=torch.Generator().manual_seed(2))
        with torch.inference_mode():
            exact = hf_model(ids.unsqueeze(0)).logits[0]
            decoder = build_decoder(hf_model, dtype=torch.bfloat16)
            peer = hf_model.bfloat16()(ids.unsqueeze(0)).logits[0].float()
        stepper = Stepper(decoder, 64)
        pieces = [ids[:50], *ids[50:].split(1)]
        rows = torch.cat([stepper.step({0: piece.tolist()})[0] for piece in pieces])
        assert rows.dtype == torch.float32
        assert (rows - exact).std() < 1.3 * (peer - exact).std()
