"""Dummy weights, load formats, progress, tensor-parallel slices and compute types."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from model.config import ModelError
from model.loading import resolve_dtype
from model.parallel import TensorParallel
from model.source import ModelSource, resolve_model
from tests.support.decoders import CPU, config_of
from tests.support.loaded import decoder_logits, load_source
from tests.support.tiny_gguf import write_tiny_gguf
from tests.support.tiny_models import TINY_MODELS, make_tiny_model, save_tiny_model

PROMPT = [5, 17, 200, 3, 88]
CONFIG = config_of(make_tiny_model("qwen2")[1])


def config_only(folder: Path, architecture: str) -> ModelSource:
    save_tiny_model(folder, architecture)
    (folder / "model.safetensors").unlink()
    return resolve_model(str(folder))


@pytest.mark.parametrize("architecture", TINY_MODELS)
def test_dummy_weights_need_a_config_alone_and_follow_the_seed(architecture: str, tmp_path: Path) -> None:
    source = config_only(tmp_path, architecture)
    first, again, other = (
        decoder_logits(load_source(source, load_format="dummy", seed=seed), PROMPT) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.isfinite().all() and 0 < first.std() < 10


def test_dummy_weights_have_the_deviation_that_the_config_names(tmp_path: Path) -> None:
    decoder = load_source(config_only(tmp_path, "qwen3"), load_format="dummy")
    for name, parameter in decoder.named_parameters():
        if name.endswith("norm.weight"):
            assert (parameter == 1).all()
        else:
            assert parameter.std().item() == pytest.approx(0.2, rel=0.05)  # the config's `initializer_range`
            assert abs(parameter.mean().item()) < 0.02


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_ranks_hold_the_slices_of_the_whole(load_format: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "mistral")
    source = resolve_model(str(tmp_path))
    whole = load_source(source, load_format=load_format).state_dict()
    ranks = [
        load_source(source, tp=TensorParallel(rank=rank, size=2), load_format=load_format).state_dict()
        for rank in range(2)
    ]
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        assert torch.equal(torch.cat([rank[name] for rank in ranks]), whole[name])
    name = "model.layers.1.mlp.down_proj.weight"
    assert torch.equal(torch.cat([rank[name] for rank in ranks], dim=1), whole[name])
    gates = [rank["model.layers.0.mlp.gate_up_proj.weight"].chunk(2)[0] for rank in ranks]
    assert torch.equal(torch.cat(gates), whole["model.layers.0.mlp.gate_up_proj.weight"].chunk(2)[0])
    norm = "model.layers.0.input_layernorm.weight"
    assert all(torch.equal(rank[norm], whole[norm]) for rank in ranks)


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_progress_counts_every_tensor(load_format: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "qwen2")
    source = resolve_model(str(tmp_path))
    calls: list[tuple[str, int, int]] = []
    decoder = load_source(source, load_format=load_format, progress=lambda *call: calls.append(call))
    total = len(decoder.checkpoint_names())
    assert calls == [("loading weights", done, total) for done in range(1, total + 1)]


def test_a_load_format_that_does_not_fit(tmp_path: Path) -> None:
    hf_model = save_tiny_model(tmp_path, "smollm")
    write_tiny_gguf(tmp_path / "m.gguf", hf_model)
    with pytest.raises(ModelError, match="--load-format gguf does not fit a model stored as safetensors"):
        load_source(resolve_model(str(tmp_path)), load_format="gguf")
    gguf_source = resolve_model(str(tmp_path / "m.gguf"))
    with pytest.raises(ModelError, match="--load-format safetensors does not fit a model stored as gguf"):
        load_source(gguf_source, load_format="safetensors")
    load_source(gguf_source, load_format="gguf")


def test_weights_are_rounded_to_the_compute_type(tmp_path: Path) -> None:
    hf_model = save_tiny_model(tmp_path, "qwen2")
    decoder = load_source(resolve_model(str(tmp_path)), dtype=torch.bfloat16)
    expected = hf_model.state_dict()["model.layers.0.mlp.down_proj.weight"].bfloat16()
    assert torch.equal(decoder.state_dict()["model.layers.0.mlp.down_proj.weight"], expected)


def test_an_explicit_dtype() -> None:
    assert resolve_dtype("float16", CONFIG, CPU) == torch.float16
    with pytest.raises(ModelError, match="--dtype int8 is none of auto, bfloat16"):
        resolve_dtype("int8", CONFIG, CPU)


def test_auto_dtype_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False, raising=False)
    assert resolve_dtype("auto", CONFIG, CPU) == torch.float32
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)
    assert resolve_dtype("auto", CONFIG, CPU) == torch.bfloat16
    for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        monkeypatch.delattr(torch.cpu, name)
    assert resolve_dtype("auto", CONFIG, CPU) == torch.float32


def test_auto_dtype_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, has_bf16 = torch.device("cuda"), {"yes": True}
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: has_bf16["yes"])
    for stored, expected in (
        ("float16", torch.float16),
        ("bfloat16", torch.bfloat16),
        ("float32", torch.bfloat16),
    ):
        assert resolve_dtype("auto", dataclasses.replace(CONFIG, dtype=stored), cuda) == expected
    has_bf16["yes"] = False
    assert resolve_dtype("auto", CONFIG, cuda) == torch.float16
