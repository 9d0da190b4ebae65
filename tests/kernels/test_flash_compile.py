"""Compiling flash-attn 4's kernels beside the start-up: when, and that nothing of it is needed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from kernels import compiler_process
from kernels.attention import flash_compile
from kernels.attention.flash_compile import FlashKernel, start_compiling, wait_until_compiled
from kernels.gpu import Gpu

KERNEL = FlashKernel(1, 16, 8, 128, 128, None, "bfloat16")
OTHER = FlashKernel(512, 16, 8, 128, 128, None, "bfloat16")
HOPPER = Gpu("NVIDIA H200", 9, 0, 132)


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine with flash-attn 4 and a Hopper GPU, and an empty cache."""
    for name in ("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR"):
        monkeypatch.setenv(name, "")  # so that they are put back
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(flash_compile, "version", lambda package: "1.0")
    monkeypatch.setattr(flash_compile, "find_gpu", lambda: HOPPER)
    monkeypatch.setattr(flash_compile, "_compilers", [])
    yield
    for compiler in flash_compile._compilers:
        compiler.stop()


def run_instead(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Processes that run `code` instead of a compiler; its arguments are the kernel and the marker."""
    monkeypatch.setattr(
        flash_compile,
        "_command",
        lambda kernel, marker: [sys.executable, "-S", "-c", code, str(kernel.num_seqs), str(marker)],
    )


def test_a_kernel_is_compiled_once_for_the_gpu_that_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = "os.environ['CUTE_DSL_ARCH'] + os.environ['FLASH_ATTENTION_NUM_SMS'] + sys.argv[1]"
    run_instead(monkeypatch, f"import os, sys; open(sys.argv[2], 'w').write({told})")
    assert start_compiling([KERNEL, OTHER]) == 2
    wait_until_compiled()
    markers = [file.read_text() for file in flash_compile.cache_folder().iterdir()]
    assert sorted(markers) == ["sm_90a1321", "sm_90a132512"]
    flash_compile._compilers.clear()
    assert start_compiling([KERNEL, OTHER]) == 0
    monkeypatch.setattr(flash_compile, "version", lambda package: "1.1")
    assert start_compiling([KERNEL]) == 1


def test_a_compiler_that_fails_or_hangs_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run_instead(
        monkeypatch, "import sys, time; time.sleep(60 if sys.argv[1] == '512' else 0); sys.exit('no')"
    )
    monkeypatch.setattr(compiler_process, "_PATIENCE_S", 0.5)
    caplog.set_level("INFO")
    assert start_compiling([KERNEL, OTHER]) == 2
    wait_until_compiled()
    reasons = {record.message.rpartition(": ")[2] for record in caplog.records}
    assert reasons >= {"no", "it took too long"}
    assert list(flash_compile.cache_folder().iterdir()) == []


def test_nothing_is_started_that_would_be_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for gpu in (None, Gpu("NVIDIA A100", 8, 0, 108), Gpu("NVIDIA B200", 10, 0, 148)):
        monkeypatch.setattr(flash_compile, "find_gpu", lambda gpu=gpu: gpu)
        assert start_compiling([KERNEL]) == 0
    monkeypatch.setattr(flash_compile, "find_gpu", lambda: HOPPER)
    assert start_compiling([replace(KERNEL, head_dim=80)]) == 0
    monkeypatch.setattr(flash_compile, "_command", lambda kernel, marker: ["/no/such/program"])
    assert start_compiling([KERNEL]) == 0

    def missing(package: str) -> Any:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(flash_compile, "version", missing)
    assert start_compiling([KERNEL]) == 0
    wait_until_compiled()
