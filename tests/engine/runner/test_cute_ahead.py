"""Which kernels in the CuTe DSL an engine will want, told before torch is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.runner import cute_ahead
from kernels import quack_gated
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
def wanted(monkeypatch: pytest.MonkeyPatch) -> list[FlashKernel | str]:
    """What the compilers were started for: kernels of flash-attn 4, and types for quack."""
    started: list[FlashKernel | str] = []
    monkeypatch.setattr(
        cute_ahead, "start_compiling", lambda kernels: started.extend(kernels) or len(kernels)
    )
    monkeypatch.setattr(quack_gated, "start_compiling", lambda dtype: started.append(dtype) or 2)
    return started


def compile_for(folder: Path, model_dtype: str = "bfloat16", **flags: Any) -> int:
    (folder / "config.json").write_text(json.dumps({**CONFIG, "torch_dtype": model_dtype}))
    source = resolve_model(str(folder), with_weights=False)
    return cute_ahead.compile_cute_ahead(EngineConfig(model=str(folder), **flags), source)


def test_the_kernels_follow_from_the_model_and_the_flags(
    tmp_path: Path, wanted: list[FlashKernel | str]
) -> None:
    assert compile_for(tmp_path, model_dtype="float32") == 4
    assert wanted == ["bfloat16", *(FlashKernel(n, 4, 2, 64, 128, None, "bfloat16") for n in (1, 512))]
    wanted.clear()
    assert compile_for(tmp_path, model_dtype="float16", max_num_seqs=256, block_size=16) == 3
    assert wanted == ["float16", FlashKernel(1, 4, 2, 64, 16, None, "float16")]
    for flags in ({"attention_backend": "triton"}, {"tensor_parallel_size": 2}):
        wanted.clear()
        assert compile_for(tmp_path, **flags) == 2
        assert wanted == ["bfloat16"]


@pytest.mark.parametrize("flags", [{"device": "cpu"}, {"dtype": "float32"}])
def test_engines_that_will_not_call_them(
    flags: dict[str, Any], tmp_path: Path, wanted: list[FlashKernel | str]
) -> None:
    assert compile_for(tmp_path, **flags) == 0
    assert wanted == []


def test_it_needs_no_torch() -> None:
    code = (
        "import sys, engine.runner.cute_ahead, engine.runner.triton_ahead; sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


REAL_CALL = """
import torch
from kernels.attention import flash_compile
kernels = [flash_compile.FlashKernel(n, 16, 8, 128, 128, window, "bfloat16") for n, window in CASES]
assert flash_compile.start_compiling(kernels) == len(kernels)
flash_compile.FLASH_ATTN_4.wait_until_compiled()
compiled = sorted(flash_compile.FLASH_ATTN_4.cache_folder.rglob("*.o"))
assert len(compiled) >= len(kernels)
for kernel in kernels:
    flash_compile.call_kernel(kernel)
torch.cuda.synchronize()
assert sorted(flash_compile.FLASH_ATTN_4.cache_folder.rglob("*.o")) == compiled
"""


@pytest.mark.gpu
def test_real_calls_find_what_was_compiled_for_fake_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own, since flash-attn 4 looks where its cache is when it is imported."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("no Hopper GPU")
    pytest.importorskip("flash_attn.cute")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("FLASH_ATTENTION_CUTE_DSL_CACHE_DIR", raising=False)  # another test may have set it
    code = REAL_CALL.replace("CASES", "[(1, None), (512, None), (1, 64)]")
    subprocess.run([sys.executable, "-c", code], check=True)
