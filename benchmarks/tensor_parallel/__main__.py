"""Tensor parallelism on the GPUs of one host: right text first, then all-reduces, then serving on 1 and 2.

    python -m benchmarks.tensor_parallel --models FOLDER --out DIR --parts text,reduce,8b-2,8b-1

FOLDER holds `qwen3-8b`, a config.json and tokenizer without weights; `32b` parts derive their shape from it.
Everything ends up in four files in DIR. Needs transformers for the tiny models of `text`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

QWEN3_32B = {
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 25600,
}
TINY_MODELS = {
    "divides": ("qwen3", {"num_attention_heads": 8, "num_key_value_heads": 4}),
    "uneven": ("smollm", {"num_attention_heads": 9, "num_key_value_heads": 3}),
}
TINY_SHAPE = {"hidden_size": 576, "head_dim": 64, "intermediate_size": 512, "vocab_size": 513}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", type=Path, help="folder that holds qwen3-8b")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--parts", default="text,reduce,8b-2,8b-1", help="in this order; SHAPE-RANKS serves")
    parser.add_argument("--workloads", default="W1,W3-16,W4")
    parser.add_argument("--all-reduce", default="auto", help="of the serving parts: auto, nccl or one-shot")
    parser.add_argument("--budget", type=float, default=290.0, help="begin no part after so many seconds")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        for part in arguments.parts.split(","):
            left = arguments.budget - (time.monotonic() - begin)
            if left < 0:
                print(f"{part}: out of time", flush=True)
                continue
            print(f"== {part}", flush=True)
            if part == "text":
                compare_texts(Path(scratch), arguments.out)
            elif part == "reduce":
                run_logged(["benchmarks.tensor_parallel.all_reduce"], arguments.out / "all_reduce.log", 120)
            else:
                serve(part, arguments, Path(scratch), left)
            print(f"== {part}: at {time.monotonic() - begin:.0f} s", flush=True)


WAYS = [
    ("divides", "float32", []),
    ("divides", "float32", ["--all-reduce", "nccl"]),
    ("divides", "float32", ["--eager"]),
    ("uneven", "float32", []),
    ("divides", "bfloat16", []),
    ("uneven", "bfloat16", []),
]


def compare_texts(scratch: Path, out: Path) -> None:
    """Each way to run two ranks against one rank. fp32 must agree; bf16 rounds and may part ways.

    Two engines of two ranks never run at once: their collectives would wait for turns on the same GPUs.
    """
    from tests.support.tiny_models import save_tiny_model

    for name, (architecture, overrides) in TINY_MODELS.items():
        save_tiny_model(scratch / name, architecture, with_tokenizer=True, **TINY_SHAPE, **overrides)
    ones = {(name, dtype): generate(scratch / name, dtype, ranks=1) for name, dtype, _ in WAYS}
    expected = {key: finish(process, 150) for key, process in ones.items()}
    for name, dtype, flags in WAYS:
        output = finish(generate(scratch / name, dtype, ranks=2, flags=flags), 90)
        key = (name, dtype, " ".join(flags))
        with (out / "text.log").open("a") as log:
            log.write(f"#### {key}\n{output}\n")
        print(verdict(key, expected[name, dtype], output), flush=True)


def generate(model: Path, dtype: str, *, ranks: int, flags: Sequence[str] = ()) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.tensor_parallel.text", str(model)]
    command += ["--tp", str(ranks), "--dtype", dtype, *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str], timeout_s: float) -> str:
    try:
        return process.communicate(timeout=timeout_s)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0] + "\nTIMED OUT"


def verdict(key: tuple[str, str, str], one: str, two: str) -> str:
    expected, tokens = tokens_of(one), tokens_of(two)
    if expected is None or tokens is None:
        return f"FAILED {key}: no tokens, see text.log\n" + (two if expected else one)[-800:]
    same = [
        next((i for i, (a, b) in enumerate(zip(want, got, strict=True)) if a != b), len(want))
        for want, got in zip(expected, tokens, strict=True)
    ]
    total = sum(map(len, expected))
    word = "ok" if sum(same) == total else "FAILED" if key[1] == "float32" else "differs"
    return f"{word} {key}: {sum(same)} of {total} tokens before the first difference of each text"


def tokens_of(output: str) -> list[list[int]] | None:
    lines = [line for line in output.splitlines() if line.startswith("TOKENS ")]
    return json.loads(lines[0].removeprefix("TOKENS ")) if lines else None


def serve(part: str, arguments: argparse.Namespace, scratch: Path, left: float) -> None:
    shape, ranks = part.split("-")
    model = arguments.models / "qwen3-8b"
    if shape == "32b":
        model = scratch / "qwen3-32b"
        if not model.exists():
            shutil.copytree(arguments.models / "qwen3-8b", model)
            config = json.loads((model / "config.json").read_text())
            (model / "config.json").write_text(json.dumps(config | QWEN3_32B))
    flags = f"--tensor-parallel-size {ranks} --all-reduce {arguments.all_reduce}"
    command = ["benchmarks.serving", "--model", str(model), "--load-format", "dummy", "--label", part]
    command += ["--serve-flags", flags, "--workloads", arguments.workloads, "--out", str(scratch / part)]
    command += ["--budget", str(left)]
    run_logged(command, arguments.out / "serving.log", left + 120)
    with (arguments.out / "servers.log").open("a") as log:
        for path in (scratch / part).glob("*.server.log"):
            log.write(f"#### {part}\n{path.read_text()[-20000:]}\n")


def run_logged(command: list[str], log: Path, timeout_s: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    output = finish(process, timeout_s)
    with log.open("a") as file:
        file.write(f"#### {' '.join(command)}\n{output}\n")
    print(output[-4000:], flush=True)


if __name__ == "__main__":
    main()
