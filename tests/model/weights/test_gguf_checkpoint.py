"""Tiny GGUF files through configuration and decoder, against transformers on the same weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize as oracle
from gguf.quants import quantize

from model.config import ModelConfig, ModelError
from model.config_reader import read_model_config
from model.source import resolve_model
from model.weights.gguf_checkpoint import GgufCheckpoint
from model.weights.gguf_file import GgufFile
from tests.support.decoders import CPU, config_of
from tests.support.loaded import decoder_logits, load_source
from tests.support.tiny_gguf import write_tiny_gguf
from tests.support.tiny_models import make_tiny_model

PROMPT = [5, 17, 200, 3, 3, 88, 301, 7, 9, 250, 31]


def expected_config(hf_model: Any) -> ModelConfig:
    """GGUF has no `mistral`, and keeps floats in 32 bits."""
    config = config_of(hf_model.config)
    architecture = config.architecture.replace("Mistral", "Llama")
    eps = float(np.float32(config.rms_norm_eps))
    return replace(config, architecture=architecture, rms_norm_eps=eps, bos_token_id=1, eos_token_ids=(2,))


@pytest.mark.parametrize("architecture", ["llama", "smollm", "mistral", "qwen2", "qwen3"])
def test_config_and_logits_equal_transformers(architecture: str, tmp_path: Path) -> None:
    hf_model, _ = make_tiny_model(architecture)
    write_tiny_gguf(tmp_path / "m.gguf", hf_model)
    source = resolve_model(str(tmp_path / "m.gguf"))
    assert read_model_config(source) == expected_config(hf_model)
    with torch.inference_mode():
        expected = hf_model(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(decoder_logits(load_source(source), PROMPT), expected, rtol=1e-4, atol=1e-4)


def test_llama3_scaling_is_recognised_by_its_tensor(tmp_path: Path) -> None:
    """With the parameters of the released models; the tensor is written by the converter's own formula."""
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    fields = {"head_dim": 64, "rope_scaling": scaling, "max_position_embeddings": 131072}
    hf_model, _ = make_tiny_model("llama3", **fields)
    factors = llama3_factors(500000.0, 64, scaling)
    write_tiny_gguf(tmp_path / "m.gguf", hf_model, tensors={"rope_freqs.weight": factors})
    source = resolve_model(str(tmp_path / "m.gguf"))
    assert read_model_config(source) == expected_config(hf_model)
    load_source(source)

    factors[10] *= 1.01
    write_tiny_gguf(tmp_path / "other.gguf", hf_model, tensors={"rope_freqs.weight": factors})
    with pytest.raises(ModelError, match=r"other\.gguf: tensor rope_freqs\.weight is not the scaling"):
        read_model_config(resolve_model(str(tmp_path / "other.gguf")))


def llama3_factors(theta: float, head_dim: int, scaling: dict[str, Any]) -> np.ndarray:
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * np.pi * theta ** (i / head_dim)
        turns = scaling["original_max_position_embeddings"] / wavelength
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def test_yarn_and_linear_scaling_from_metadata(tmp_path: Path) -> None:
    for name, kind, original in (("llama-yarn", "yarn", 128), ("llama-linear", "linear", 512)):
        hf_model, _ = make_tiny_model(name)
        metadata: dict[str, int | float | str] = {
            "llama.rope.scaling.type": kind,
            "llama.rope.scaling.factor": 4.0,
            "llama.rope.scaling.original_context_length": original,
        }
        path = tmp_path / f"{name}.gguf"
        write_tiny_gguf(path, hf_model, metadata=metadata)
        assert read_model_config(resolve_model(str(path))) == expected_config(hf_model)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantized_matrices_reach_their_rows(kind: str, tmp_path: Path) -> None:
    """Rotary rows are put back in order while still packed."""
    hf_model, _ = make_tiny_model("llama")
    write_tiny_gguf(tmp_path / "m.gguf", hf_model, matrix_type=kind)
    file = GgufFile(tmp_path / "m.gguf")
    checkpoint = GgufCheckpoint(file, config_of(hf_model.config))
    code = gguf.GGMLQuantizationType[kind]
    tensors = hf_model.state_dict()
    assert set(checkpoint.names()) == set(tensors)
    for name, tensor in tensors.items():
        expected = tensor.numpy()
        if tensor.ndim == 2:
            expected = oracle(quantize(expected, code), code)
        assert np.array_equal(checkpoint.open(name, torch.float32, CPU)[:].numpy(), expected), name


@pytest.mark.parametrize("kind", ["F16", "Q4_1"])
def test_parts_of_a_tensor_are_those_of_the_whole(kind: str, tmp_path: Path) -> None:
    """Columns at the borders of blocks and within one; rotary rows head by head; vectors."""
    hf_model, _ = make_tiny_model("llama")
    write_tiny_gguf(tmp_path / "m.gguf", hf_model, matrix_type=kind)
    checkpoint = GgufCheckpoint(GgufFile(tmp_path / "m.gguf"), config_of(hf_model.config))
    for name in checkpoint.names():
        tensor = checkpoint.open(name, torch.float32, CPU)
        whole = tensor[:]
        for rows in (slice(16, 48), slice(48, 48)):
            assert torch.equal(tensor[rows], whole[rows])
        if whole.ndim == 2:
            for columns in (slice(0, 32), slice(32, 64), slice(24, 56), slice(64, 64)):
                assert torch.equal(tensor[:, columns], whole[:, columns])


