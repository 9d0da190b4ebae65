"""A chart as data, for whatever draws it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

COLOURS = ("#3b78d8", "#d9730d", "#2e9e6b", "#c2418c", "#8064c8", "#7a7f85")


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one name; they need not be finite, and those that are not are left out."""

    name: str
    x: np.ndarray
    y: np.ndarray
    mark: Literal["line", "dots", "line and dots", "bars"] = "line"  # bars: two points each, its ends


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn, however it is drawn: as SVG or by Matplotlib."""

    title: str
    x_label: str
    y_label: str
    series: list[Series]
    log_x: bool = False
    log_y: bool = False
