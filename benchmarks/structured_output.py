"""Structured output against the real process: is it always valid, and what does it cost?

    python -m benchmarks.structured_output valid --generations 200
    python -m benchmarks.structured_output cost --concurrency 16

Both start `octavo serve` themselves, with flags that they do not know. `valid` draws at temperature 1 over
the twenty schemas of `tests.support.schemas` and checks every answer with jsonschema. `cost` alternates
rounds of the same number of tokens with and without a schema, so that a busy machine slows both; CPU time of
the server's process tells more than the clock there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import jsonschema
import psutil

from benchmarks.server_process import RunningServer, octavo
from tests.support.schemas import SCHEMAS, SMALL, array, record, text

# Never complete within a measured answer, so that all answers are of one length.
ENDLESS = array(record(name=text(20), colour={"enum": ["red", "green", "blue"]}, size=SMALL), 500, least=400)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=["valid", "cost"])
    parser.add_argument("--generations", type=int, default=200, help="of `valid`, over all schemas")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5, help="of `cost`, each with and without")
    parser.add_argument("--tokens", type=int, default=96, help="of `cost`, in each answer")
    arguments, flags = parser.parse_known_args()
    with octavo(*flags) as server, ThreadPoolExecutor(arguments.concurrency) as threads:
        if arguments.mode == "valid":
            return check_validity(server, threads, arguments.generations)
        load = Load(arguments.concurrency, arguments.tokens)
        return measure_cost(server, threads, load, arguments.rounds)


def check_validity(server: RunningServer, threads: ThreadPoolExecutor, num_generations: int) -> int:
    """Prints every answer that is not valid; the exit code says whether there was one."""
    names = [list(SCHEMAS)[i % len(SCHEMAS)] for i in range(num_generations)]
    begin = time.monotonic()
    complaints = threads.map(partial(complaint, server), names, range(num_generations))
    num_wrong = 0
    for done, (name, words) in enumerate(zip(names, complaints, strict=True), start=1):
        if words:
            num_wrong += 1
            print(f"{name}: {words}", flush=True)
        if done % 20 == 0:
            print(f"{done - num_wrong} of {done} valid, {time.monotonic() - begin:.0f} s", flush=True)
    return 1 if num_wrong else 0


def complaint(server: RunningServer, name: str, seed: int) -> str:
    """What is wrong with one answer; empty if nothing is."""
    schema = SCHEMAS[name]
    answer = ask(
        server,
        messages=[{"role": "user", "content": f"Make up an example of: {name}. Answer in JSON."}],
        response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
        temperature=1.0,
        seed=seed,
        max_tokens=500,
    )
    choice = answer["choices"][0]
    content = choice["message"]["content"]
    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(content))
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{type(error).__name__} ({choice['finish_reason']}): {content!r}"
    return "" if choice["finish_reason"] == "stop" else f"ends by {choice['finish_reason']}: {content!r}"


@dataclass(frozen=True)
class Load:
    concurrency: int
    num_tokens: int  # of each answer


@dataclass
class Round:
    """What one round of answers took."""

    wall_s: float
    cpu_s: float
    num_tokens: int


def measure_cost(server: RunningServer, threads: ThreadPoolExecutor, load: Load, num_rounds: int) -> int:
    kinds: dict[str, dict[str, Any]] = {
        "free": {"ignore_eos": True},
        "constrained": {"structured_outputs": {"json": ENDLESS}},
    }
    rounds: dict[str, list[Round]] = {kind: [] for kind in kinds}
    for i in range(num_rounds + 1):
        for kind, fields in kinds.items():
            result = measure_round(server, threads, load, seed=i, fields=fields)
            if i:  # the first one warms up
                rounds[kind].append(result)
    print(f"{load}, temperature 1, median of {num_rounds}")
    for kind, results in rounds.items():
        speed = statistics.median(r.num_tokens / r.wall_s for r in results)
        cpu_ms = statistics.median(r.cpu_s / r.num_tokens for r in results) * 1000
        print(f"  {kind:12} {speed:8.1f} tokens/s {cpu_ms:8.3f} ms of CPU a token")
    pairs = list(zip(rounds["constrained"], rounds["free"], strict=True))
    print(f"  wall time {ratio([(c.wall_s, f.wall_s) for c, f in pairs]):.3f} of the free one's,", end="")
    print(f" CPU time {ratio([(c.cpu_s, f.cpu_s) for c, f in pairs]):.3f}")
    return 0


def ratio(pairs: list[tuple[float, float]]) -> float:
    """Of rounds that ran one after the other: what slows both cancels out."""
    return statistics.median(constrained / free for constrained, free in pairs)


def measure_round(
    server: RunningServer, threads: ThreadPoolExecutor, load: Load, *, seed: int, fields: dict[str, Any]
) -> Round:
    process = psutil.Process(server.pid)
    cpu, begin = process.cpu_times(), time.monotonic()
    answers = threads.map(
        lambda j: ask(
            server,
            messages=[{"role": "user", "content": f"List some toys, beginning with number {j}, in JSON."}],
            temperature=1.0,
            seed=seed,
            max_tokens=load.num_tokens,
            **fields,
        ),
        range(load.concurrency),
    )
    num_tokens = sum(answer["usage"]["completion_tokens"] for answer in answers)
    wall_s, after = time.monotonic() - begin, process.cpu_times()
    assert num_tokens == load.concurrency * load.num_tokens, "an answer ended early"
    return Round(wall_s, after.user + after.system - cpu.user - cpu.system, num_tokens)


def ask(server: RunningServer, **body: Any) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{server.base_url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=3600) as answer:
        result: dict[str, Any] = json.load(answer)
    return result


if __name__ == "__main__":
    sys.exit(main())
