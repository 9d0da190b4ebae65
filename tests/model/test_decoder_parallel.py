"""Two tensor-parallel ranks, one thread each over gloo, give the logits of one rank."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

from model.config import ModelError
from model.parallel import HostTensorParallel, TensorParallel, on_its_own
from tests.support.decoders import Stepper, build_decoder
from tests.support.tiny_models import make_tiny_model

NUM_BLOCKS = 64


def run_rank(hf_model: Any, tp: TensorParallel, steps: list[dict[int, list[int]]]) -> list[torch.Tensor]:
    stepper = Stepper(build_decoder(hf_model, num_blocks=NUM_BLOCKS, tp=tp), NUM_BLOCKS)
    return [torch.cat(list(stepper.step(work).values())) for work in steps]


@pytest.mark.parametrize(
    ("architecture", "overrides", "size"),
    [
        ("llama", {"vocab_size": 321}, 2),  # biases everywhere, a vocabulary that does not divide
        ("qwen3", {"num_key_value_heads": 1}, 2),  # fewer KV heads than ranks
        ("qwen2", {}, 4),  # two KV heads for four ranks
        ("smollm", {"num_key_value_heads": 3}, 2),  # KV heads that do not divide
        ("smollm", {"num_key_value_heads": 3, "intermediate_size": 98}, 4),  # nothing divides
    ],
)
def test_ranks_agree_with_one_rank(architecture: str, overrides: dict[str, int], size: int) -> None:
    hf_model, _ = make_tiny_model(architecture, **overrides)
    steps = [{0: list(range(3, 20)), 1: [5, 7, 320]}, {0: [9], 1: [11]}, {0: [1], 1: [2, 3]}]
    steps = [{key: [i % 320 for i in ids] for key, ids in step.items()} for step in steps]
    expected = run_rank(hf_model, TensorParallel(), steps)
    store = dist.HashStore()

    def rank_thread(rank: int) -> list[torch.Tensor]:
        group = dist.ProcessGroupGloo(store, rank, size)
        return run_rank(hf_model, TensorParallel(rank, size, group), steps)

    with ThreadPoolExecutor(size) as pool:
        results = list(pool.map(rank_thread, range(size)))
    for result in results:
        for got, want in zip(result, expected, strict=True):
            torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_ranks_that_share_a_device_agree_with_one_rank() -> None:
    hf_model, _ = make_tiny_model("qwen3", vocab_size=321)
    steps = [{0: list(range(3, 20)), 1: [5, 7, 320]}, {0: [9], 1: [11]}]
    expected = run_rank(hf_model, TensorParallel(), steps)
    store = dist.HashStore()

    def rank_thread(rank: int) -> list[torch.Tensor]:
        group = dist.ProcessGroupGloo(store, rank, 2)
        return run_rank(hf_model, HostTensorParallel(rank, 2, group), steps)

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(rank_thread, range(2)))
    for result in results:
        for got, want in zip(result, expected, strict=True):
            torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_a_rank_on_its_own_waits_for_nobody() -> None:
    """There is no group at all, so that a wait would be an error."""
    hf_model, _ = make_tiny_model("qwen3", vocab_size=321)
    decoder = build_decoder(hf_model, num_blocks=NUM_BLOCKS, tp=TensorParallel(0, 2))
    step = {0: list(range(3, 20))}
    with on_its_own(decoder):
        (logits,) = Stepper(decoder, NUM_BLOCKS).step(step).values()
    assert logits.shape[-1] == 321
    with pytest.raises(ValueError, match="process group"):
        Stepper(decoder, NUM_BLOCKS).step(step)


def test_sums_over_the_host_keep_the_type() -> None:
    """Gloo need not know the type."""
    group = dist.ProcessGroupGloo(dist.HashStore(), 0, 1)
    x = torch.randn(3, 5).bfloat16()
    tp = HostTensorParallel(0, 1, group)
    assert torch.equal(tp.all_reduce(x.clone()), x)


def test_more_ranks_than_heads_are_refused() -> None:
    hf_model, _ = make_tiny_model("llama")
    with pytest.raises(ModelError, match="num_attention_heads = 4 is less than 5"):
        build_decoder(hf_model, tp=TensorParallel(0, 5))
