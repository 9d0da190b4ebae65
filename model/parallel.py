"""Tensor-parallel layers: each rank holds a part of every weight and knows where checkpoints keep it.

Column-parallel layers split the output rows and need no communication, row-parallel layers split the inputs
and sum over the ranks, vocabulary layers split the token ids. A world of one rank is the plain case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from kernels.fused import runs_fused
from kernels.linear import add_linear, linear
from model.config import ModelError
from model.exchange import ExchangeAllReduce
from model.one_shot import OneShotAllReduce
from model.partition import HeadParts, Part


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """This rank's place among those that share each layer, and how they talk."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None  # None: the default group; ranks that are threads have one each
    one_shot: OneShotAllReduce | None = None  # for small tensors, where there is one
    exchange: ExchangeAllReduce | None = None  # for sums that alternate

    def all_reduce(self, x: torch.Tensor, slot: int | None = None) -> torch.Tensor:
        """The sum of every rank's `x`, perhaps in place.

        `slot` is 0 or 1 for one of two sums that a step makes in turns, and of the same kind.
        """
        if self.size == 1:
            return x
        if slot is not None and self.exchange is not None and self.exchange.takes(x):
            return self.exchange(x, slot)
        if self.one_shot is not None and self.one_shot.takes(x):
            return self.one_shot(x)
        dist.all_reduce(x, group=self.group)
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's `x` [N, C] side by side, in rank order: [N, size * C]."""
        if self.size == 1:
            return x
        gathered = x.new_empty((self.size, *x.shape))
        dist.all_gather(list(gathered), x.contiguous(), group=self.group)
        return gathered.transpose(0, 1).reshape(len(x), -1)

    def minimum(self, value: int) -> int:
        """The smallest of the ranks' values."""
        if self.size == 1:
            return value
        values = torch.tensor([value])
        dist.all_reduce(values, op=dist.ReduceOp.MIN, group=self.group)
        return int(values.item())

    def part(self, total: int) -> Part:
        """This rank's part of a dimension."""
        return Part.split(total, self.rank, self.size)

    def heads(self, num_heads: int, num_kv_heads: int) -> HeadParts:
        """This rank's attention heads. Raises `ModelError` if some rank would have none of the model's."""
        if self.size > num_heads:
            raise ModelError(
                f"num_attention_heads = {num_heads} is less than {self.size} tensor-parallel ranks"
            )
        return HeadParts.split(num_heads, num_kv_heads, self.rank, self.size)


class LoneRank(TensorParallel):
    """Goes through the motions without the other ranks: shapes are right, values are not."""

    def all_reduce(self, x: torch.Tensor, slot: int | None = None) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return x.repeat(1, self.size)


@contextmanager
def on_its_own(module: nn.Module) -> Iterator[None]:
    """In here the module and its layers wait for no other rank, and what they compute makes no sense."""
    modules: list[Any] = [m for m in module.modules() if isinstance(getattr(m, "tp", None), TensorParallel)]
    places = [(m, m.tp) for m in modules]
    for m, tp in places:
        m.tp = LoneRank(tp.rank, tp.size)
    try:
        yield
    finally:
        for m, tp in places:
            m.tp = tp


class HostTensorParallel(TensorParallel):
    """Sums and gathers in the host's memory: slow, and not to be captured in a graph.

    For ranks that share a GPU, between which NCCL refuses to work.
    """

    def all_reduce(self, x: torch.Tensor, slot: int | None = None) -> torch.Tensor:
        total = _on_host(x)
        dist.all_reduce(total, group=self.group)
        return total.to(x.device, x.dtype)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        gathered = super().all_gather(_on_host(x))
        return gathered.to(x.device, x.dtype)


def _on_host(x: torch.Tensor) -> torch.Tensor:
    """A copy in a type that gloo adds up, and that holds all values of the others exactly."""
    return x.to("cpu", torch.float32, copy=True)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where parameters live and in which type."""

    dtype: torch.dtype
    device: torch.device
    tp: TensorParallel = field(default_factory=TensorParallel)


class LazyTensor(Protocol):
    """A checkpoint tensor of which only what is indexed is read; a `torch.Tensor` is one too."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def __getitem__(self, index: slice | tuple[slice, slice]) -> torch.Tensor: ...


WeightLoader = Callable[[nn.Parameter, LazyTensor, str | None], None]
"""Fills a parameter from a checkpoint tensor: `p.weight_loader(p, tensor, shard_id)`.

`tensor` is whole, not sharded, of any float type and device. `shard_id` names its part of a packed parameter
("q", "k", "v", "gate", "up") and is None otherwise. The loader reads this rank's part alone; it raises
`ModelError` with both shapes if the tensor is not the one expected.
"""


