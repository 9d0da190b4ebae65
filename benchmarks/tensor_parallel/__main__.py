"""Tensor parallelism on the GPUs of one host: all-reduces, text, serving and steps on two ranks and on one.

    python -m benchmarks.tensor_parallel --models FOLDER --out DIR

FOLDER holds `qwen3-8b`, a config.json and tokenizer without weights. Without `qwen3-32b` beside it, the
`32b` parts take the published shape and that tokenizer.
Parts run in the order named, those joined by + side by side. Each has a time limit and its process group ends
with it; one that fails or hangs takes no other along. DIR gets results.jsonl as they come, the ends of all
logs in logs.txt, and the report. Needs transformers for the tiny model of `text`. The parts:

"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.tensor_parallel.boxed import Boxed, run_side_by_side
from benchmarks.tensor_parallel.parts import PARTS, Plan
from benchmarks.tensor_parallel.results import append, read, report

DEFAULT_PARTS = "reduce+tiny,text-2,text-1,8b-2,8b-1+32b-1,32b-2,profile-8b-2,profile-32b-2,text-2b"
_LEAST_S = 15.0  # a part that has less time left is not begun
_LOG_BYTES = 60_000  # of each log's end


def main() -> None:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "") + "\n".join(f"    {line}" for line in PARTS),
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--models", type=Path, help="folder that holds qwen3-8b")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--parts", default=DEFAULT_PARTS, help=f"(default: {DEFAULT_PARTS})")
    parser.add_argument("--workloads", help="of all serving parts, instead of those of each shape")
    parser.add_argument("--all-reduce", default="auto", help="of serving and profile: auto, nccl or one-shot")
    parser.add_argument("--serve-flags", default="", help="further flags of `octavo serve`")
    parser.add_argument("--peer-command", help="of peer parts, with {model}, {port} and {ranks}")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds for everything (default: 540)")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # not without ending what runs
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # what is aborted holds gigabytes
    results = arguments.out / "results.jsonl"
    results.touch()
    end_s = time.monotonic() + arguments.budget
    with tempfile.TemporaryDirectory() as scratch:
        plan = Plan(
            arguments.models,
            Path(scratch),
            results.resolve(),
            arguments.all_reduce,
            arguments.workloads,
            arguments.peer_command,
            arguments.serve_flags,
        )
        stages = [plan.side_by_side(stage.split("+")) for stage in arguments.parts.split(",")]
        for stage in stages:
            run_stage(stage, plan, arguments.out, end_s)
    print(report(read([results])), flush=True)


def run_stage(stage: list[Boxed], plan: Plan, out: Path, end_s: float) -> None:
    """Run the parts side by side, keep the ends of their logs, and write the report so far."""
    began_s = time.monotonic()
    names = " + ".join(boxed.name for boxed in stage)
    if end_s - began_s < _LEAST_S:
        print(f"== {names}: no time left", flush=True)
        return
    print(f"== {names}", flush=True)
    outcomes = run_side_by_side(stage, plan.scratch, end_s - began_s)
    seconds = time.monotonic() - began_s
    for name, outcome in outcomes.items():
        append(plan.results, {"kind": "part", "part": name, "outcome": outcome, "seconds": seconds})
        print(f"{name}: {outcome}, {seconds:.0f} s", flush=True)
        if outcome != "ok":
            print((plan.scratch / f"{name}.log").read_text(errors="replace")[-1500:], flush=True)
    with (out / "logs.txt").open("a") as logs:
        for path in sorted(plan.scratch.glob("*.log")):
            text = path.read_text(errors="replace")[-_LOG_BYTES:]
            logs.write(f"#### {path.name}\n{text}\n")
            path.unlink()
    (out / "report.md").write_text(report(read([plan.results])) + "\n")


if __name__ == "__main__":
    main()
