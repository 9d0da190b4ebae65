"""A comparison of runs, as text and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from loadgen.figures.percentiles import SHARES
from loadgen.record import Run
from loadgen.report.charts import compare_e2e, compare_inter_token, compare_ttft
from loadgen.report.page import html_page
from loadgen.report.svg import draw
from loadgen.report.text import number

TITLES = {
    "ttft_from_due": "TTFT, from due time",
    "tpot": "time per output token",
    "e2e_from_due": "end to end, from due time",
}
ROWS = (*SHARES, "mean")
Summary = dict[str, Any]


def render_comparison_text(
    runs: Sequence[Run], summaries: Sequence[Summary], changes: Sequence[dict[str, Any]]
) -> str:
    lines = [_run_line(run, summary) for run, summary in zip(runs, summaries, strict=True)]
    for change in changes:
        how = "paired, request by request" if change["paired"] else "independent samples"
        lines += ["", f"{change['other']} against {change['base']} ({how}), ms"]
        if change["load"]:
            lines.append("THE LOADS DIFFER, so latencies may differ for that reason alone:")
            lines += [_load_line(name, part) for name, part in change["load"].items()]
        for name, figures in change["measures"].items():
            if figures is None:
                lines.append(f"{TITLES[name]}: too few values")
                continue
            lines += [_change_line(f"{TITLES[name]}, {row}", figures[row]) for row in ROWS]
    return "\n".join(lines)


def render_comparison_page(
    runs: Sequence[Run], summaries: Sequence[Summary], changes: Sequence[dict[str, Any]]
) -> str:
    named = [(run.name, run.results) for run in runs]
    charts = "".join(draw(chart(named)) for chart in (compare_ttft, compare_inter_token, compare_e2e))
    text = escape(render_comparison_text(runs, summaries, changes))
    title = " and ".join(run.name for run in runs)
    return html_page(title, f'<h1>{escape(title)}</h1><div class="charts">{charts}</div><pre>{text}</pre>')


def _run_line(run: Run, summary: Summary) -> str:
    load = summary["load"]
    return (
        f"{run.name:20} {summary['verdict']['status']}, {number(load['offered_rate_rps'])} req/s, "
        f"{summary['requests']['succeeded']} of {summary['requests']['sent']} succeeded, "
        f"{number(summary['tokens']['output_per_s'])} tokens/s"
    )


def _load_line(name: str, part: dict[str, Any]) -> str:
    base, other = (value if isinstance(value, str) else number(value) for value in part.values())
    return f"  {name:32} " + (f"{base} -> {other}" if base != other else f"{base} in both, but not the same")


def _change_line(title: str, row: dict[str, Any]) -> str:
    low, high = row["change_95"]
    share = "" if row["change_share"] is None else f" ({row['change_share']:+.1%})"
    verdict = "" if row["differs"] else "  no difference shown"
    return (
        f"  {title:32} {number(row['base'], 9)} -> {number(row['other'], 9)}{share}, "
        f"change {number(low)} to {number(high)}{verdict}"
    )
