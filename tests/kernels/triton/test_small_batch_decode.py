"""The fused small-batch decode step against the generic decoder: same logits, same K and V in the cache."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist

from kernels.attention.interface import DecodeBatch
from kernels.triton.mailboxes import EMPTY, SLOTS, Mailboxes
from kernels.triton.small_batch.exchange_norm import exchange_norm
from kernels.triton.small_batch.tiles import AttentionTile, LinearTile, StepTiles
from model import small_batch_step
from model.config import ModelConfig
from model.decoder import Decoder
from model.parallel import TensorParallel
from model.small_batch import SmallBatchDecode
from tests.support.decoders import Stepper, build_decoder
from tests.support.tiny_models import make_tiny_model

BLOCK_SIZE, NUM_BLOCKS, MAX_ROWS = 16, 12, 4
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 64, "intermediate_size": 128},
    "llama3": {"head_dim": 64, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2},
    "qwen2": {
        "hidden_size": 192,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "intermediate_size": 64,
    },
}
GEMV = LinearTile("gemv", block_n=64, block_k=64, num_warps=4, trigger="early")
SKINNY = LinearTile("skinny", block_n=64, block_k=64, num_warps=4, num_stages=3)
SPLIT = replace(SKINNY, block_n=128, splits=2)  # fits where the inner dimension is a multiple of 128
ONE_ROW = StepTiles(GEMV, AttentionTile("single_tile", 16, 3, combine="projection"), GEMV, GEMV, GEMV, GEMV)
MANY_ROWS = StepTiles(SKINNY, AttentionTile("dot", 16, 2), SPLIT, SKINNY, SKINNY, SKINNY)
MIXED = StepTiles(GEMV, AttentionTile("dot", 16, 1), SPLIT, GEMV, GEMV, SKINNY)  # gemv after split parts


class PagedCaches:
    """What `SmallBatchDecode` needs of a GPU attention backend: its caches, block by block."""

    def __init__(self, decoder: Decoder, num_blocks: int = NUM_BLOCKS) -> None:
        shape = decoder.attention.shape
        by_block = (shape.num_kv_heads, num_blocks, BLOCK_SIZE, shape.head_dim)
        spare = (1, BLOCK_SIZE, shape.num_kv_heads, shape.head_dim)
        self.shape = shape
        self.caches = [
            tuple(
                torch.cat((cache.view(by_block).permute(1, 2, 0, 3), cache.new_zeros(spare))).contiguous()
                for cache in (layer.keys, layer.values)
            )
            for layer in decoder.attention.caches
        ]


in_the_interpreter = pytest.mark.skipif(torch.cuda.is_available(), reason="CPU tensors, for the interpreter")


@in_the_interpreter
@pytest.mark.parametrize(
    ("architecture", "lens", "num_padding", "tiles"),
    [
        ("qwen3", [21], 0, ONE_ROW),
        ("qwen3", [17, 3, 32], 1, MANY_ROWS),
        ("llama3", [5, 18], 0, MIXED),
        ("qwen2", [30], 1, replace(ONE_ROW, attention=AttentionTile("dot", 16, 2))),
    ],
    ids=["one row", "many rows", "mixed", "bias"],
)
def test_step_equals_the_generic_decoder(
    architecture: str, lens: list[int], num_padding: int, tiles: StepTiles
) -> None:
    """Prompts of lens[i] - 1 tokens by the generic decoder, then one step by each way, padding rows last."""
    model, _ = make_tiny_model(architecture, **SHAPES[architecture])
    decoder = build_decoder(model, block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS)
    stepper = Stepper(decoder, NUM_BLOCKS)
    generator = torch.Generator().manual_seed(5)
    ids = [torch.randint(3, 320, (length,), generator=generator).tolist() for length in lens]
    for key, tokens in enumerate(ids):
        stepper.step({key: tokens[:-1]})
    paged = PagedCaches(decoder)
    expected = torch.cat(list(stepper.step({key: [tokens[-1]] for key, tokens in enumerate(ids)}).values()))

    decoder.attention = paged
    logits = torch.full((len(lens) + num_padding, 320), float("nan"))
    SmallBatchDecode(decoder).run(
        torch.tensor([tokens[-1] for tokens in ids] + [0] * num_padding),
        torch.tensor([length - 1 for length in lens] + [0] * num_padding),
        decode_batch(stepper, lens, num_padding),
        logits,
        tiles,
    )
    torch.testing.assert_close(logits[: len(lens)], expected, rtol=1e-4, atol=1e-4)
    assert_same_caches(paged, stepper)


T = TypeVar("T")


class TurnTakingRank(TensorParallel):
    """A rank in a thread; while it computes, it keeps Triton's interpreter for itself."""

    interpreter = threading.Lock()

    def all_reduce(self, x: torch.Tensor, slot: int | None = None) -> torch.Tensor:
        return self._together(super().all_reduce, x)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return self._together(super().all_gather, x)

    def minimum(self, value: int) -> int:
        return self._together(super().minimum, value)

    def _together(self, collective: Callable[[T], T], x: T) -> T:
        self.interpreter.release()
        try:
            return collective(x)
        finally:
            self.interpreter.acquire()


