"""A live server's logs: its decisions can be made again, and its steps can be learnt from."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import orjson
import pytest

from engine.record.event_log import read_event_log
from engine.record.step_log import read_step_log
from loadgen.simulator.parity import Parity, check_parity
from server.cli.main import main
from tests.support.case_model import VOCAB_SIZE, save_case_model
from tests.support.process import ServerProcess, serving, wait_until

# Four rows and 24 blocks: requests wait, are chunked and preempted. Two steps in flight, as on a GPU.
FLAGS = (
    *("--dtype", "float32", "--block-size", "16", "--num-kv-blocks", "24", "--max-num-seqs", "4"),
    *("--max-model-len", "384", "--max-num-batched-tokens", "64", "--pipeline-depth", "2"),
)

NUM_REQUESTS = 22


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("live")
    return folder / "steps.jsonl", folder / "events.jsonl"


@pytest.fixture(scope="module")
def server(logs: tuple[Path, Path]) -> Iterator[ServerProcess]:
    model = logs[0].parent / "model"
    save_case_model(model)
    record = ("--step-log", str(logs[0]), "--event-log", str(logs[1]))
    with serving("--model", str(model), "--served-model-name", "tiny", *FLAGS, *record) as process:
        yield process


def ask(server: ServerProcess, number: int) -> None:
    """A request of some kind: some share a prefix, some end by EOS or a stop string, some are left."""
    rng = np.random.default_rng(number)
    prefix = np.random.default_rng(number % 3).integers(3, 250, 48).tolist()
    prompt = prefix + rng.integers(3, 250, int(rng.integers(1, 120))).tolist()
    body = {
        "model": "tiny",
        "prompt": prompt if number % 4 else prompt[48:] or [5],
        "max_tokens": int(rng.integers(1, 80)),
        "n": 2 if number % 7 == 0 else 1,
        "ignore_eos": number % 2 == 0,
        "seed": number,
        "stream": True,
        "stop": ["a"] if number % 5 == 0 else None,
    }
    with httpx.stream("POST", f"{server.base_url}/v1/completions", json=body, timeout=60) as response:
        for count, _ in enumerate(response.iter_lines()):
            if number % 6 == 1 and count > 10:
                return


def wait_until_logged(server: ServerProcess, logs: tuple[Path, Path]) -> None:
    """Lines are written a little later than what they tell of."""
    steps = int(server.metric("engine_steps_total"))
    wait_until(lambda: len(read_step_log(logs[0])[1]) == steps, 10)
    wait_until(lambda: len(read_event_log(logs[1])[1]) == NUM_REQUESTS, 10)


def parity_of(logs: tuple[Path, Path]) -> Parity:
    header, entries = read_step_log(logs[0])
    return check_parity(header, entries, read_event_log(logs[1])[1])


def test_every_decision_is_made_again(server: ServerProcess, logs: tuple[Path, Path]) -> None:
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda number: ask(server, number), range(NUM_REQUESTS)))
    server.wait_until_idle(20)
    wait_until_logged(server, logs)
    assert server.metric("num_preemptions_total") > 0
    assert server.metric("prefix_cache_hits_total") > 0
    parity = parity_of(logs)
    assert parity.num_steps > 100
    assert parity.first_difference is None
    assert parity.share == 1.0


def test_a_server_is_calibrated(server: ServerProcess, logs: tuple[Path, Path], tmp_path: Path) -> None:
    """What is learnt of a few seconds says something of every kind of step, and can be simulated with."""
    out, phases = tmp_path / "profile.json", tmp_path / "phases.json"
    read = ["--step-log", str(logs[0]), "--event-log", str(logs[1])]
    command = ["calibrate", *read, "--phases", str(phases), "-o", str(out)]
    live = ["--base-url", server.base_url, "--seconds", "2", "--vocab-size", str(VOCAB_SIZE)]
    assert main([*command, *live]) == 0
    profile = orjson.loads(out.read_bytes())
    assert profile["fit"].keys() >= {"decode_only", "with_chunks"}
    assert profile["fit"]["decode_only"]["max_decode_rows"] == 4
    assert profile["limits"]["num_blocks"] == 24
    assert any(profile["front_end"]["delivery"].values())  # clients and logs were brought together
    assert main([*command[:-1], str(tmp_path / "again.json"), "--fit-only"]) == 0
    assert (tmp_path / "again.json").read_bytes() == out.read_bytes()
    trace = tmp_path / "trace.csv"
    rows = "".join(f"2023-11-16 18:00:{second:02}.0000000,60,20\n" for second in range(30))
    trace.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    assert main(["simulate", str(trace), "--profile", str(out)]) == 0


def test_a_wrong_log_shows(server: ServerProcess, logs: tuple[Path, Path]) -> None:
    """Parity is no formality: a prompt that is told to be one block longer than it was changes the steps."""
    header, entries = read_step_log(logs[0])
    _, records = read_event_log(logs[1])
    for record in records[::10]:
        record.num_prompt_tokens += 16
        record.block_ids.insert(0, 1)
    parity = check_parity(header, entries, records)
    assert parity.share < 0.99 and parity.first_difference is not None
