"""Steps of a given kind, from an engine whose loop is turned by hand."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.random_request import random_request
from engine.engine import Engine
from engine.record import StepEntry
from engine.record.step_log import read_step_log
from engine.sampling_params import SamplingParams

_TOKEN_IDS = range(1000, 30_000)


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
        block_size = self._engine.engine_config.block_size
        assert block_size is not None
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        request = random_request(self._rng, num_tokens, params, block_size, token_ids=_TOKEN_IDS)
        self._engine.submit(request)
        self._requests.append(request.request_id)

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

    def logged_steps(self, num_steps: int) -> list[StepEntry]:
        """The newest steps of the log, once they are in the file."""
        time.sleep(1.5)  # the log is written behind
        return read_step_log(self._step_log)[1][-num_steps:]
