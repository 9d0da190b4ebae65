"""Two ranks give the text of one, on two GPUs and on one that they share."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.llm import LLM
from engine.sampling_params import SamplingParams
from tests.support.tiny_models import save_tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

PROMPTS = [[5, 200, 31], list(range(40, 140)), [9] * 17, [77]]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("model")
    shape = {
        "hidden_size": 256,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
    }
    save_tiny_model(folder, "qwen3", with_tokenizer=True, **shape)
    return folder


def texts(model: Path, **options: Any) -> list[list[int]]:
    llm = LLM(str(model), **{"dtype": "float32", "num_kv_blocks": 32, "max_num_seqs": 8} | options)
    tokens = [output["token_ids"] for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]
    llm.close()
    return tokens


def texts_elsewhere(model: Path, **options: Any) -> list[list[int]]:
    """In a new process: only the first engine of a process has peer memory."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(texts, model, **options).result(timeout=100)


@pytest.fixture(scope="module")
def expected(model: Path) -> list[list[int]]:
    return texts(model)


needs_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@needs_two_gpus
def test_peer_memory_gives_the_text_of_nccl(model: Path) -> None:
    """The small-batch step too, which fp32 has not: two numbers have one sum, however they come together."""
    options = {"tensor_parallel_size": 2, "dtype": "bfloat16"}
    of_nccl = texts(model, all_reduce="nccl", **options)
    assert texts_elsewhere(model, all_reduce="one-shot", **options) == of_nccl


@needs_two_gpus
@pytest.mark.parametrize("run", [texts, texts_elsewhere])
def test_two_gpus_and_the_end_of_their_ranks(model: Path, expected: list[list[int]], run: Any) -> None:
    """By NCCL and by peer memory. Ends in time too, though graphs hold NCCL's kernels: `close` would hang."""
    assert run(model, tensor_parallel_size=2) == expected


def test_two_ranks_on_one_gpu(
    model: Path, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # rank 0 says where the others go
    assert texts(model, tensor_parallel_size=2) == expected
