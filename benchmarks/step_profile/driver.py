"""Steps of a given kind, from an engine whose loop is turned by hand."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.block_manager import hash_blocks
from engine.engine import Engine
from engine.record import RequestRecord
from engine.request import Request
from engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Case:
    num_rows: int
    context: int
    prompt: int  # tokens of a new prompt in each step, 0 for decodes alone

    @classmethod
    def parse(cls, text: str) -> Case:
        match = re.fullmatch(r"(\d+)x(\d+)(?:\+(\d+))?", text)
        if match is None:
            raise SystemExit(f"a case is ROWSxCONTEXT or ROWSxCONTEXT+PROMPT, not {text}")
        return cls(int(match[1]), int(match[2]), int(match[3] or 0))

    def __str__(self) -> str:
        beside = f" and a prompt of {self.prompt}" if self.prompt else ""
        return f"{self.num_rows} decodes at {self.context}{beside}"


class Driver:
    """Runs an engine's loop by hand."""

    def __init__(self, engine: Engine, step_log: Path) -> None:
        self._engine, self._step_log = engine, step_log
        self._rng = np.random.default_rng(0)
        self._requests: list[str] = []

    def submit(self, num_tokens: int, max_tokens: int) -> None:
        config = self._engine.engine_config
        prompt = self._rng.integers(1000, 30_000, num_tokens).astype(np.int32)
        name = f"request-{self._rng.integers(1 << 62)}"
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        assert config.block_size is not None
        hashes = hash_blocks(prompt, config.block_size, name.encode())
        self._engine.submit(Request(name, prompt, params, hashes, RequestRecord(name)))
        self._requests.append(name)

    def run(self, num_steps: int, prompt: int) -> None:
        for _ in range(num_steps):
            if prompt:
                self.submit(prompt, max_tokens=1)
            self.turn()
        torch.cuda.synchronize()

    def turn(self) -> None:
        self._engine._loop.turn()

    def fill(self, case: Case) -> None:
        """Until all of the case's sequences decode."""
        for _ in range(case.num_rows):
            self.submit(case.context, max_tokens=4096)
        self.turn()
        while any(s.num_cached_tokens < case.context for s in self._engine._scheduler._running) or (
            self._engine._scheduler.num_waiting
        ):
            self.turn()

    def empty(self) -> None:
        for name in self._requests:
            self._engine.abort(name)
        self._requests.clear()
        for _ in range(4):
            self.turn()

    def logged_steps(self, num_steps: int) -> list[dict[str, Any]]:
        """The newest steps of the log, once they are in the file."""
        time.sleep(1.5)  # the log is written behind
        rows = [json.loads(line) for line in self._step_log.read_text().splitlines() if line.startswith("{")]
        return [row for row in rows if "schedule_ns" in row][-num_steps:]
