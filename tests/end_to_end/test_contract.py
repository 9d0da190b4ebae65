"""The served OpenAPI schema against the real process: generated requests, and what is left after them.

The whole of it, over 2,000 requests in some minutes:
OCTAVO_FUZZ=thorough python -m pytest tests/end_to_end/test_contract.py

They come one after another, and most of those that are accepted want some tokens: with the embedded model it
would take an hour on a busy machine, and say no more about the API.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import API_KEY, complete
from tests.support.contract import LIMITS, fuzz
from tests.support.process import ServerProcess, serving

IS_THOROUGH = os.environ.get("OCTAVO_FUZZ") == "thorough"


@pytest.fixture(scope="module")
def contract_process(case_model: tuple[Path, Any]) -> Iterator[ServerProcess]:
    """The tiny model, with little for a request to ask for."""
    model = ("--model", str(case_model[0]), "--dtype", "float32")
    flags = ("--api-key", API_KEY, "--public-metrics", "--check-invariants", *LIMITS)
    with serving(*model, *flags) as process:
        yield process


@pytest.mark.timeout(2000)
def test_generated_requests_meet_the_schema(contract_process: ServerProcess, tmp_path: Path) -> None:
    phases, max_examples = ("coverage,fuzzing", 60) if IS_THOROUGH else ("fuzzing", 16)
    report = fuzz(
        contract_process.base_url, API_KEY, tmp_path, phases=phases, max_examples=max_examples, seed=1
    )
    assert report["complete"] and report["failures"] == [] == report["errors"]
    assert report["test_cases"]["generated"] >= (2000 if IS_THOROUGH else 130)
    contract_process.wait_until_idle(10)
    assert contract_process.metric("http_error_responses_total", status="500", absent=0) == 0
    assert contract_process.http.get("/health").status_code == 200
    assert (
        complete(contract_process, "Plain", max_tokens=3, ignore_eos=True)["usage"]["completion_tokens"] == 3
    )
    print(f"{report['test_cases']['generated']} requests in {report['running_time']:.0f} s")


def test_a_cold_cache_on_request(contract_process: ServerProcess) -> None:
    def cached(prompt: list[int]) -> int:
        usage: dict[str, Any] = complete(contract_process, prompt, max_tokens=1)["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    prompt = [5 + i % 90 for i in range(100)]
    cached(prompt)
    assert cached(prompt) == 96
    answer = contract_process.http.post("/reset_prefix_cache", headers={"x-api-key": API_KEY})
    assert answer.json()["blocks_forgotten"] >= 6
    assert cached(prompt) == 0
