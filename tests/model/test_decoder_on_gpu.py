"""The decoder on a CUDA device in bf16, against transformers on the same card and weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.decoders import Stepper, build_decoder
from tests.support.tiny_models import make_tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

CUDA = torch.device("cuda")
FULL_WIDTH = {  # the public shapes, two layers deep
    "qwen3": {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12288,
        "initializer_range": 0.02,
    },
    "qwen2": {
        "hidden_size": 3584,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18944,
        "initializer_range": 0.02,
    },
    "llama3": {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "initializer_range": 0.02,
    },
}
CASES = [("qwen3", {}), ("qwen2", {}), ("llama3", {}), ("llama-yarn", {}), *FULL_WIDTH.items()]


def logits_of(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(ids.to(model.device)).logits[0].float().cpu()
    return logits


@pytest.mark.parametrize(("architecture", "shape"), CASES, ids=lambda case: str(case)[:12])
@pytest.mark.parametrize("chunk", [1, 7, 48])
def test_bf16_logits_are_as_near_to_fp32_as_those_of_transformers(
    architecture: str, shape: dict[str, Any], chunk: int
) -> None:
    model, _ = make_tiny_model(architecture, **shape)
    ids = torch.randint(3, 320, (1, 48), generator=torch.Generator().manual_seed(4))
    exact = logits_of(model.to(CUDA), ids)
    model = model.to(torch.bfloat16)
    theirs = logits_of(model, ids)
    decoder = build_decoder(model, block_size=16, num_blocks=8, dtype=torch.bfloat16, device=CUDA)
    stepper = Stepper(decoder, num_blocks=8)
    ours = torch.cat([stepper.step({0: part})[0].cpu() for part in _chunks(ids[0].tolist(), chunk)])
    scale = exact.abs().max()
    assert (ours - exact).abs().max() / scale < 2 * (theirs - exact).abs().max() / scale + 1e-3
    assert (ours - exact).abs().mean() < 1.3 * (theirs - exact).abs().mean() + 1e-4 * scale


def _chunks(ids: list[int], size: int) -> list[list[int]]:
    return [ids[i : i + size] for i in range(0, len(ids), size)]
