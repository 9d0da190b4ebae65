"""Compiling CuTe DSL kernels beside the start-up: when, and that nothing of it is needed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from kernels import compiler_process, cute_library
from kernels.attention import flash_compile
from kernels.attention.flash_compile import FLASH_ATTN_4, FlashKernel
from kernels.cute_library import CuteLibrary
from kernels.gpu import Gpu

HOPPER = Gpu("NVIDIA H200", 9, 0, 132)


@dataclass(frozen=True)
class Kernel:
    size: int


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with every package and a Hopper GPU, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cute_library, "version", lambda package: "1.0")
    monkeypatch.setattr(cute_library, "find_gpu", lambda: HOPPER)


@pytest.fixture
def library() -> Iterator[CuteLibrary]:
    library = CuteLibrary("a library", ["a-package"], "no.such.module", lambda gpu: {"SMS": str(gpu.num_sms)})
    yield library
    for compiler in library._compilers:
        compiler.stop()


def run_instead(monkeypatch: pytest.MonkeyPatch, library: CuteLibrary, code: str) -> None:
    """Processes that run `code` instead of a compiler; its arguments are the kernel and the marker."""

    def command(kernel: Any, marker: Path) -> list[str]:
        return [sys.executable, "-S", "-c", code, str(kernel.size), str(marker)]

    monkeypatch.setattr(library, "_command", command)


def test_a_kernel_is_compiled_once_for_the_gpu_that_is_there(
    monkeypatch: pytest.MonkeyPatch, library: CuteLibrary
) -> None:
    told = "os.environ['CUTE_DSL_ARCH'] + ' ' + os.environ['SMS'] + ' ' + sys.argv[1]"
    run_instead(monkeypatch, library, f"import os, sys; open(sys.argv[2], 'w').write({told})")
    assert library.start_compiling([Kernel(1), Kernel(2)]) == 2
    library.wait_until_compiled()
    markers = [file.read_text() for file in library.cache_folder.iterdir()]
    assert sorted(markers) == ["sm_90a 132 1", "sm_90a 132 2"]
    library._compilers.clear()
    assert library.start_compiling([Kernel(1), Kernel(2)]) == 0
    monkeypatch.setattr(cute_library, "version", lambda package: "1.1")
    assert library.start_compiling([Kernel(1)]) == 1


def test_a_compiler_that_fails_or_hangs_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, library: CuteLibrary, caplog: pytest.LogCaptureFixture
) -> None:
    code = "import sys, time; time.sleep(60 if sys.argv[1] == '2' else 0); sys.exit('no')"
    run_instead(monkeypatch, library, code)
    monkeypatch.setattr(compiler_process, "_PATIENCE_S", 0.5)
    caplog.set_level("INFO")
    assert library.start_compiling([Kernel(1), Kernel(2)]) == 2
    library.wait_until_compiled()
    reasons = {record.message.rpartition(": ")[2] for record in caplog.records}
    assert reasons >= {"no", "it took too long"}
    assert list(library.cache_folder.iterdir()) == []


def test_nothing_is_started_that_would_be_in_vain(
    monkeypatch: pytest.MonkeyPatch, library: CuteLibrary
) -> None:
    for gpu in (None, Gpu("NVIDIA A100", 8, 0, 108), Gpu("NVIDIA B200", 10, 0, 148)):
        monkeypatch.setattr(cute_library, "find_gpu", lambda gpu=gpu: gpu)
        assert library.start_compiling([Kernel(1)]) == 0
    monkeypatch.setattr(cute_library, "find_gpu", lambda: HOPPER)
    monkeypatch.setattr(library, "_command", lambda kernel, marker: ["/no/such/program"])
    assert library.start_compiling([Kernel(1)]) == 0

    def missing(package: str) -> Any:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(cute_library, "version", missing)
    assert library.start_compiling([Kernel(1)]) == 0
    library.wait_until_compiled()


def test_flash_attention_is_compiled_for_head_sizes_that_it_is_called_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = FlashKernel(1, 16, 8, 128, 128, None, "bfloat16")
    started: list[Any] = []
    monkeypatch.setattr(FLASH_ATTN_4, "start_compiling", lambda kernels: started.extend(kernels) or 0)
    flash_compile.start_compiling([kernel, replace(kernel, head_dim=80)])
    assert started == [kernel]
