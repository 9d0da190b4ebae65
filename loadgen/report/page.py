"""The report of a run as one HTML file that needs no network."""

from __future__ import annotations

from html import escape
from typing import Any

from loadgen.record import Run
from loadgen.report import heatmap, svg, waterfall
from loadgen.report.charts import overview_charts, run_charts
from loadgen.report.text import number, render_text, started

PAGE_STYLE = """
:root { color-scheme: light dark }
body { font: 14px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.3rem } h2 { font-size: 1rem; margin-top: 1.6rem }
pre { white-space: pre-wrap; padding: .8rem; border: 1px solid #8884; border-radius: 6px }
.verdict { padding: .1rem .6rem; border-radius: 4px; color: #fff; font-weight: 600 }
.valid { background: #2e7d4f } .invalid { background: #b3261e }
.charts { display: flex; flex-wrap: wrap; gap: 8px } .charts svg { max-width: 100%; height: auto }
.tiles { display: flex; flex-wrap: wrap; gap: 10px; margin: 1rem 0 }
.tile { border: 1px solid #8884; border-radius: 6px; padding: .5rem .9rem; min-width: 120px }
.note { opacity: .75; font-size: 12px }
.tile b { display: block; font-size: 1.25rem } .tile span { opacity: .7; font-size: 12px }
"""


NOTE = (
    "A latency runs from the due time, when the schedule wanted the request sent, and so includes what the "
    "client or a full server held it up; &ldquo;from send&rdquo; leaves out what the client delayed. "
    "Failed requests are in no latency, but have missed every objective."
)


def html_page(title: str, body: str) -> str:
    style = PAGE_STYLE + svg.STYLE + waterfall.STYLE + heatmap.STYLE
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{escape(title)}</title><style>{style}</style></head>
<body>{body}</body></html>
"""


def render_page(summary: dict[str, Any], run: Run) -> str:
    """Verdict, tiles, charts, every request as a bar, and the figures as text."""
    env, verdict = summary["run"], summary["verdict"]
    title = f"{env['model']}: {env['load']['name']}"
    kind = "valid" if verdict["valid"] else "invalid"
    causes = "".join(f"<li>{escape(cause)}</li>" for cause in verdict["causes"])
    charts = "\n".join(svg.draw(chart) for chart in run_charts(run, summary))
    return html_page(
        title,
        f"""<h1>{escape(title)} <span class="verdict {kind}">{verdict["status"]}</span></h1>
<ul>{causes}</ul>
<p>{escape(started(env))}, {escape(env["base_url"])}, seed {env["seed"]}, {env["workers"]} worker(s)</p>
<div class="tiles">{_tiles(summary)}</div>
<p class="note">{NOTE}</p>
<div class="charts">{charts}</div>
{waterfall.render_waterfall(run.results)}
{heatmap.render_heatmap(run.results, summary)}
<h2>All figures</h2>
<pre>{escape(render_text(summary))}</pre>""",
    )


def render_overview(summary: dict[str, Any], run: Run) -> str:
    """Two charts side by side as one SVG file, for a README."""
    shown = overview_charts(run, summary)
    charts = [svg.draw(chart, (place * svg.WIDTH, 0)) for place, chart in enumerate(shown)]
    return svg.sheet(charts, columns=len(charts))


def _tiles(summary: dict[str, Any]) -> str:
    load, latency, requests = summary["load"], summary["latency_ms"], summary["requests"]
    tiles = {
        "requests succeeded": f"{requests['succeeded']} of {requests['sent']}",
        "offered": f"{number(load['offered_rate_rps'])} req/s",
        "TTFT p50, from due time": f"{number(latency['ttft_from_due']['p50'])} ms",
        "TTFT p99, from due time": f"{number(latency['ttft_from_due']['p99'])} ms",
        "inter-token p50": f"{number(latency['inter_token']['p50'])} ms",
        "output": f"{number(summary['tokens']['output_per_s'])} tokens/s",
    }
    if summary["goodput"] is not None:
        tiles["met the objective"] = f"{summary['goodput']['attainment']:.1%}"
    return "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for name, value in tiles.items()
    )