@pytest.mark.parametrize("small_first_shard", [False, True])
def test_a_file_in_parts_is_as_good_as_one(small_first_shard: bool, tmp_path: Path) -> None:
    """The first part may hold nothing but the metadata."""
    hf_model, _ = make_tiny_model("llama")
    write_tiny_gguf(tmp_path / "one.gguf", hf_model)
    folder = tmp_path / "parts"
    folder.mkdir()
    write_tiny_gguf(folder / "m.gguf", hf_model, split_max_tensors=7, small_first_shard=small_first_shard)
    source = resolve_model(str(folder))
    assert source.name == "m"
    assert read_model_config(source) == read_model_config(resolve_model(str(tmp_path / "one.gguf")))
    one, parts = GgufFile(tmp_path / "one.gguf"), GgufFile(source.path)
    assert set(parts.tensors) == set(one.tensors)
    assert all(torch.equal(parts.load(name), one.load(name)) for name in one.tensors)


def test_a_file_in_parts_with_a_missing_or_a_wrong_part(tmp_path: Path) -> None:
    hf_model, _ = make_tiny_model("llama")
    write_tiny_gguf(tmp_path / "m.gguf", hf_model, split_max_tensors=7)
    first, second, third, *_ = sorted(tmp_path.iterdir())
    with pytest.raises(ModelError, match="name the first part"):
        GgufFile(second)
    content = second.read_bytes()
    second.write_bytes(third.read_bytes())
    with pytest.raises(ModelError, match=f"{second.name}: not part 2 of a GGUF, as its name says"):
        GgufFile(first)
    second.unlink()
    with pytest.raises(ModelError, match=f"{second.name}: No such file"):
        GgufFile(first)
    second.write_bytes(content)
    GgufFile(first)


def test_embedded_tensors_equal_the_gguf_packages(embedded_source: Any) -> None:
    file = GgufFile(embedded_source.path)
    raw = np.memmap(embedded_source.path, dtype=np.uint8, mode="r")
    names = ["token_embd.weight", "blk.0.ffn_down.weight", "blk.29.attn_v.weight", "blk.7.attn_norm.weight"]
    for name in names:
        entry = file.tensors[name]
        data = raw[entry.offset : entry.offset + entry.nbytes].reshape(*entry.shape[:-1], -1)
        expected = oracle(data, gguf.GGMLQuantizationType[entry.type.name])
        assert np.array_equal(file.load(name).numpy(), expected), name


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.architecture": "gemma3"}, "'gemma3' is not supported; supported are llama, qwen2, qwen3"),
        ({"llama.rope.scaling.type": "longrope"}, r"llama\.rope\.scaling\.type 'longrope' is not supported"),
        ({"llama.rope.dimension_count": 8}, r"llama\.rope\.dimension_count 8 of 16 is not supported"),
        ({"llama.block_count": 0}, r"llama\.block_count is 0, not an integer of at least 1"),
        ({"llama.block_count": "two"}, r"llama\.block_count is 'two'"),
        ({"split.count": 2}, "a later one of 2 parts of a GGUF; name the first part"),
        ({"split.count": 2, "split.no": 0}, r"its name must end in -00001-of-00002\.gguf"),
    ],
)
def test_metadata_that_cannot_be_served(metadata: dict[str, Any], message: str, tmp_path: Path) -> None:
    hf_model, _ = make_tiny_model("smollm")
    write_tiny_gguf(tmp_path / "m.gguf", hf_model, metadata=metadata)
    with pytest.raises(ModelError, match=message):
        read_model_config(resolve_model(str(tmp_path / "m.gguf")))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"blk.1.attn_q.weight": np.zeros((90, 96), np.float32)}, r"q_proj\.weight has shape \[90, 96\]"),
        ({"blk.0.ffn_up.weight": np.zeros((96, 64), np.float32)}, r"up_proj\.weight has shape \[96, 64\]"),
        (
            {"blk.0.extra.weight": np.zeros(3, np.float32)},
            r"no place in LlamaForCausalLM for tensor blk\.0\.extra",
        ),
        ({"output.weight": np.zeros((7, 96), np.float32)}, r"lm_head\.weight has shape \[7, 96\]"),
    ],
)
def test_tensors_that_do_not_fit(tensors: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    hf_model, _ = make_tiny_model("smollm")
    write_tiny_gguf(tmp_path / "m.gguf", hf_model, tensors=tensors)
    with pytest.raises(ModelError, match=message):
        load_source(resolve_model(str(tmp_path / "m.gguf")))


def test_a_layer_that_is_not_there(tmp_path: Path) -> None:
    hf_model, _ = make_tiny_model("smollm")
    write_tiny_gguf(tmp_path / "m.gguf", hf_model, metadata={"llama.block_count": 3})
    with pytest.raises(
        ModelError, match=r"missing tensors model\.layers\.2\.input_layernorm\.weight.* and 6 more"
    ):
        load_source(resolve_model(str(tmp_path / "m.gguf")))
