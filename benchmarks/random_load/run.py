"""The order of a run: known prompts alone, the load, the same prompts alone again, the verdicts."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.random_load.client import Answer, Client
from benchmarks.random_load.judge import (
    Reference,
    ask_alone,
    largest_difference,
    largest_gap,
    malformed,
    without_prefixes,
)
from benchmarks.random_load.mix import Limits, RandomMix, RandomRequest, make_prompts

BURST_SHARE = 0.02  # of arrivals
QUIET_SHARE = 0.005  # of arrivals wait until nothing is left to do
MAX_IN_FLIGHT = 400
IDLE_PATIENCE_S = 30.0
MAX_PROBLEMS = 20
CONTROL_TOKENS = 16
READ_BACK_AT_ONCE = 8
MUST_HAPPEN = ("num_preemptions", "prefix_cache_hits", "aborted")

Outcome = tuple[RandomRequest, Answer]


@dataclass(frozen=True, slots=True)
class Options:
    seconds: float
    rate: float
    burst: int
    num_prompts: int
    near_tie: float
    limits: Limits


async def run(base_url: str, options: Options, rng: random.Random) -> dict[str, Any]:
    """The summary. If all is well, its `problems` and what was `not_tried` are empty.

    SIGTERM ends the load early; what was sent by then is judged.
    """
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    client = Client(base_url)
    prompts = make_prompts(rng, options.num_prompts, options.limits)
    _tell(f"{len(prompts)} prompts alone")
    references = await ask_alone(client, prompts, options.limits.max_output)
    before = await _metrics(client)
    mix = RandomMix(rng, prompts, [reference.token_ids for reference in references], options.limits)
    _tell(f"{options.seconds:g} s of load")
    outcomes = await _send_load(client, mix, options, rng, stop)
    problems = await _left_behind(client)
    after = await _metrics(client)
    counts = {name: after[name] - before.get(name, 0) for name in after}
    _tell(f"{len(outcomes)} requests, {counts}, {len(problems)} things left behind")
    judged = Judgement(client, prompts, references, options.near_tie)
    problems += await judged.of(outcomes)
    again = await ask_alone(client, prompts, options.limits.max_output)
    controls = await judged.controls(rng)
    judged.count["alone_again_equal"] = sum(
        a.token_ids == b.token_ids for a, b in zip(references, again, strict=True)
    )
    await client.close()
    return {
        "requests": len(outcomes),
        "aborted_by_client": sum(answer.failure == "aborted" for _, answer in outcomes),
        **counts,
        "prompts": len(prompts),
        **judged.figures(),
        **controls,
        "not_tried": [name for name in MUST_HAPPEN if not counts[name]],
        "problems": problems[:MAX_PROBLEMS],
    }


async def _send_load(
    client: Client, mix: RandomMix, options: Options, rng: random.Random, stop: asyncio.Event
) -> list[Outcome]:
    """Single requests, bursts, the largest first, and at times a pause until all are answered."""
    outcomes: list[Outcome] = []
    in_flight: set[asyncio.Task[None]] = set()

    async def send(request: RandomRequest) -> None:
        outcomes.append((request, await client.complete(request.body, request.leave_after_s)))

    end = time.monotonic() + options.seconds
    num_requests = options.burst
    while time.monotonic() < end and not stop.is_set():
        for _ in range(num_requests):
            task = asyncio.create_task(send(mix.draw()))
            in_flight.add(task)
            task.add_done_callback(in_flight.discard)
        await asyncio.sleep(rng.expovariate(options.rate))
        while len(in_flight) > MAX_IN_FLIGHT:
            await asyncio.wait(in_flight, return_when=asyncio.FIRST_COMPLETED)
        if in_flight and rng.random() < QUIET_SHARE:
            await asyncio.wait(in_flight)
        num_requests = rng.randint(1, options.burst) if rng.random() < BURST_SHARE else 1
    if in_flight:
        await asyncio.wait(in_flight)
    return outcomes


class Judgement:
    """Counts greedy answers that are equal to those alone, that differ by near-ties, and that are wrong."""

    def __init__(
        self, client: Client, prompts: list[list[int]], references: list[Reference], near_tie: float
    ) -> None:
        self._client, self._prompts, self._references = client, prompts, references
        self._near_tie = near_tie
        self.count: Counter[str] = Counter()
        self._gaps: list[float] = []
        self._logprob_difference = 0.0

    async def of(self, outcomes: list[Outcome]) -> list[str]:
        """The problems that were found."""
        problems = []
        different: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        for request, answer in outcomes:
            if answer.failure == "aborted":
                continue
            problem = malformed(request, answer)
            if problem:
                problems.append(f"{problem} ({_shape(request)})")
            elif request.known is not None:
                self._compare(request, request.known, answer, different)
        _tell(f"reading back {sum(map(len, different.values()))} answers that differ")
        several = asyncio.Semaphore(READ_BACK_AT_ONCE)
        found = await asyncio.gather(
            *(
                self._read_back(several, known, token_ids, answers)
                for known, answers in different.items()
                for token_ids in without_prefixes(answers)
            )
        )
        problems += [problem for problem in found if problem]
        if self._logprob_difference > self._near_tie:
            problems.append(f"log-probabilities of equal answers differ by {self._logprob_difference:.3g}")
        return problems

    def _compare(
        self, request: RandomRequest, known: int, answer: Answer, different: dict[int, list[tuple[int, ...]]]
    ) -> None:
        reference = self._references[known]
        for choice in answer.choices.values():
            if choice.token_ids == reference.expected(request.body):
                self.count["equal"] += 1
                difference = largest_difference(reference, choice)
                self._logprob_difference = max(self._logprob_difference, difference)
            else:
                different[known].append(tuple(choice.token_ids))

    async def _read_back(
        self, several: asyncio.Semaphore, known: int, token_ids: Sequence[int], answers: list[tuple[int, ...]]
    ) -> str | None:
        """Judges all of the prompt's different answers that these tokens begin with, or are."""
        prompt = self._prompts[known]
        same = sum(token_ids[: len(other)] == other for other in answers)
        async with several:
            gap = await largest_gap(self._client, prompt, list(token_ids))
        self._gaps.append(gap)
        self.count["near_tie" if gap < self._near_tie else "wrong"] += same
        if gap < self._near_tie:
            return None
        return (
            f"prompt {known} ({len(prompt)} tokens): a token is {gap:.3g} behind the best, in {same} answers"
        )

    async def controls(self, rng: random.Random) -> dict[str, Any]:
        """How many wrong answers this would notice: those of prompts in which some tokens are others."""
        gaps = []
        for prompt, reference in zip(self._prompts, self._references, strict=True):
            if len(prompt) >= 2 * CONTROL_TOKENS:
                at = rng.randrange(len(prompt) - CONTROL_TOKENS)
                other = rng.sample(prompt, CONTROL_TOKENS)
                changed = prompt[:at] + other + prompt[at + CONTROL_TOKENS :]
                gaps.append(await largest_gap(self._client, changed, reference.token_ids))
        noticed = sum(gap >= self._near_tie for gap in gaps)
        return {"controls": len(gaps), "controls_noticed": noticed, "control_gaps": _quantiles(gaps)}

    def figures(self) -> dict[str, Any]:
        names = ("equal", "near_tie", "wrong", "alone_again_equal")
        return {
            **{name: self.count[name] for name in names},
            "near_tie_bound": self._near_tie,
            "read_back": len(self._gaps),
            "gaps": _quantiles(self._gaps),
            "largest_logprob_difference_of_equal": self._logprob_difference,
        }


