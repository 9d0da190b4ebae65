"""Which kernels of flash-attn 4 an engine will want, told before torch is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.runner import flash_ahead
from kernels.attention.flash_compile import FlashKernel
from model.source import resolve_model

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 256,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> list[FlashKernel]:
    """What the compilers were started for."""
    started: list[FlashKernel] = []
    monkeypatch.setattr(flash_ahead, "start_compiling", lambda kernels: started.extend(kernels))
    return started


def compile_for(folder: Path, model_dtype: str = "bfloat16", **flags: Any) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, "torch_dtype": model_dtype}))
    source = resolve_model(str(folder), with_weights=False)
    flash_ahead.compile_flash_ahead(EngineConfig(model=str(folder), **flags), source)


def test_the_kernels_follow_from_the_model_and_the_flags(tmp_path: Path, wanted: list[FlashKernel]) -> None:
    compile_for(tmp_path, model_dtype="float32")
    assert wanted == [FlashKernel(n, 4, 2, 64, 128, None, "bfloat16") for n in (1, 512)]
    wanted.clear()
    compile_for(tmp_path, model_dtype="float16", max_num_seqs=256, block_size=16)
    assert wanted == [FlashKernel(1, 4, 2, 64, 16, None, "float16")]


@pytest.mark.parametrize(
    "flags",
    [
        {"device": "cpu"},
        {"dtype": "float32"},
        {"attention_backend": "triton"},
        {"tensor_parallel_size": 2},
    ],
)
def test_engines_that_will_not_call_it(
    flags: dict[str, Any], tmp_path: Path, wanted: list[FlashKernel]
) -> None:
    compile_for(tmp_path, **flags)
    assert wanted == []


def test_it_needs_no_torch() -> None:
    code = "import sys, engine.runner.flash_ahead; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
