"""Linear weights in half precision: what transformers computes in fp32 with weights rounded to fp16."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernels.half_weight import has_half_weights
from model.config import ModelError
from model.source import resolve_model
from model.weights.half import PACKING_PHASE
from tests.support.loaded import decoder_logits, load_source
from tests.support.tiny_models import save_tiny_model

PROMPT = [5, 17, 200, 3, 88, 41, 9]
needs_half_weights = pytest.mark.skipif(not has_half_weights(), reason="torch without FBGEMM")


@needs_half_weights
@pytest.mark.parametrize("architecture", ["llama", "smollm", "qwen2", "qwen3"])  # biases; tied heads and not
def test_logits_are_those_of_rounded_weights(architecture: str, tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path, architecture)
    told: list[tuple[str, int, int]] = []
    decoder = load_source(
        resolve_model(str(tmp_path)), weight_dtype="float16", progress=lambda *event: told.append(event)
    )
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):  # a tied embedding keeps its own, unrounded
            module.weight = torch.nn.Parameter(module.weight.half().float())
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(decoder_logits(decoder, PROMPT), expected, atol=1e-4, rtol=1e-4)
    assert told[-1] == (PACKING_PHASE, 9, 9)  # four in each of two layers, and the head


@needs_half_weights
def test_the_fp32_weights_are_given_up(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "qwen3")
    decoder = load_source(resolve_model(str(tmp_path)), weight_dtype="float16")
    matrices = [name for name, parameter in decoder.named_parameters() if parameter.dim() == 2]
    assert matrices == ["model.embed_tokens.weight"]
    assert not decoder.checkpoint_names()  # these would keep them alive


def test_it_is_refused_for_other_compute_types(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "qwen3")
    with pytest.raises(ModelError, match=r"--weight-dtype float16 .*--dtype float32"):
        load_source(resolve_model(str(tmp_path)), torch.bfloat16, weight_dtype="float16")
