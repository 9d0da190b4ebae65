"""Four servers for the whole folder: the embedded model, and a tiny one with room, without, and guarded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.api import API_KEY, complete
from tests.support.process import ServerProcess, serving

ALLOWED_ORIGIN = "https://app.example"


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """The embedded model in fp32, with the daemon's own checks after every step."""
    flags = ("--check-invariants", "--enable-per-request-metrics", "--max-num-seqs", "32")
    with serving("--dtype", "float32", *flags) as process:
        yield process


@pytest.fixture(scope="session")
def client(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="unused", timeout=120)


@pytest.fixture(scope="session")
def case_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """(Folder, transformers model) of the tiny model."""
    from tests.support.case_model import save_case_model

    path = tmp_path_factory.mktemp("case_model")
    return path, save_case_model(path)


def tiny_flags(path: Path, num_kv_blocks: int = 1024) -> list[str]:
    common = ("--dtype", "float32", "--block-size", "16", "--num-kv-blocks", str(num_kv_blocks))
    return ["--model", str(path), "--served-model-name", "tiny", *common]


@pytest.fixture(scope="session")
def roomy_process(case_model: tuple[Path, Any]) -> Iterator[ServerProcess]:
    with serving(*tiny_flags(case_model[0]), "--max-num-seqs", "8", "--check-invariants") as process:
        yield process


@pytest.fixture(scope="session")
def step_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the tight server."""
    return tmp_path_factory.mktemp("tight") / "steps.jsonl"


@pytest.fixture(scope="session")
def tight_process(case_model: tuple[Path, Any], step_log: Path) -> Iterator[ServerProcess]:
    limits = ("--max-model-len", "1000", "--max-num-batched-tokens", "64")
    record = ("--step-log", str(step_log), "--check-invariants", "--enable-admin-routes")
    with serving(
        *tiny_flags(case_model[0], num_kv_blocks=64), *limits, "--max-num-seqs", "8", *record
    ) as process:
        yield process


@pytest.fixture(scope="session")
def guarded_process(case_model: tuple[Path, Any]) -> Iterator[ServerProcess]:
    limits = ("--max-num-seqs", "2", "--max-queue", "8", "--max-num-batched-tokens", "256")
    access = ("--api-key", API_KEY, "--public-metrics", "--allowed-origins", ALLOWED_ORIGIN)
    flags = (*limits, *access, "--no-enable-prefix-caching")
    with serving(*tiny_flags(case_model[0]), *flags) as process:
        yield process


@pytest.fixture
def embedded(server: ServerProcess) -> Iterator[ServerProcess]:
    """The embedded model. After the test nothing runs, health is good and a plain request succeeds."""
    yield from checked_afterwards(server)


@pytest.fixture
def roomy(roomy_process: ServerProcess) -> Iterator[ServerProcess]:
    """The tiny model, 8 sequences at once. Checked after the test as `embedded` is."""
    yield from checked_afterwards(roomy_process)


@pytest.fixture
def tight(tight_process: ServerProcess) -> Iterator[ServerProcess]:
    """The tiny model in a pool of 64 blocks of 16, 64 tokens a step. Checked after the test."""
    yield from checked_afterwards(tight_process)


@pytest.fixture
def guarded(guarded_process: ServerProcess) -> Iterator[ServerProcess]:
    """The tiny model behind a key; 2 run, 8 wait; no prefix cache; 256 tokens a step. Checked after."""
    yield from checked_afterwards(guarded_process)


def checked_afterwards(process: ServerProcess) -> Iterator[ServerProcess]:
    yield process
    process.wait_until_idle(10)
    assert process.http.get("/health").status_code == 200
    answer = complete(process, "Plain", max_tokens=3, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 3
