"""Generation without a server: Octavo's own `LLM`, and transformers on the same weights and dtype.

Each runs in a worker process, so that the two and the daemon can take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from benchmarks.cpu.client import TokenTimes

if TYPE_CHECKING:
    import torch

    from engine.llm import LLM

Generate = Callable[[list[list[int]], int], list[TokenTimes]]
"""(prompts, tokens to generate for each) to the times of the tokens, greedy and with no early end."""


@contextmanager
def in_worker(generate: Generate) -> Iterator[Generate]:
    """`generate` in a process that stays, so that its model is loaded once."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as worker:
        yield lambda prompts, num_tokens: worker.submit(generate, prompts, num_tokens).result()


def with_llm(prompts: list[list[int]], num_tokens: int) -> list[TokenTimes]:
    from engine.sampling_params import SamplingParams

    llm, times = _llm()
    times.clear()
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    llm.generate(prompts, params, use_tqdm=False)
    return list(times.values())


def with_transformers(prompts: list[list[int]], num_tokens: int) -> list[TokenTimes]:
    """Prompts must be of one length. The times are those of the steps, which all sequences share."""
    import torch

    times: TokenTimes = []

    def note_time(token_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        times.append((time.monotonic_ns(), 1))
        return torch.zeros(len(token_ids), dtype=torch.bool)

    with torch.inference_mode():
        _transformers_model().generate(
            torch.tensor(prompts),
            attention_mask=torch.ones(len(prompts), len(prompts[0]), dtype=torch.int64),
            min_new_tokens=num_tokens,
            max_new_tokens=num_tokens,
            stopping_criteria=[note_time],
        )
    return [times] * len(prompts)


@lru_cache(maxsize=1)
def _llm() -> tuple[LLM, dict[int, TokenTimes]]:
    """The engine, and a dictionary by sequence that it fills with token times."""
    from engine.llm import LLM
    from engine.request import StepOutput

    llm = LLM()
    times: dict[int, TokenTimes] = {}

    def note_times(output: StepOutput) -> None:
        for sequence_id in output.sequence_ids:
            times.setdefault(sequence_id, []).append((output.time_ns, 1))

    llm.engine.subscribe(note_times, lambda error: None)
    return llm, times


@lru_cache(maxsize=1)
def _transformers_model() -> Any:
    from tests.support.hf_oracle import hf_model_from_embedded

    return hf_model_from_embedded().to(auto_dtype())


def auto_dtype() -> torch.dtype:
    """What `--dtype auto` is on this machine."""
    import torch

    from model.config_reader import read_model_config
    from model.loading import resolve_dtype
    from model.source import resolve_model

    return resolve_dtype("auto", read_model_config(resolve_model(None)), torch.device("cpu"))
