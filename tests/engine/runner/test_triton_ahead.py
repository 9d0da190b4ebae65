"""Triton's kernels are compiled beside the start-up, once for each engine, GPU and version of the code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.runner import triton_ahead
from kernels.gpu import Gpu
from model.source import resolve_model

H200 = Gpu("NVIDIA H200", 9, 0, 132)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """The arguments of compilers; each has compiled everything at once."""
    arguments: list[dict[str, Any]] = []

    class DoneAtOnce:
        def __init__(self, what: str, command: list[str], environment: dict[str, str]) -> None:
            arguments.append(json.loads(command[-1]))
            marker = Path(arguments[-1]["marker"])
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()

    monkeypatch.setattr(triton_ahead, "CompilerProcess", DoneAtOnce)
    monkeypatch.setattr(triton_ahead, "_processes", [])
    monkeypatch.setattr(triton_ahead, "version", lambda package: "1.0")
    monkeypatch.setattr(triton_ahead, "find_gpu", lambda: H200)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "config.json").write_text("{}")
    return arguments


def compile_for(folder: Path, **flags: Any) -> bool:
    source = resolve_model(str(folder), with_weights=False)
    return triton_ahead.compile_triton_ahead(EngineConfig(model=str(folder), **flags), source)


def test_a_compiler_is_started_once_for_the_same_kernels(
    started: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compile_for(tmp_path)
    assert not compile_for(tmp_path)
    assert not compile_for(tmp_path, itl_target_ms=5.0)  # nothing that a kernel follows from
    assert compile_for(tmp_path, max_num_seqs=7)
    monkeypatch.setattr(triton_ahead, "version", lambda package: "1.1")
    assert compile_for(tmp_path)
    assert [entry["config"]["max_num_seqs"] for entry in started] == [None, 7, None]
    assert all(EngineConfig(**entry["config"]).model == str(tmp_path) for entry in started)


@pytest.mark.parametrize(
    "flags", [{"device": "cpu"}, {"attention_backend": "torch"}, {"tensor_parallel_size": 2}]
)
def test_engines_that_will_not_launch_them(
    flags: dict[str, Any], started: list[dict[str, Any]], tmp_path: Path
) -> None:
    assert not compile_for(tmp_path, **flags)
    assert started == []


@pytest.mark.parametrize("gpu", [None, Gpu("Tesla T4", 7, 5, 40)])
def test_without_a_gpu_that_fits(
    gpu: Gpu | None, started: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_ahead, "find_gpu", lambda: gpu)
    assert not compile_for(tmp_path)
    assert started == []
