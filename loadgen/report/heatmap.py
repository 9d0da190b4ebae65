"""Which lengths meet the objective: prompts down, outputs across."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadgen.figures.objectives import Objective
from loadgen.record import RequestResult

STYLE = """
.heatmap { border-collapse: collapse; font-size: 12px } .heatmap td { padding: 3px 8px; text-align: right }
"""


def render_heatmap(results: Sequence[RequestResult], summary: dict[str, Any]) -> str:
    """An HTML table by powers of two of both lengths; empty without an objective."""
    if summary["goodput"] is None:
        return ""
    limits = summary["goodput"]["objectives_ms"]
    objectives = {name: Objective(name, limit) for name, limit in limits.items()}
    cells: dict[tuple[int, int], list[bool]] = {}
    for result in results:
        objective = objectives.get(result.request_class, objectives.get("all"))
        if objective is not None and not result.retried:
            place = result.input_tokens.bit_length(), result.output_tokens_asked.bit_length()
            cells.setdefault(place, []).append(all(objective.met(result).values()))
    inputs, outputs = (range(min(side), max(side) + 1) for side in zip(*cells, strict=True))
    head = "".join(f"<td>{_span(place)}</td>" for place in outputs)
    rows = "".join(
        f"<tr><td>{_span(row)}</td>{''.join(_cell(cells.get((row, column))) for column in outputs)}</tr>"
        for row in inputs
    )
    return (
        "<h2>Share that met the objective, by tokens of prompt (down) and output (across)</h2>"
        f'<table class="heatmap"><tr><td></td>{head}</tr>{rows}</table>'
    )


def _span(bits: int) -> str:
    return f"{2 ** (bits - 1)}-{2**bits - 1}" if bits > 1 else "1"


def _cell(met: list[bool] | None) -> str:
    if met is None:
        return "<td></td>"
    share = sum(met) / len(met)
    hue = round(120 * share)  # red to green
    return f'<td style="background:hsl({hue} 60% 50% / .45)">{share:.0%} <small>of {len(met)}</small></td>'
