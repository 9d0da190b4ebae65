"""Streams completions, all requests at once, and what their times come to."""

from __future__ import annotations

import asyncio
from statistics import median
from typing import Any

from benchmarks.completion_streams import CompletionStreams
from loadgen.record import RequestResult
from loadgen.schedule import NS_PER_S

TokenTimes = list[tuple[int, int]]
"""Of one sequence: (when, how many tokens came then), in nanoseconds of the monotonic clock."""


def stream_all(base_url: str, bodies: list[dict[str, Any]]) -> list[RequestResult]:
    """Results in the order of the bodies. Raises RuntimeError if a request fails."""
    results = asyncio.run(_stream_all(base_url, bodies))
    for result in results:
        if result.failure:
            raise RuntimeError(f"{base_url}: request {result.index}: {result.failure} {result.detail}")
    return results


async def _stream_all(base_url: str, bodies: list[dict[str, Any]]) -> list[RequestResult]:
    async with CompletionStreams(base_url, dict(enumerate(bodies))) as streams:
        return await asyncio.gather(*(streams.send(i) for i in range(len(bodies))))


def token_times(result: RequestResult) -> TokenTimes:
    return list(zip(result.chunk_ns, result.chunk_tokens, strict=True))


def decode_rate(sequences: list[TokenTimes]) -> float:
    """Tokens per second of all sequences together, while every one of them decodes.

    The window goes from the last first token to the first last one. Each sequence is taken from its own first
    chunk in there to its own last one, since the tokens of one step come one after the other.
    """
    begin = max(times[0][0] for times in sequences)
    end = min(times[-1][0] for times in sequences)
    rate = 0.0
    for times in sequences:
        within = [(at, tokens) for at, tokens in times if begin <= at <= end]
        if len(within) < 2:
            raise RuntimeError("the sequences hardly overlap: ask for more tokens")
        tokens = sum(tokens for _, tokens in within[1:])
        rate += tokens * NS_PER_S / (within[-1][0] - within[0][0])
    return rate


def ttft_s(result: RequestResult) -> float:
    ttft_ns = result.since_sent(result.first_token_ns)
    assert ttft_ns is not None
    return ttft_ns / NS_PER_S


def median_ttft_s(results: list[RequestResult]) -> float:
    return median(map(ttft_s, results))


def seconds_to_last(event: str, results: list[RequestResult]) -> float:
    """From the first request sent to the latest `event`, "first_token_ns" or "last_token_ns", of all."""
    begin = min(result.sent_ns or 0 for result in results)
    latest: int = max(getattr(result, event) for result in results)
    return (latest - begin) / NS_PER_S
