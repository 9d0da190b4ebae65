"""The commands of parts, and the report over their results."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks.tensor_parallel.parts import Plan
from benchmarks.tensor_parallel.results import append, read, report


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    model = tmp_path / "models" / "qwen3-8b"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps({"hidden_size": 4096, "rms_norm_eps": 1e-6}))
    return Plan(model.parent, tmp_path, tmp_path / "results.jsonl")


def test_parts_side_by_side_share_nothing(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    first, second = plan.side_by_side(["8b-1", "32b-1"])
    assert (first.environment, second.environment) == (
        {"CUDA_VISIBLE_DEVICES": "0"},
        {"CUDA_VISIBLE_DEVICES": "1"},
    )
    assert first.cores == {0, 1, 2, 3} and second.cores == {4, 5, 6, 7}
    assert "--port" not in first.arguments  # each finds a free one


def test_a_part_alone_has_everything(plan: Plan) -> None:
    (part,) = plan.side_by_side(["8b-2"])
    assert not part.environment and not part.cores
    assert "--tensor-parallel-size 2 --all-reduce auto" in part.arguments


def test_a_part_that_takes_no_gpu_leaves_both_to_the_other(plan: Plan) -> None:
    reduce, tiny = plan.side_by_side(["reduce", "tiny"])
    assert not reduce.environment and not tiny.environment


def test_the_larger_model_is_made_of_the_smaller_one(plan: Plan) -> None:
    (part,) = plan.side_by_side(["profile-32b-2"])
    model = Path(part.arguments[part.arguments.index("--model") + 1])
    config = json.loads((model / "config.json").read_text())
    assert config["hidden_size"] == 5120 and config["num_hidden_layers"] == 64
    assert config["rms_norm_eps"] == 1e-6


@pytest.mark.parametrize("name", ["9b-1", "8b", "8b-x", "peer-8b-2", "text-3"])
def test_what_cannot_run_is_refused_beforehand(plan: Plan, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        plan.part(name)


def test_the_report_names_ratios_goals_and_differences(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"

    def served(label: str, workload: str, tokens_per_s: float, tpot: float) -> None:
        pair = [tpot, 2 * tpot]
        figures = {"output_tokens_per_s": tokens_per_s, "ttft_ms": pair, "tpot_ms": pair, "itl_ms": pair}
        append(path, {"kind": "serving", "label": label, "workload": workload, **figures})

    served("32b-2", "W1s", 120, 8.0)
    served("32b-1", "W1s", 60, 16.0)
    served("32b-2", "W4h", 3000, 40.0)
    served("32b-1", "W4h", 2000, 50.0)
    for tp, way, tokens in [
        (1, "float32", [1, 2, 3]),
        (2, "float32+eager", [1, 2, 3]),
        (2, "float32", [1, 9, 3]),
    ]:
        append(path, {"kind": "text", "tp": tp, "way": way, "tokens": [tokens]})
    for how, us in (("nccl", 20.0), ("one-shot", 8.0)):
        append(path, {"kind": "sum", "how": how, "dtype": "bfloat16", "kib": 64, "us": us, "right": True})
    step = {"step_us": 9000.0, "profiled_us": 10000.0, "idle_us": 500.0, "communication_calls": 128.0}
    for case, kinds in (
        ("first", {"products": 7000.0, "norms": 30.0}),
        ("second", {"sums over ranks": 250.0}),
    ):
        append(path, {"kind": "step", "label": "profile-32b-2", "case": case, "kinds_us": kinds, **step})
    append(path, {"kind": "part", "part": "32b-2", "outcome": "ok", "seconds": 88.0})
    text = report(read([path]))
    assert "32b-2, W1s: throughput x 2.00, TPOT p50 x 0.50" in text and "0.65 at most)" in text
    assert "32b-2, W4h: throughput x 1.50" in text and "1.6 at least, MISSED" in text
    assert "float32+eager: ok" in text and "float32: FAILED, 0 of 1 texts equal, 1 of 3 tokens" in text
    assert "One-shot is the faster up to 64 KiB." in text and "32b-2: ok, 88 s" in text
    assert "| part | step | ms | sums | products, ms | norms, ms | sums over ranks, ms | idle |" in text
    assert "| profile-32b-2 | second | 9.00 | 128 | 0.00 | 0.00 | 0.25 | 5.0 % |" in text
