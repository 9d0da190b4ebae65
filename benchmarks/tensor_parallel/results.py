"""Results as lines of JSON, on disk as soon as they are there, and the report over them.

python -m benchmarks.tensor_parallel.results FILE...
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def append(path: Path | None, row: Row) -> None:
    """One write, so that parts that run side by side do not mix their lines. Without a file: print it."""
    line = json.dumps(row)
    if path is None:
        print(line, flush=True)
        return
    with path.open("a") as file:
        file.write(line + "\n")


def read(paths: Iterable[Path]) -> list[Row]:
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def report(rows: Sequence[Row]) -> str:
    """Markdown: text, sums, serving with its ratios and goals, steps, and how each part ended."""
    sections = [
        ("Text on two ranks beside one", _texts(rows)),
        ("One sum, by size", _sums(rows)),
        ("Serving", _serving(rows)),
        ("Two ranks beside one", _ratios(rows)),
        ("Steps", _steps(rows)),
        (
            "Parts",
            [f"- {row['part']}: {row['outcome']}, {row['seconds']:.0f} s" for row in _of(rows, "part")],
        ),
    ]
    return "\n\n".join(f"## {title}\n\n" + "\n".join(lines) for title, lines in sections if lines)


def _of(rows: Sequence[Row], kind: str) -> list[Row]:
    return [row for row in rows if row["kind"] == kind]


def _texts(rows: Sequence[Row]) -> list[str]:
    """Also how far bf16 goes with fp32 on one rank: no two ways to round agree better."""
    texts = _of(rows, "text")
    expected = {row["way"]: row["tokens"] for row in texts if row["tp"] == 1}
    lines = []
    for row in sorted(texts, key=lambda row: -row["tp"]):
        dtype = row["way"].split("+")[0]
        if row["tp"] > 1:
            lines.append(f"- {row['way']}: {_verdict(expected.get(dtype), row)}")
        elif dtype != "float32":
            lines.append(
                f"- {row['way']} beside float32, both on one: {_verdict(expected.get('float32'), row)}"
            )
    return lines


def _verdict(expected: list[list[int]] | None, row: Row) -> str:
    """fp32 must agree; bf16 rounds, and where two tokens are nearly tied a text may part ways."""
    if expected is None:
        return "nothing to compare it with"
    pairs = list(zip(expected, row["tokens"], strict=True))
    same = sum(_common_prefix(want, got) for want, got in pairs)
    total = sum(len(want) for want, _ in pairs)
    equal_texts = sum(want == got for want, got in pairs)
    word = "ok" if same == total else "FAILED" if row["way"].startswith("float32") else "differs"
    return (
        f"{word}, {equal_texts} of {len(pairs)} texts equal, "
        f"{same} of {total} tokens before the first difference of each"
    )


def _common_prefix(want: Sequence[int], got: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(want, got, strict=True)) if a != b), len(want))


def _sums(rows: Sequence[Row]) -> list[str]:
    """Microseconds of one all-reduce in a graph, and up to where one-shot is the faster."""
    sums = {(row["dtype"], row["kib"], row["how"]): row for row in _of(rows, "sum")}
    lines = ["| type | KiB | how | us | sum |", "| --- | --- | --- | --- | --- |"] if sums else []
    for dtype, kib, how in sorted(sums):
        row = sums[dtype, kib, how]
        right = {True: "right", False: "WRONG", None: ""}[row.get("right")]
        lines.append(f"| {dtype} | {kib:.0f} | {how} | {row['us']:.1f} | {right} |")
    faster = [
        kib
        for dtype, kib, how in sums
        if how == "one-shot" and sums[dtype, kib, how]["us"] < sums[dtype, kib, "nccl"]["us"]
    ]
    return [*lines, "", f"One-shot is the faster up to {max(faster):.0f} KiB."] if faster else lines


def _serving(rows: Sequence[Row]) -> list[str]:
    served = _of(rows, "serving")
    if not served:
        return []
    lines = [
        "| part | run | out tok/s | TTFT p50 / p99 ms | TPOT p50 / p99 ms | ITL p50 / p99 ms |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in served:
        pairs = [f"{row[key][0]:.2f} / {row[key][1]:.2f}" for key in ("ttft_ms", "tpot_ms", "itl_ms")]
        cells = [row["label"], row["workload"], f"{row['output_tokens_per_s']:.0f}", *pairs]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _ratios(rows: Sequence[Row]) -> list[str]:
    """Throughput of two over one where all requests come at once, else time per token of two over one."""
    served = {(row["label"], row["workload"]): row for row in _of(rows, "serving")}
    lines = []
    for (label, workload), two in served.items():
        for prefix, other in (("", label[:-1] + "1"), ("beside the peer: ", f"peer-{label}")):
            one = served.get((other, workload))
            if one is not None and label.endswith("-2"):
                lines.append(f"- {prefix}{label}, {workload}: {_ratio(one, two, with_goal=not prefix)}")
    return lines


def _ratio(one: Row, two: Row, *, with_goal: bool) -> str:
    throughput = two["output_tokens_per_s"] / one["output_tokens_per_s"]
    tpot = two["tpot_ms"][0] / one["tpot_ms"][0]
    ttft = two["ttft_ms"][0] / one["ttft_ms"][0]
    text = f"throughput x {throughput:.2f}, TPOT p50 x {tpot:.2f}, TTFT p50 x {ttft:.2f}"
    if not with_goal:
        return text
    if two["workload"].startswith("W1"):
        return f"{text} (goal: TPOT x 0.65 at most{'' if tpot <= 0.65 else ', MISSED'})"
    if two["workload"].startswith("W4") and two["label"].startswith("32b"):
        return f"{text} (goal: throughput x 1.6 at least{'' if throughput >= 1.6 else ', MISSED'})"
    return text


def _steps(rows: Sequence[Row]) -> list[str]:
    """How long a step takes, and its kernels by kind; waiting for other ranks counts with the sums."""
    steps = _of(rows, "step")
    kinds = list(dict.fromkeys(kind for row in steps for kind in row["kinds_us"]))
    lines = [
        "| part | step | ms | sums | " + " | ".join(f"{kind}, ms" for kind in kinds) + " | idle |",
        "| --- " * (len(kinds) + 5) + "|",
    ]
    for row in steps:
        cells = [row["label"], row["case"], _ms(row["step_us"]), f"{row['communication_calls']:.0f}"]
        cells += [_ms(row["kinds_us"].get(kind, 0.0)) for kind in kinds]
        cells.append(f"{100 * row['idle_us'] / row['profiled_us']:.1f} %")
        lines.append("| " + " | ".join(cells) + " |")
    return lines if steps else []


def _ms(us: float) -> str:
    return f"{us / 1000:.2f}"


if __name__ == "__main__":
    print(report(read(map(Path, sys.argv[1:]))))
