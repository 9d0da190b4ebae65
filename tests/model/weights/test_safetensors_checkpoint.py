"""Folders of safetensors: single, sharded and wrong ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.config import ModelError
from model.source import resolve_model
from tests.support.loaded import decoder_logits, load_source
from tests.support.tiny_models import TINY_MODELS, save_tiny_model

PROMPT = [5, 17, 200, 3, 3, 88, 301, 7, 9, 250, 31]
WEIGHTS = "model.safetensors"


def expected_logits(hf_model: Any) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = hf_model(torch.tensor([PROMPT])).logits[0]
    return logits


def assert_loads(folder: Path, hf_model: Any) -> None:
    logits = decoder_logits(load_source(resolve_model(str(folder))), PROMPT)
    torch.testing.assert_close(logits, expected_logits(hf_model), rtol=1e-4, atol=1e-4)


def edit_tensors(folder: Path, remove: tuple[str, ...] = (), **replaced: torch.Tensor) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors = {name: tensor for name, tensor in tensors.items() if name not in remove}
    save_file({**tensors, **replaced}, folder / WEIGHTS)


@pytest.mark.parametrize("architecture", TINY_MODELS)
def test_logits_of_a_saved_model_equal_transformers(architecture: str, tmp_path: Path) -> None:
    assert_loads(tmp_path, save_tiny_model(tmp_path, architecture))


def test_shards_with_an_index(tmp_path: Path) -> None:
    hf_model = save_tiny_model(tmp_path / "one", "qwen3")
    hf_model.save_pretrained(tmp_path / "many", max_shard_size="60KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    # A stray file beside the indexed ones is not read.
    save_file({"stray": torch.zeros(1)}, tmp_path / "many" / "consolidated.safetensors")
    assert_loads(tmp_path / "many", hf_model)

    shard = sorted((tmp_path / "many").glob("model-*.safetensors"))[1]
    shard.rename(tmp_path / "moved")
    with pytest.raises(ModelError, match=rf"{shard.name}: no such file"):
        load_source(resolve_model(str(tmp_path / "many")))


def test_files_without_an_index(tmp_path: Path) -> None:
    hf_model = save_tiny_model(tmp_path, "qwen2")
    tensors = load_file(tmp_path / WEIGHTS)
    (tmp_path / WEIGHTS).unlink()
    names = sorted(tensors)
    save_file({name: tensors[name] for name in names[::2]}, tmp_path / "a.safetensors")
    save_file({name: tensors[name] for name in names[1::2]}, tmp_path / "b.safetensors")
    assert_loads(tmp_path, hf_model)
    save_file({name: tensors[name] for name in names[1:]}, tmp_path / "b.safetensors")
    with pytest.raises(ModelError, match=r"b\.safetensors: tensor .* is in another file too"):
        load_source(resolve_model(str(tmp_path)))


def test_harmless_tensors_are_passed_over(tmp_path: Path) -> None:
    hf_model = save_tiny_model(tmp_path, "smollm")
    edit_tensors(
        tmp_path,
        **{
            "lm_head.weight": torch.full((320, 96), torch.nan),
            "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8),
        },
    )
    assert_loads(tmp_path, hf_model)


def test_a_missing_head_is_missing_unless_it_is_tied(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "mistral")
    edit_tensors(tmp_path, remove=("lm_head.weight",))
    with pytest.raises(ModelError, match=r"missing tensor lm_head\.weight$"):
        load_source(resolve_model(str(tmp_path)))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model.norm.weight": torch.ones(65)}, r"norm\.weight has shape \[65\], the model needs \[64\]"),
        (
            {"model.layers.1.self_attn.k_proj.weight": torch.ones(63, 64)},
            r"k_proj\.weight has shape \[63, 64\], the model needs \[64, 64\]",
        ),
        ({"model.adapter.weight": torch.ones(2)}, r"no place in Qwen3ForCausalLM for tensor model\.adapter"),
        ({"model.norm.weight": torch.ones(64, dtype=torch.int8)}, "torch.int8, not a floating-point type"),
    ],
)
def test_tensors_that_do_not_fit(changed: dict[str, torch.Tensor], message: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "qwen3")
    edit_tensors(tmp_path, **changed)
    with pytest.raises(ModelError, match=message):
        load_source(resolve_model(str(tmp_path)))


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "qwen3")
    edit_tensors(tmp_path, remove=("model.layers.1.self_attn.q_norm.weight", "model.norm.weight"))
    names = r"model\.layers\.1\.self_attn\.q_norm\.weight, model\.norm\.weight"
    with pytest.raises(ModelError, match=rf"missing tensors {names}$"):
        load_source(resolve_model(str(tmp_path)))


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_truncated_files_are_named(keep: int, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "qwen3")
    whole = (tmp_path / WEIGHTS).read_bytes()
    (tmp_path / WEIGHTS).write_bytes(whole[:keep])
    with pytest.raises(ModelError, match=r"model\.safetensors: truncated or damaged") as error:
        load_source(resolve_model(str(tmp_path)))
    assert "\n" not in str(error.value)


def test_folders_without_usable_weights(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "qwen3")
    (tmp_path / WEIGHTS).unlink()
    with pytest.raises(ModelError, match=r"has no \*\.safetensors file"):
        load_source(resolve_model(str(tmp_path)))
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match="convert them to safetensors"):
        load_source(resolve_model(str(tmp_path)))


@pytest.mark.parametrize("content", ["{", "[]", "{}", json.dumps({"weight_map": 3})])
def test_a_damaged_index(content: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "qwen3")
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelError, match=r"index\.json: not a valid index"):
        load_source(resolve_model(str(tmp_path)))
