"""What is measured. Systems that are compared take turns, run by run, so that noise hits them alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from benchmarks.cpu.client import (
    TokenTimes,
    decode_rate,
    median_ttft_s,
    seconds_to_last,
    stream_all,
    token_times,
    ttft_s,
)
from benchmarks.cpu.in_process import Generate, auto_dtype, in_worker, with_llm, with_transformers
from benchmarks.cpu.llama_server import llama_server
from benchmarks.cpu.prompts import Prompts, completion, exact_completion
from benchmarks.cpu.results import OCTAVO, Results
from benchmarks.server_process import RunningServer, octavo
from loadgen.record import RequestResult

RATE = "tokens/s"
WARM_UP_TOKENS = 4
CLIENTS = 8
CLIENT_WORDS, CLIENT_TOKENS = 60, 64
PREFIX_TOKENS, OWN_TOKENS = 1000, 16
PREFILL_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Settings:
    repeats: int
    budget_s: float  # of decode
    batches: list[int]
    prompt_tokens: int  # of decode; with half the output it is the mean context
    output_tokens: int
    llama_venv: Path | None


@dataclass(frozen=True, slots=True)
class Bench:
    """What every part works with."""

    settings: Settings
    results: Results
    prompts: Prompts


Part = Callable[[Bench, RunningServer], None]


def measure_start(bench: Bench) -> None:
    for _ in range(bench.settings.repeats):
        with octavo() as server:
            bench.results.add("`octavo serve` to /health", "s", server.ready_s)


def measure_decode(bench: Bench, server: RunningServer) -> None:
    """Greedy through the daemon, with the engine alone and with transformers.

    Each batch's prompts stay the same, so that a prefix cache keeps its owner's prefill out of the way.
    """
    settings = bench.settings
    deadline = time.monotonic() + settings.budget_s
    prompts = {batch: bench.prompts.token_ids(batch, settings.prompt_tokens) for batch in settings.batches}
    with ExitStack() as stack:
        systems: dict[str, Generate] = {
            **{system: through(daemon) for system, daemon in _daemons(stack, server).items()},
            "Octavo's `LLM`, no HTTP": stack.enter_context(in_worker(with_llm)),
            "transformers `generate`": stack.enter_context(in_worker(with_transformers)),
        }
        for batch, system in product(settings.batches, systems):
            systems[system](prompts[batch], WARM_UP_TOKENS)
        for repeat in range(settings.repeats):
            if repeat and time.monotonic() > deadline:
                bench.results.notes.append(f"decode: {repeat} of {settings.repeats} runs of each in its time")
                break
            for batch, system in product(settings.batches, systems):
                rate = decode_rate(systems[system](prompts[batch], settings.output_tokens))
                bench.results.add(f"decode, {batch} at once", RATE, rate, system)


def measure_drawing(bench: Bench, server: RunningServer) -> None:
    """What it costs to draw tokens instead of taking the best, in the largest batch."""
    batch = max(bench.settings.batches)
    systems = {
        OCTAVO: through(server),
        "Octavo, temperature 0.7": through(server, temperature=0.7),
        "Octavo, the same and top_p 0.9": through(server, temperature=0.7, top_p=0.9),
    }
    prompts = bench.prompts.token_ids(batch, bench.settings.prompt_tokens)
    systems[OCTAVO](prompts, WARM_UP_TOKENS)
    for _ in range(bench.settings.repeats):
        for system, generate in systems.items():
            rate = decode_rate(generate(prompts, bench.settings.output_tokens))
            bench.results.add(f"drawing, {batch} at once", RATE, rate, system)


def measure_prefill(bench: Bench, server: RunningServer) -> None:
    """One prompt alone, and eight that wait for each other."""
    _first_tokens(server, bench.prompts.token_ids(1, PREFILL_TOKENS))
    for _ in range(bench.settings.repeats):
        for count in (1, 8):
            answers = _first_tokens(server, bench.prompts.token_ids(count, PREFILL_TOKENS))
            rate = count * PREFILL_TOKENS / seconds_to_last("first_token_ns", answers)
            bench.results.add(f"prefill, {count} x {PREFILL_TOKENS} tokens", RATE, rate)


def measure_prefix(bench: Bench, server: RunningServer) -> None:
    """Two prompts, one after the other, with the same first 1,000 tokens."""
    for _ in range(bench.settings.repeats):
        (prefix,) = bench.prompts.token_ids(1, PREFIX_TOKENS)
        for name in ("first", "second"):
            (own,) = bench.prompts.token_ids(1, OWN_TOKENS)
            (answer,) = _first_tokens(server, [prefix + own])
            what = f"{name} prompt with a prefix of {PREFIX_TOKENS}"
            bench.results.add(f"{what}: TTFT", "ms", ttft_s(answer) * 1e3)
            bench.results.add(f"{what}: cached", "tokens", answer.cached_tokens or 0)


def measure_clients(bench: Bench, server: RunningServer) -> None:
    """Streaming clients that come at once, against llama_cpp.server on the same file."""
    with ExitStack() as stack:
        systems = _daemons(stack, server)
        if bench.settings.llama_venv is None:
            bench.results.notes.append("llama_cpp.server was not measured: no --llama-venv")
        else:
            systems["llama_cpp.server"] = stack.enter_context(llama_server(bench.settings.llama_venv))
        for peer in systems.values():
            _client_streams(peer, bench.prompts, count=1)
        for _ in range(bench.settings.repeats):
            for system, peer in systems.items():
                answers = _client_streams(peer, bench.prompts, CLIENTS)
                rate = sum(map(_num_generated, answers)) / seconds_to_last("last_token_ns", answers)
                bench.results.add(f"{CLIENTS} clients at once", RATE, rate, system)
                ttft_ms = median_ttft_s(answers) * 1e3
                bench.results.add(f"{CLIENTS} clients at once: median TTFT", "ms", ttft_ms, system)


def _daemons(stack: ExitStack, server: RunningServer) -> dict[str, RunningServer]:
    """The daemon as it comes, and where it computes in fp32, one with halves for weights."""
    daemons = {OCTAVO: server}
    if auto_dtype().itemsize == 4:
        daemons["Octavo, --weight-dtype float16"] = stack.enter_context(octavo("--weight-dtype", "float16"))
    return daemons


def add_peak_memory(bench: Bench, server: RunningServer) -> None:
    bench.results.add("peak resident memory after all of this", "MB", server.peak_rss_bytes() / 1e6)


def through(server: RunningServer, **fields: float) -> Generate:
    def generate(prompts: list[list[int]], num_tokens: int) -> list[TokenTimes]:
        bodies = [exact_completion(server.model, prompt, num_tokens, **fields) for prompt in prompts]
        return [token_times(answer) for answer in stream_all(server.base_url, bodies)]

    return generate


def _first_tokens(server: RunningServer, prompts: list[list[int]]) -> list[RequestResult]:
    return stream_all(server.base_url, [exact_completion(server.model, prompt, 1) for prompt in prompts])


def _client_streams(server: RunningServer, prompts: Prompts, count: int) -> list[RequestResult]:
    """Plain text in, and no fields of Octavo's own: what every server of this API understands."""
    texts = prompts.texts(count, CLIENT_WORDS)
    return stream_all(
        server.base_url, [completion(server.model, text, max_tokens=CLIENT_TOKENS) for text in texts]
    )


def _num_generated(answer: RequestResult) -> int:
    """Chunks may hold several tokens, or none; an answer that ran to its limit has them all."""
    return answer.output_tokens_asked if answer.finish_reason == "length" else answer.output_tokens