def _quantiles(gaps: list[float]) -> dict[str, float]:
    """Of the worst token of each answer, in units of log-probability."""
    ordered = sorted(gaps) or [0.0]
    shares = {"least": 0.0, "median": 0.5, "p90": 0.9, "p99": 0.99, "most": 1.0}
    return {name: round(ordered[round(share * (len(ordered) - 1))], 4) for name, share in shares.items()}


def _shape(request: RandomRequest) -> str:
    body = {name: value for name, value in request.body.items() if name != "prompt"}
    return f"{len(request.body['prompt'])} prompt tokens, {body}"


async def _left_behind(client: Client) -> list[str]:
    """Waits for the server to have nothing to do, then looks for what it may have kept."""
    gauges = ("num_requests_running", "num_requests_waiting", "kv_blocks_used")
    deadline = time.monotonic() + IDLE_PATIENCE_S
    while True:
        metrics = await _metrics(client, gauges)
        if not any(metrics.values()) or time.monotonic() > deadline:
            break
        await asyncio.sleep(0.05)
    problems = [f"{name} is {value:g} at the end" for name, value in metrics.items() if value]
    blocks = orjson.loads(await client.call("GET", "/debug/live"))["blocks"]
    if blocks["num_used"]:
        problems.append(f"{blocks['num_used']} blocks of {blocks['total']} are neither free nor cached")
    await client.call("POST", "/reset_prefix_cache")
    cached = orjson.loads(await client.call("GET", "/debug/live"))["blocks"]["num_cached"]
    if cached:
        problems.append(f"{cached} blocks stay cached when all prefixes are forgotten")
    await client.call("GET", "/health")
    return problems


async def _metrics(
    client: Client,
    names: tuple[str, ...] = ("num_preemptions", "prefix_cache_hits", "generation_tokens", "engine_steps"),
) -> dict[str, float]:
    """Of the server's /metrics, and how many requests were `aborted`, if counters are wanted."""
    found: dict[str, float] = dict.fromkeys(names, 0.0)
    text = (await client.call("GET", "/metrics")).decode()
    for family in text_string_to_metric_families(text):
        name = family.name.partition(":")[2]
        for sample in family.samples:
            if name in names and not sample.name.endswith("_created"):
                found[name] += sample.value
            elif sample.labels.get("finished_reason") == "abort" and "num_preemptions" in names:
                found["aborted"] = found.get("aborted", 0.0) + sample.value
    return found


def _tell(text: str) -> None:
    print(f"random load: {text}", file=sys.stderr, flush=True)
