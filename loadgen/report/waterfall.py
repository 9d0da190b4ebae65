"""The slowest requests as bars: waiting in the client, waiting for the first token, streaming."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from loadgen.record import RequestResult

SLOWEST = 20
STYLE = """
.waterfall { width: 100%; border-collapse: collapse; font-size: 12px }
.waterfall td { padding: 1px 6px; white-space: nowrap }
.waterfall .bar { width: 65% } .waterfall .bar div { height: 12px; display: flex }
.late { background: #b3261e } .wait { background: #d9730d } .stream { background: #3b78d8 }
"""


def render_waterfall(results: Sequence[RequestResult]) -> str:
    """An HTML table; all bars begin at the due time and have one scale. Empty if nothing succeeded."""
    good = [(r.since_due(r.end_ns) or 0, r) for r in results if r.ok and not r.retried]
    slowest = sorted(good, key=lambda pair: -pair[0])[:SLOWEST]
    if not slowest:
        return ""
    scale = slowest[0][0]
    rows = "".join(_row(result, scale) for _, result in slowest)
    legend = '<span class="late">&emsp;</span> held by the client'
    legend += ' <span class="wait">&emsp;</span> to the first token'
    legend += ' <span class="stream">&emsp;</span> streaming'
    return (
        f"<h2>The slowest {len(slowest)} requests, from due time to end</h2><p>{legend}</p>"
        '<table class="waterfall"><tr><td>request</td><td>due, s</td><td>prompt</td><td>output</td>'
        f"<td>total, ms</td><td></td></tr>{rows}</table>"
    )


def _row(result: RequestResult, scale: int) -> str:
    ends = [result.since_due(at) or 0 for at in (result.sent_ns, result.first_token_ns, result.end_ns)]
    widths = [max(0, after - before) for before, after in zip([0, *ends[:-1]], ends, strict=True)]
    bars = "".join(
        f'<div class="{kind}" style="width:{100 * width / scale:.2f}%"></div>'
        for kind, width in zip(("late", "wait", "stream"), widths, strict=True)
    )
    return (
        f"<tr><td>{escape(result.request_id)}</td><td>{result.intended_ns / 1e9:.2f}</td>"
        f"<td>{result.input_tokens}</td><td>{result.output_tokens}</td><td>{ends[-1] / 1e6:.0f}</td>"
        f'<td class="bar"><div>{bars}</div></td></tr>'
    )
