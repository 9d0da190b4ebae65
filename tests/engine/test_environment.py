from __future__ import annotations

import os
from pathlib import Path

import pytest

import engine
from engine.environment import cpu_limit, prepare_environment


@pytest.mark.parametrize(
    ("content", "limit"),
    [("200000 100000\n", 2), ("150000 100000\n", 1), ("50000 100000\n", 1), ("max 100000\n", None)],
)
def test_cpu_limit_of_a_container(tmp_path: Path, content: str, limit: int | None) -> None:
    (tmp_path / "cpu.max").write_text(content)
    assert cpu_limit(tmp_path / "cpu.max") == limit


def test_without_cgroups_there_is_no_limit(tmp_path: Path) -> None:
    assert cpu_limit(tmp_path / "absent") is None


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    prepare_environment()
    assert os.environ["OMP_WAIT_POLICY"] == "active"


def test_offline_generation_sets_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else threads that spin between operators slow down all that runs beside them."""
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert engine.LLM
    assert os.environ["OMP_WAIT_POLICY"] == "passive"
