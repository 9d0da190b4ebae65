"""The summary as Markdown, for an issue or a pull request."""

from __future__ import annotations

from typing import Any

from loadgen.figures.percentiles import MIN_SAMPLES_FOR_P99
from loadgen.report.text import COLUMNS, LATENCIES, number, shown_latencies, started


def render_markdown(summary: dict[str, Any]) -> str:
    """Verdict, load, goodput and latencies, as tables."""
    run, load, requests = summary["run"], summary["load"], summary["requests"]
    failures = ", ".join(f"{count} x {kind}" for kind, count in requests["failures"].items()) or "none"
    rows = [
        ("verdict", summary["verdict"]["status"]),
        *(("because", cause) for cause in summary["verdict"]["causes"]),
        ("server", f"{run['model']} at {run['base_url']}"),
        ("load", f"{run['load']['name']}, seed {run['seed']}, {run['workers']} worker(s)"),
        (
            "rate",
            f"{number(load['offered_rate_rps'])} req/s offered, {number(load['intended_rate_rps'])} intended",
        ),
        (
            "lag p50, p99, max",
            ", ".join(number(load["lag_ms"][key]) for key in ("p50", "p99", "max")) + " ms",
        ),
        ("requests", f"{requests['sent']} sent, {requests['succeeded']} succeeded; failures: {failures}"),
        ("output", f"{number(summary['tokens']['output_per_s'])} tokens/s"),
    ]
    if (goodput := summary["goodput"]) is not None:
        low, high = goodput["attainment_95"]
        limits = (
            f"{name}: {measure} {limit:g} ms"
            for name, measures in goodput["objectives_ms"].items()
            for measure, limit in measures.items()
        )
        rows.append(("objective", ", ".join(limits)))
        rows.append(("met it", f"{goodput['attainment']:.1%} ({low:.1%} to {high:.1%})"))
    lines = [f"## {run['load']['name']}: {started(run)}", "", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in rows]
    lines += ["", f"| ms | {' | '.join(COLUMNS)} | n |", "| --- " + "| ---: " * (len(COLUMNS) + 1) + "|"]
    for key, row in shown_latencies(summary["latency_ms"]).items():
        mark = "\\*" if row["n"] < MIN_SAMPLES_FOR_P99 else ""
        cells = " | ".join(number(row[name]) for name in (*COLUMNS, "n"))
        lines.append(f"| {LATENCIES[key]} | {cells}{mark} |")
    lines += ["", f"\\* fewer than {MIN_SAMPLES_FOR_P99} values: p99 is little more than the largest few"]
    return "\n".join(lines) + "\n"
