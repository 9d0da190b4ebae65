"""Charts as a PNG image, by Matplotlib, which is not needed for anything else."""

from __future__ import annotations

import io
from collections.abc import Sequence

from loadgen.report.chart import COLOURS, Chart

COLUMNS = 2
CHART_INCHES = (6.4, 4.0)
DPI = 110


def render_png(charts: Sequence[Chart]) -> bytes:
    """All charts in one image. Raises ValueError if Matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("a PNG needs Matplotlib: pip install matplotlib") from None
    rows = -(-len(charts) // COLUMNS)
    figure = Figure((CHART_INCHES[0] * COLUMNS, CHART_INCHES[1] * rows), layout="constrained")
    grid = figure.subplots(rows, COLUMNS, squeeze=False).flatten()
    for axes, chart in zip(grid, charts, strict=False):
        for place, series in enumerate(chart.series):
            colour = COLOURS[place % len(COLOURS)]
            if series.mark == "bars":
                axes.vlines(series.x[::2], series.y[::2], series.y[1::2], colour, label=series.name)
                continue
            marker = "" if series.mark == "line" else "."
            line = "none" if series.mark == "dots" else "-"
            axes.plot(series.x, series.y, marker=marker, linestyle=line, color=colour, label=series.name)
        axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
        axes.set_xscale("log" if chart.log_x else "linear")
        axes.set_yscale("log" if chart.log_y else "linear")
        axes.grid(alpha=0.25)
        axes.legend(fontsize="small")
    for axes in grid[len(charts) :]:
        axes.set_visible(False)
    image = io.BytesIO()
    figure.savefig(image, dpi=DPI, format="png")
    return image.getvalue()
