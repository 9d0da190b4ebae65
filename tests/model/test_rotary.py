"""Rotary frequencies of every scaling kind against transformers', and the table's extent."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from model.rotary import RotaryTable, rotary_frequencies
from tests.support.decoders import CPU, config_of

SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 2.5},
    {"rope_type": "dynamic", "factor": 4.0},
    {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 8.0},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096, "truncate": False},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096, "attention_factor": 0.9},
    {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: "-".join(f"{v}" for v in s.values()))
@pytest.mark.parametrize("head_dim", [64, 128])
def test_frequencies_equal_transformers(scaling: dict[str, Any], head_dim: int) -> None:
    hf_config = LlamaConfig(
        head_dim=head_dim,
        rope_theta=1e6,
        rope_scaling=dict(scaling),
        max_position_embeddings=int(
            scaling["factor"] * scaling.get("original_max_position_embeddings", 1024)
        ),
    )
    expected, expected_factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](hf_config, CPU)
    frequencies, factor = rotary_frequencies(config_of(hf_config))
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
    assert factor == pytest.approx(expected_factor, rel=1e-9)


def test_yarn_table_covers_the_stretched_length() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    hf_config = LlamaConfig(head_dim=16, max_position_embeddings=256, rope_scaling=scaling)
    table = RotaryTable(config_of(hf_config), torch.float32, CPU)
    cos, sin = table(torch.tensor([0, 1023]))
    assert cos.shape == sin.shape == (2, 1, 16)
    assert torch.equal(sin[:, :, :8], -sin[:, :, 8:])