class PeerMemory:
    """What a rank needs of `OneShotAllReduce`; all ranks are in this process."""

    def __init__(self, rank: int, boxes: list[torch.Tensor]) -> None:
        self._rank, self._boxes = rank, boxes

    def takes(self, x: torch.Tensor) -> bool:
        return False

    def shared_int32(self, *shape: int, fill: int) -> tuple[torch.Tensor, torch.Tensor]:
        own = self._boxes[self._rank]
        assert own.shape == shape and fill == EMPTY.value
        return own, torch.tensor([box.data_ptr() for box in self._boxes])


def exchange_in_turns(ranks: list[TurnTakingRank]) -> Callable[..., None]:
    """Nobody else runs while a kernel waits for the others' parts: those are there before it begins."""

    def exchange(parts: torch.Tensor, mailboxes: Mailboxes, slot: int, *rest: Any) -> None:
        every = ranks[mailboxes.rank].all_gather(parts.sum(0)).chunk(len(ranks), dim=1)
        for rank, part in enumerate(every):
            if rank != mailboxes.rank:
                mailboxes.own[slot, rank, : len(part)] = (part + 0.0).view(torch.int32)
        exchange_norm(parts, mailboxes, slot, *rest)

    return exchange


@in_the_interpreter
@pytest.mark.parametrize(
    ("tiles", "has_mailboxes"),
    [(MANY_ROWS, False), (ONE_ROW, True), (MANY_ROWS, True)],
    ids=["all-reduce", "gemv, mailboxes", "split, mailboxes"],
)
def test_two_ranks_equal_one(tiles: StepTiles, has_mailboxes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The residual is added once, and every rank has all logits."""
    shapes = {"head_dim": 64, "intermediate_size": 256, "num_attention_heads": 4, "vocab_size": 321}
    model, _ = make_tiny_model("qwen3", **shapes)
    store = dist.HashStore()
    box_shape = (SLOTS, 2, MAX_ROWS, model.config.hidden_size)
    boxes = [torch.full(box_shape, EMPTY.value, dtype=torch.int32) for _ in range(2)]
    ranks: list[Any] = [None, None]
    monkeypatch.setattr(small_batch_step, "exchange_norm", exchange_in_turns(ranks))

    def run(tp: TensorParallel) -> torch.Tensor:
        decoder = build_decoder(model, block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS, tp=tp)
        stepper = Stepper(decoder, NUM_BLOCKS)
        stepper.step({0: list(range(5, 26))})
        decoder.attention = PagedCaches(decoder)
        stepper.reserve(0, 22)
        logits = torch.full((1, 321), float("nan"))
        batch = decode_batch(stepper, [22], 0)
        SmallBatchDecode(decoder, MAX_ROWS).run(torch.tensor([7]), torch.tensor([21]), batch, logits, tiles)
        return logits

    def run_rank(rank: int) -> torch.Tensor:
        peers: Any = PeerMemory(rank, boxes) if has_mailboxes else None
        ranks[rank] = TurnTakingRank(rank, 2, dist.ProcessGroupGloo(store, rank, 2), peers)
        with TurnTakingRank.interpreter:
            return run(ranks[rank])

    expected = run(TensorParallel())
    with ThreadPoolExecutor(2) as pool:
        for logits in pool.map(run_rank, range(2)):
            torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    # The rank that is second sends its parts to one that has been given them.
    assert any(bool((box != EMPTY.value).any()) for box in boxes) == has_mailboxes


def decode_batch(stepper: Stepper, lens: list[int], num_padding: int) -> DecodeBatch:
    tables = torch.zeros(len(lens) + num_padding, 3, dtype=torch.int32)
    slots = torch.full((len(tables),), NUM_BLOCKS * BLOCK_SIZE)
    for row, length in enumerate(lens):
        table = torch.tensor(stepper.tables[row], dtype=torch.int32)
        tables[row, : len(table)] = table
        slots[row] = table[(length - 1) // BLOCK_SIZE] * BLOCK_SIZE + (length - 1) % BLOCK_SIZE
    context_lens = torch.tensor(lens + [0] * num_padding, dtype=torch.int32)
    device = stepper.decoder.attention.shape.device
    return DecodeBatch(tables.to(device), context_lens.to(device), slots.to(device), max_context=48)


def assert_same_caches(paged: PagedCaches, stepper: Stepper) -> None:
    """The generic decoder, whose caches are still the layers' own, wrote what the kernels wrote."""
    generic = stepper.decoder.model.layers[0].self_attn.attention
    for (keys, values), layer in zip(paged.caches, generic.caches, strict=True):
        for ours, theirs in ((keys, layer.keys), (values, layer.values)):
            flat = ours[:NUM_BLOCKS].flatten(0, 1).transpose(0, 1)
            torch.testing.assert_close(flat, theirs, rtol=1e-4, atol=1e-4)


FULL_WIDTH: dict[str, dict[str, Any]] = {  # the public shapes, two layers deep
    "qwen3": {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12288,
    },
    "qwen2": {
        "hidden_size": 3584,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18944,
    },
    "llama3": {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
    },
}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("architecture", FULL_WIDTH)
@pytest.mark.parametrize("num_rows", [1, 2, 4, 16])
def test_full_width_in_bf16_is_near_to_fp32_and_repeats(architecture: str, num_rows: int) -> None:
    """The tiles that serve; prompts by the generic decoder in bf16, exact logits by transformers in fp32."""
    cuda, num_blocks = torch.device("cuda"), 3 * num_rows
    model, _ = make_tiny_model(architecture, **FULL_WIDTH[architecture], initializer_range=0.02)
    model = model.to(cuda)
    lens = [20 + (7 * row) % 29 for row in range(num_rows)]
    ids = [torch.randint(3, 320, (1, length), device=cuda) for length in lens]
    with torch.inference_mode():
        exact = torch.stack([model(row).logits[0, -1].float() for row in ids])
    decoder = build_decoder(
        model, block_size=BLOCK_SIZE, num_blocks=num_blocks, dtype=torch.bfloat16, device=cuda
    )
    stepper = Stepper(decoder, num_blocks)
    for key, row in enumerate(ids):
        stepper.step({key: row[0, :-1].tolist()})
        stepper.reserve(key, lens[key])
    decoder.attention = PagedCaches(decoder, num_blocks)
    step, logits = SmallBatchDecode(decoder), torch.empty(2, num_rows, 320, device=cuda)
    batch = decode_batch(stepper, lens, 0)
    for out in logits:
        step.run(torch.cat([row[0, -1:] for row in ids]), batch.context_lens.long() - 1, batch, out)
    assert torch.equal(logits[0], logits[1])
    error = (logits[0] - exact).norm(dim=-1) / exact.norm(dim=-1)
    assert error.max() < 3e-2


QWEN3_06B = ModelConfig(
    architecture="Qwen3ForCausalLM",
    vocab_size=151936,
    hidden_size=1024,
    intermediate_size=3072,
    num_layers=28,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    max_position_embeddings=40960,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    qk_norm=True,
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"num_heads": 28, "num_kv_heads": 4, "hidden_size": 3584, "intermediate_size": 18944}, True),
        ({"head_dim": 96}, False),
        ({"num_heads": 32, "num_kv_heads": 2}, False),
        ({"hidden_size": 1000}, False),
        ({"sliding_window": 4096}, False),
        ({"o_bias": True}, False),
        ({"mlp_bias": True}, False),
    ],
)
def test_supports(changes: dict[str, Any], expected: bool) -> None:
    config = replace(QWEN3_06B, **changes)
    assert SmallBatchDecode.supports(config, torch.bfloat16, TensorParallel()) is expected
    assert not SmallBatchDecode.supports(config, torch.float32, TensorParallel())


def test_a_model_that_is_not_covered_is_refused() -> None:
    model, _ = make_tiny_model("mistral-window")
    with pytest.raises(ValueError, match="do not cover this MistralForCausalLM"):
        SmallBatchDecode(build_decoder(model))


def test_more_rows_than_there_are_buffers_for_are_refused() -> None:
    step = SmallBatchDecode(build_decoder(make_tiny_model("qwen3", **SHAPES["qwen3"])[0]), max_rows=2)
    assert step.takes(2, 100) and not step.takes(3, 100)
    rows = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match="a step of 3 rows, where buffers are made for 2"):
        step.run(rows, rows, DecodeBatch(rows[:, None], rows, rows, 100), torch.zeros(3, 320))