def make_parameter(shape: tuple[int, ...], place: Placement, loader: WeightLoader) -> nn.Parameter:
    """An inference-only parameter with undefined content, that carries its loader."""
    data = torch.empty(shape, dtype=place.dtype, device=place.device)
    parameter = nn.Parameter(data, requires_grad=False)  # a subclass would slow each operator that reads it
    parameter.weight_loader = loader  # type: ignore[attr-defined]
    return parameter


def load_whole(parameter: nn.Parameter, loaded: LazyTensor, shard_id: str | None) -> None:
    """The loader of parameters that every rank holds in full."""
    check_shape(loaded, tuple(parameter.shape))
    parameter.copy_(loaded[:])


def load_rows(target: torch.Tensor, loaded: LazyTensor, part: Part) -> None:
    """Fill `target` [part.size, ...] with a part of the rows, then zeros."""
    check_shape(loaded, (part.total, *target.shape[1:]))
    target[: part.count].copy_(loaded[part.first : part.first + part.count])
    target[part.count :].zero_()


def check_shape(loaded: LazyTensor, expected: tuple[int, ...]) -> None:
    if tuple(loaded.shape) != expected:
        raise ModelError(f"has shape {list(loaded.shape)}, the model needs {list(expected)}")


class ColumnParallelLinear(nn.Module):
    """y = x W^T + b for one or several checkpoint matrices, packed one below the other; outputs stay sharded.

    `parts` maps shard ids to this rank's rows of the matrices, in packing order.
    """

    def __init__(self, in_features: int, parts: Mapping[str, Part], bias: bool, place: Placement) -> None:
        super().__init__()
        self.parts = dict(parts)
        self.sizes = [part.size for part in parts.values()]
        rows = sum(self.sizes)
        self.weight = make_parameter((rows, in_features), place, self.load_part)
        self.bias = make_parameter((rows,), place, self.load_part) if bias else None

    def load_part(self, parameter: nn.Parameter, loaded: LazyTensor, shard_id: str | None) -> None:
        if shard_id is None or shard_id not in self.parts:
            raise ModelError(f"shard {shard_id!r} is none of {list(self.parts)}")
        start = sum(self.sizes[: list(self.parts).index(shard_id)])
        part = self.parts[shard_id]
        load_rows(parameter[start : start + part.size], loaded, part)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, in_features] to this rank's rows of each part, side by side, [T, sum of sizes]."""
        return linear(x, self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """y = x W^T + b where x is sharded by its last dimension; the result is whole on every rank."""

    def __init__(self, part: Part, out_features: int, bias: bool, place: Placement, slot: int) -> None:
        """`part` is this rank's part of the input features, `slot` that of its sum: see `all_reduce`."""
        super().__init__()
        self.tp = place.tp
        self.slot = slot
        self.part = part
        self.weight = make_parameter((out_features, part.size), place, self.load_columns)
        self.bias = make_parameter((out_features,), place, load_whole) if bias else None

    def load_columns(self, parameter: nn.Parameter, loaded: LazyTensor, shard_id: str | None) -> None:
        part = self.part
        check_shape(loaded, (parameter.shape[0], part.total))
        parameter[:, : part.count].copy_(loaded[:, part.first : part.first + part.count])
        parameter[:, part.count :].zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, part.size] to y [T, out_features]."""
        if self.tp.size == 1:
            return linear(x, self.weight, self.bias)
        y = self.tp.all_reduce(linear(x, self.weight), self.slot)
        return y if self.bias is None else y + self.bias

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        """(y, residual), or, where the product can take it along, (None, y + residual), in place."""
        if self.tp.size == 1 and self.bias is None and runs_fused(x):
            return None, add_linear(residual, x, self.weight)
        return self(x), residual


class VocabParallelWeight(nn.Module):
    """A [vocab, hidden] weight split by rows."""

    def __init__(self, vocab_size: int, hidden_size: int, place: Placement) -> None:
        super().__init__()
        self.tp = place.tp
        self.part = place.tp.part(vocab_size)
        self.weight = make_parameter((self.part.size, hidden_size), place, self.load_part)

    def load_part(self, parameter: nn.Parameter, loaded: LazyTensor, shard_id: str | None) -> None:
        load_rows(parameter, loaded, self.part)


class VocabParallelEmbedding(VocabParallelWeight):
    """Token ids [T] to rows [T, hidden]."""

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        if self.tp.size == 1:
            return F.embedding(token_ids, self.weight)
        local = token_ids - self.part.first
        elsewhere = (local < 0) | (local >= self.part.size)
        embedded = F.embedding(local.masked_fill(elsewhere, 0), self.weight)
        return self.tp.all_reduce(embedded.masked_fill_(elsewhere.unsqueeze(-1), 0))


class ParallelLMHead(VocabParallelWeight):
    """Hidden rows [R, hidden] to logits [R, vocab], whole on every rank."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.tp.all_gather(linear(hidden, self.weight))
        return logits[:, : self.part.total]
