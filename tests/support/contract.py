"""Fuzzes a live server with requests generated from the OpenAPI schema that it serves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PATIENCE_S = 1800
HANGS_S = "120"
"""An answer that takes longer hangs; how long others take is the machine's doing."""
TOO_STRICT = "positive_data_acceptance"
"""A schema cannot tell lengths against the context and fields that need each other; those are refused."""

LIMITS = ("--max-model-len", "256", "--default-max-tokens", "4", "--max-n", "3", "--enable-admin-routes")
"""Flags that keep what a generated request may ask for small."""


def fuzz(
    base_url: str, api_key: str, folder: Path, *, phases: str, max_examples: int, seed: int
) -> dict[str, Any]:
    """The report of a run of schemathesis, which must have found nothing.

    `max_examples` are for each operation, in the phase "fuzzing"; the phase "coverage" walks the schema's
    corners instead, well over a thousand. Every check but one is on, so that a 5xx, a status that is not
    documented, an answer that is not as documented, or a bad request that is accepted fails.
    """
    report = folder / "report.json"
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run", f"{base_url}/openapi.json",
        "--header", f"Authorization: Bearer {api_key}",
        "--checks", "all", "--exclude-checks", TOO_STRICT,
        "--phases", phases, "--max-examples", str(max_examples), "--seed", str(seed),
        "--request-timeout", HANGS_S, "--max-response-time", HANGS_S, "--continue-on-failure", "--no-shrink",
        "--report-json-path", str(report),
    ]  # fmt: skip
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S)
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-2_000:]
    content: dict[str, Any] = json.loads(report.read_text())
    return content
