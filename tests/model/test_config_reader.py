"""config.json to `ModelConfig`, with transformers' own configs as the oracle."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from model.config import ModelError
from model.config_reader import config_from_folder
from tests.support.decoders import config_of
from tests.support.tiny_models import TINY_MODELS, make_tiny_model

MINIMAL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}


def write(folder: Path, generation: Any = None, **fields: Any) -> Path:
    """Write MINIMAL with `fields` over it; a field given as ... is left out."""
    values = {key: value for key, value in {**MINIMAL, **fields}.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(values))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


@pytest.mark.parametrize("architecture", TINY_MODELS)
def test_what_transformers_saves_is_what_it_means(architecture: str, tmp_path: Path) -> None:
    _, hf_config = make_tiny_model(architecture)
    expected = config_of(hf_config)
    hf_config.architectures = [expected.architecture]
    hf_config.save_pretrained(tmp_path)
    config = config_from_folder(tmp_path)
    assert config.initializer_range == hf_config.initializer_range
    ours = {"dtype": config.dtype, "initializer_range": config.initializer_range}
    assert config == dataclasses.replace(expected, bos_token_id=1, eos_token_ids=(2,), **ours)


def test_the_layout_of_transformers_4(tmp_path: Path) -> None:
    """`rope_theta` and `torch_dtype` at the top, `type` for the kind of scaling."""
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    write(tmp_path, rope_theta=5e5, torch_dtype="float16", rope_scaling=scaling, head_dim=None)
    config = config_from_folder(tmp_path)
    assert (config.rope_theta, config.dtype, config.head_dim, config.num_kv_heads) == (5e5, "float16", 16, 4)
    assert config.rope_scaling is not None
    assert (config.rope_scaling.kind, config.rope_scaling.factor) == ("yarn", 4.0)
    assert config.rope_scaling.original_max_position_embeddings == 128


@pytest.mark.parametrize(
    ("fields", "window"),
    [
        ({"architectures": ["MistralForCausalLM"]}, 4096),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, None),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 20}, 20),
        ({"architectures": ["LlamaForCausalLM"], "sliding_window": 20}, None),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 20}, None),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 20, "use_sliding_window": True}, None),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "sliding_window": 20,
                "use_sliding_window": True,
                "max_window_layers": 0,
            },
            20,
        ),
    ],
)
def test_sliding_windows(fields: dict[str, Any], window: int | None, tmp_path: Path) -> None:
    assert config_from_folder(write(tmp_path, **fields)).sliding_window == window


@pytest.mark.parametrize(
    ("in_config", "in_generation", "expected"),
    [
        (2, None, (2,)),
        (2, {"eos_token_id": [2, 7]}, (2, 7)),
        ([5, 2], {"eos_token_id": 9}, (5, 2, 9)),
        (..., {"eos_token_id": 9}, (9,)),
        (None, {}, ()),
    ],
)
def test_eos_ids_of_both_files(
    in_config: Any, in_generation: Any, expected: tuple[int, ...], tmp_path: Path
) -> None:
    write(tmp_path, generation=in_generation, eos_token_id=in_config)
    assert config_from_folder(tmp_path).eos_token_ids == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "'GPT2LMHeadModel' is not supported; supported are LlamaForCausalLM, MistralForCausalLM, Qwen2",
        ),
        ({"architectures": ...}, "architectures is missing"),
        ({"hidden_size": ...}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size is '64', not an integer of at least 1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_key_value_heads": 3}, "num_attention_heads is 4, no multiple of 3 KV heads"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', not true or false"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>', not a token id"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; only silu"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config asks for 'awq' weights"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_scaling.rope_type 'longrope' is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing"),
        (
            {"rope_scaling": {"type": "linear", "factor": -1}},
            "rope_scaling.factor is -1, not a number above 0",
        ),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, "rope_scaling.low_freq_factor is missing"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor other than 1 is not supported"),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "use_sliding_window": True,
                "max_window_layers": 1,
            },
            "max_window_layers makes some layers windowed",
        ),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    write(tmp_path, **fields)
    with pytest.raises(ModelError) as error:
        config_from_folder(tmp_path)
    assert str(error.value).startswith(f"{tmp_path}/config.json: ")
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(("text", "message"), [("{", "not valid JSON"), ("[1]", "not a JSON object")])
def test_damaged_json(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=rf"config\.json: {message}"):
        config_from_folder(tmp_path)


def test_no_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json: No such file"):
        config_from_folder(tmp_path)
