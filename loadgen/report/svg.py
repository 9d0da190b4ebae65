"""Small charts as SVG text: lines and dots on linear or logarithmic axes, for light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from loadgen.report.chart import COLOURS, Chart, Series

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 22, 44, 40  # margins around the plot
FEW_TICKS = 4  # a logarithmic axis with fewer is not readable
FEW_POINTS = 200  # so many are drawn large
MAX_POINTS = 2000  # more dots than this only make the file larger

STYLE = """
.chart { font: 11px system-ui, sans-serif; color: #24292f; background: #fff }
.chart text { fill: currentColor } .chart .title { font-weight: 600; font-size: 13px }
.chart .grid { stroke: currentColor; stroke-opacity: .13 }
.chart .axis { stroke: currentColor; stroke-opacity: .5 }
@media (prefers-color-scheme: dark) { .chart { color: #d6dbe1; background: #14181d } }
"""


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values to pixels: `low` lies at pixel `start`, `high` at pixel `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    @classmethod
    def of(cls, values: np.ndarray, start: float, end: float, *, log: bool) -> Axis:
        values = values[np.isfinite(values) & ((values > 0) | (not log))]
        low, high = (float(values.min()), float(values.max())) if len(values) else (1.0, 10.0)
        if log:
            low, high = low / 1.1, max(high * 1.1, low * 1.5)
        else:
            low, high = min(low, 0.0), high * 1.05 if high > 0 else 1.0
        return cls(low, high, start, end, log)

    def pixels(self, values: np.ndarray) -> np.ndarray:
        low, high = self.low, self.high
        if self.log:
            with np.errstate(divide="ignore", invalid="ignore"):
                values = np.log(values)
            low, high = math.log(low), math.log(high)
        placed: np.ndarray = self.start + (values - low) / (high - low) * (self.end - self.start)
        return placed

    def ticks(self) -> list[float]:
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for digits in ((1,), (1, 2, 5), (1, 2, 3, 5, 7), range(1, 10)):
                ticks = [digit * 10.0**decade for decade in decades for digit in digits]
                shown = [tick for tick in ticks if self.low <= tick <= self.high]
                if len(shown) >= FEW_TICKS:
                    return shown
        step = _round_up((self.high - self.low) / 6)
        return [tick * step for tick in range(math.ceil(self.low / step), int(self.high / step) + 1)]


def draw(chart: Chart, at: tuple[int, int] = (0, 0)) -> str:
    """A chart as an `<svg>` element of 480 x 300, to stand in a page or, at a place, in another `<svg>`."""
    series = chart.series
    nothing = np.empty(0)
    x = Axis.of(np.concatenate([nothing, *(s.x for s in series)]), LEFT, WIDTH - RIGHT, log=chart.log_x)
    y = Axis.of(np.concatenate([nothing, *(s.y for s in series)]), HEIGHT - BOTTOM, TOP, log=chart.log_y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" x="{at[0]}" y="{at[1]}" width="{WIDTH}" '
        f'height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(chart.title)}</title>",
        _text(LEFT, 16, chart.title, "start", "title"),
        *_grid(x, y),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, chart.x_label, "middle"),
        f'<g transform="rotate(-90)">{_text(-(TOP + HEIGHT - BOTTOM) / 2, 12, chart.y_label, "middle")}</g>',
        *(_series(s, x, y, COLOURS[place % len(COLOURS)]) for place, s in enumerate(series)),
        *_legend(series),
        "</svg>",
    ]
    return "\n".join(parts)


def sheet(charts: Sequence[str], columns: int) -> str:
    """Charts drawn with `at=` in one SVG file that stands alone."""
    width, height = columns * WIDTH, math.ceil(len(charts) / columns) * HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">\n<style>{STYLE}</style>\n' + "\n".join(charts) + "\n</svg>\n"
    )


def _grid(x: Axis, y: Axis) -> list[str]:
    lines = [_line(x.start, y.start, x.end, y.start, "axis"), _line(x.start, y.start, x.start, y.end, "axis")]
    for tick, place in zip(x.ticks(), x.pixels(np.array(x.ticks())), strict=True):
        lines += (
            _line(place, y.start, place, y.end, "grid"),
            _text(place, y.start + 14, f"{tick:g}", "middle"),
        )
    for tick, place in zip(y.ticks(), y.pixels(np.array(y.ticks())), strict=True):
        lines += (
            _line(x.start, place, x.end, place, "grid"),
            _text(x.start - 5, place + 4, f"{tick:g}", "end"),
        )
    return lines


def _series(series: Series, x: Axis, y: Axis, colour: str) -> str:
    horizontal, vertical = x.pixels(series.x), y.pixels(series.y)
    shown = np.flatnonzero(np.isfinite(horizontal) & np.isfinite(vertical))
    if len(shown) > MAX_POINTS:
        shown = shown[np.linspace(0, len(shown) - 1, MAX_POINTS).astype(int)]
    points = [(f"{horizontal[i]:.1f}", f"{vertical[i]:.1f}") for i in shown]
    if series.mark == "bars":
        ends = zip(points[::2], points[1::2], strict=False)
        bars = "".join(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>' for (x1, y1), (x2, y2) in ends)
        return f'<g stroke="{colour}" stroke-width="1.5">{bars}</g>'
    path = " ".join(f"{px},{py}" for px, py in points)
    line = f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{path}"/>'
    if series.mark == "line":
        return line
    radius = 1.8 if len(points) > FEW_POINTS else 3
    circles = "".join(f'<circle cx="{cx}" cy="{cy}" r="{radius}"/>' for cx, cy in points)
    dots = f'<g fill="{colour}" fill-opacity=".6">{circles}</g>'
    return dots if series.mark == "dots" else line + dots


def _legend(series: Sequence[Series]) -> list[str]:
    parts, left = [], float(LEFT)
    for place, entry in enumerate(series):
        parts.append(f'<circle cx="{left + 4}" cy="30" r="4" fill="{COLOURS[place % len(COLOURS)]}"/>')
        parts.append(_text(left + 12, 34, entry.name, "start"))
        left += 26 + 6.2 * len(entry.name)
    return parts


def _text(x: float, y: float, text: str, anchor: str, kind: str = "label") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _round_up(step: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power: float = 10.0 ** math.floor(math.log10(step))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= step * 0.999)
