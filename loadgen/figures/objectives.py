"""Service-level objectives: which requests met them, and how much good work was done.

Attainment is over all requests that were sent: a failed or abandoned request has met nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadgen.figures.percentiles import NS_PER_MS
from loadgen.record.result import RequestResult

# The published objectives, in milliseconds.
PRESETS = {
    "distserve-chatbot-13b": "ttft=250,tpot=100",
    "distserve-chatbot-66b": "ttft=2500,tpot=150",
    "distserve-chatbot-175b": "ttft=4000,tpot=200",
    "distserve-code": "ttft=125,tpot=200",
    "distserve-summarization": "ttft=15000,tpot=150",
    "vidur": "ttft=2000,itl_p99=200",
    "mlperf-llama3.1-8b": "ttft=2000,tpot=100",
    "mlperf-llama3.1-8b-interactive": "ttft=500,tpot=30",
    "mlperf-llama2-70b": "ttft=2000,tpot=200",
    "mlperf-llama2-70b-interactive": "ttft=450,tpot=40",
    "mlperf-llama3.1-405b": "ttft=6000,tpot=175",
    "mlperf-llama3.1-405b-interactive": "ttft=4500,tpot=80",
    "mlperf-deepseek-r1": "ttft=2000,tpot=80",
    "mlperf-deepseek-r1-interactive": "ttft=1500,tpot=15",
    "mlperf-gpt-oss-120b": "ttft=3000,tpot=80",
    "mlperf-gpt-oss-120b-interactive": "ttft=2000,tpot=20",
}

Z_95 = 1.959964


def _itl_p99_ns(result: RequestResult) -> float | None:
    """Of one request: the inter-token latency that 99 % of its tokens keep."""
    gaps = list(result.token_gaps_ns())
    if not gaps:
        return None
    per_token = np.repeat([gap for gap, _ in gaps], [tokens for _, tokens in gaps])
    return float(np.quantile(per_token, 0.99, method="higher"))


MEASURES: dict[str, Callable[[RequestResult], float | None]] = {
    "ttft": lambda result: result.since_due(result.first_token_ns),
    "ttft_sent": lambda result: result.since_sent(result.first_token_ns),
    "tpot": lambda result: result.time_per_output_token_ns(),
    "itl_p99": _itl_p99_ns,
    "itl_max": lambda result: max((gap for gap, _ in result.token_gaps_ns()), default=None),
    "e2e": lambda result: result.since_due(result.end_ns),
}


@dataclass(frozen=True, slots=True)
class Objective:
    """Limits in milliseconds by measure, for requests of one class, or, with "", for all others."""

    request_class: str
    limits_ms: dict[str, float]

    @classmethod
    def parse(cls, text: str) -> Objective:
        """Read `[CLASS:]MEASURE=MS,...` or `[CLASS:]PRESET`. Raises ValueError."""
        request_class, _, rest = text.rpartition(":")
        limits: dict[str, float] = {}
        for item in PRESETS.get(rest, rest).split(","):
            name, _, value = item.partition("=")
            try:
                limits[name] = float(value)
            except ValueError:
                raise ValueError(_wrong(text)) from None
            if name not in MEASURES or not limits[name] > 0:
                raise ValueError(_wrong(text))
        return cls(request_class, limits)

    def met(self, result: RequestResult) -> dict[str, bool]:
        """By measure. What a request has none of, such as a time per output token with one token, is met."""
        return {name: result.ok and _within(name, result, limit) for name, limit in self.limits_ms.items()}


def _within(name: str, result: RequestResult, limit_ms: float) -> bool:
    value_ns = MEASURES[name](result)
    return value_ns is None or value_ns <= limit_ms * NS_PER_MS


def _wrong(text: str) -> str:
    return (
        f"objective {text!r}: expected [CLASS:]MEASURE=MS,... with {', '.join(MEASURES)}, "
        f"or one of {', '.join(PRESETS)}"
    )


def goodput_figures(
    objectives: Sequence[Objective], results: Sequence[RequestResult], span_s: float
) -> dict[str, Any] | None:
    """Attainment, with Wilson's 95 % interval, and the rates of good requests and tokens.

    None without objectives.

    Requests of a class without an objective of its own, where no objective is for all, are left out.
    """
    by_class = {objective.request_class: objective for objective in objectives}
    judged = [
        (result, objective, objective.met(result))
        for result in results
        if (objective := by_class.get(result.request_class, by_class.get(""))) is not None
    ]
    if not judged:
        return None
    good = [result for result, _, met in judged if all(met.values())]
    return {
        "objectives_ms": {objective.request_class or "all": objective.limits_ms for objective in objectives},
        "judged": len(judged),
        "good": len(good),
        "attainment": len(good) / len(judged),
        "attainment_95": wilson(len(good), len(judged)),
        "attainment_by_measure": _by_measure([met for _, _, met in judged]),
        "good_requests_per_s": len(good) / span_s if span_s else None,
        "good_tokens_per_s": sum(result.output_tokens for result in good) / span_s if span_s else None,
        "wasted_tokens": sum(result.output_tokens for result, _, met in judged if not all(met.values())),
        "fluidity_index": _mean(
            fluidity_index(result, objective.limits_ms["ttft"], objective.limits_ms["tpot"])
            for result, objective, _ in judged
            if {"ttft", "tpot"} <= objective.limits_ms.keys()
        ),
    }


def _by_measure(met: Sequence[dict[str, bool]]) -> dict[str, float]:
    names = dict.fromkeys(name for row in met for name in row)
    return {name: float(np.mean([row[name] for row in met if name in row])) for name in names}


def _mean(values: Any) -> float | None:
    found = list(values)
    return float(np.mean(found)) if found else None


def wilson(good: int, total: int) -> list[float]:
    """Wilson's score interval of a share (JASA 22, 1927), at 95 %."""
    share, z2 = good / total, Z_95**2
    centre = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = Z_95 / (1 + z2 / total) * math.sqrt(share * (1 - share) / total + z2 / (4 * total**2))
    return [max(0.0, centre - half), min(1.0, centre + half)]


def fluidity_index(result: RequestResult, ttft_ms: float, tpot_ms: float) -> float:
    """Share of a request's token deadlines that were met, where early tokens build up slack and a late token
    costs all the deadlines that passed while it was awaited, after which they start anew from it.

    After Agrawal et al., "Etalon: Holistic Performance Evaluation Framework for LLM Inference" (2024).
    """
    if not result.ok:
        return 0.0
    step_ns, deadline_ns = tpot_ms * NS_PER_MS, ttft_ms * NS_PER_MS
    kept = missed = 0
    for at_ns, tokens in zip(result.chunk_ns, result.chunk_tokens, strict=True):
        late_ns = at_ns - result.intended_ns - deadline_ns
        if late_ns > 0:
            missed += 1 + int(late_ns / step_ns)
            deadline_ns += late_ns
        kept += tokens - (late_ns > 0)
        deadline_ns += tokens * step_ns
    return kept / (kept + missed) if kept + missed > 0 else 0.0
