"""The report of a run as one HTML file that needs no network."""

from __future__ import annotations

from html import escape
from typing import Any

from loadgen.record import RequestResult, Run
from loadgen.report.charts import ALL_CHARTS, OVERVIEW_CHARTS
from loadgen.report.svg import STYLE, WIDTH, sheet
from loadgen.report.text import render_text

PAGE_STYLE = """
:root { color-scheme: light dark }
body { font: 14px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.3rem } pre { overflow-x: auto; padding: .8rem; border: 1px solid #8884; border-radius: 6px }
.verdict { padding: .1rem .6rem; border-radius: 4px; color: #fff; font-weight: 600 }
.valid { background: #2e7d4f } .invalid { background: #b3261e }
.charts { display: flex; flex-wrap: wrap; gap: 8px } .charts svg { max-width: 100%; height: auto }
"""


def render_page(summary: dict[str, Any], recorded: Run) -> str:
    results = recorded.results
    run, valid = summary["run"], summary["verdict"]["valid"]
    title = f"{run['model']}: {run['load']['name']}"
    badge = '<span class="verdict valid">load valid</span>'
    if not valid:
        badge = '<span class="verdict invalid">LOAD_INVALID</span>'
    charts = "\n".join(draw(results, (0, 0)) for draw in ALL_CHARTS)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{escape(title)}</title><style>{PAGE_STYLE}{STYLE}</style></head>
<body><h1>{escape(title)} {badge}</h1>
<p>{escape(run["started_at"])}, {escape(run["base_url"])}, seed {run["seed"]}</p>
<div class="charts">{charts}</div>
<pre>{escape(render_text(summary))}</pre>
</body></html>
"""


def render_overview(results: list[RequestResult]) -> str:
    """Two charts side by side as one SVG file, for a README."""
    charts = [draw(results, (place * WIDTH, 0)) for place, draw in enumerate(OVERVIEW_CHARTS)]
    return sheet(charts, columns=len(charts))
