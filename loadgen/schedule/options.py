"""What to make of a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    time_scale: float = 1.0  # every arrival time is multiplied by it
    rate_scale: float = 1.0  # below 1 thins the trace, above 1 superposes shifted copies
    start_s: float = 0.0  # the window, in seconds of the trace
    duration_s: float | None = None
    limit: int | None = None
    laps: int = 1  # how often the window is played
    input_scale: float = 1.0
    output_scale: float = 1.0
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    max_model_len: int | None = None
    cap_mode: Literal["drop", "clip"] = "drop"
    dejitter: bool = False
    session_rate: float | None = None  # Poisson arrivals of sessions, instead of the recorded ones
    seed: int = 0
