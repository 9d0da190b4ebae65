"""Tensor-parallel layers: each rank holds a slice of every weight and knows where checkpoints keep it.

Column-parallel layers split the output rows and need no communication, row-parallel layers split the inputs
and sum over the ranks, vocabulary layers split the token ids. A world of one rank is the plain case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from kernels.linear import linear
from model.config import ModelError


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """This rank's place among those that share each layer, and how they talk."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None  # None with several ranks: the default group

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of every rank's `x`, in place."""
        if self.size > 1:
            dist.all_reduce(x, group=self.group)
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's `x` [N, C] side by side, in rank order: [N, size * C]."""
        if self.size == 1:
            return x
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x.contiguous(), group=self.group)
        return torch.cat(parts, dim=-1)

    def split(self, total: int, what: str) -> int:
        """One rank's part of `total`; raises `ModelError` where it cannot be split evenly."""
        if total % self.size:
            raise ModelError(f"{what} = {total} cannot be split over {self.size} tensor-parallel ranks")
        return total // self.size


@dataclass(frozen=True, slots=True)
class Placement:
    """Where parameters live and in which type."""

    dtype: torch.dtype
    device: torch.device
    tp: TensorParallel = field(default_factory=TensorParallel)


WeightLoader = Callable[[nn.Parameter, torch.Tensor, str | None], None]
"""Fills a parameter from a checkpoint tensor: `p.weight_loader(p, tensor, shard_id)`.

`tensor` is whole, not sharded, of any float type and device. `shard_id` names its part of a packed parameter
("q", "k", "v", "gate", "up") and is None otherwise. The loader copies this rank's slice; it raises
`ModelError` with both shapes if the tensor is not the one expected.
"""


def make_parameter(shape: tuple[int, ...], place: Placement, loader: WeightLoader) -> nn.Parameter:
    """An inference-only parameter with undefined content, that carries its loader."""
    data = torch.empty(shape, dtype=place.dtype, device=place.device)
    parameter = nn.Parameter(data, requires_grad=False)  # a subclass would slow each operator that reads it
    parameter.weight_loader = loader  # type: ignore[attr-defined]
    return parameter


def load_whole(parameter: nn.Parameter, loaded: torch.Tensor, shard_id: str | None = None) -> None:
    """The loader of parameters that every rank holds in full."""
    check_shape(loaded, tuple(parameter.shape))
    parameter.copy_(loaded)


def check_shape(loaded: torch.Tensor, expected: tuple[int, ...]) -> None:
    if tuple(loaded.shape) != expected:
        raise ModelError(f"has shape {list(loaded.shape)}, the model needs {list(expected)}")


@dataclass(frozen=True, slots=True)
class Segment:
    """One checkpoint matrix inside a packed weight: `rows` of its `total_rows`, from row `first`."""

    total_rows: int
    rows: int
    first: int

    @staticmethod
    def split(total_rows: int, tp: TensorParallel, what: str) -> Segment:
        rows = tp.split(total_rows, what)
        return Segment(total_rows, rows, tp.rank * rows)

    @staticmethod
    def split_kv_heads(num_kv_heads: int, head_dim: int, tp: TensorParallel) -> Segment:
        """Fewer KV heads than ranks: neighbouring ranks, whose query heads share a KV head, each hold it."""
        if num_kv_heads >= tp.size:
            tp.split(num_kv_heads, "num_key_value_heads")
            return Segment.split(num_kv_heads * head_dim, tp, "KV rows")
        if tp.size % num_kv_heads:
            raise ModelError(
                f"num_key_value_heads = {num_kv_heads} does not divide {tp.size} tensor-parallel ranks"
            )
        head = tp.rank * num_kv_heads // tp.size
        return Segment(num_kv_heads * head_dim, head_dim, head * head_dim)


class ColumnParallelLinear(nn.Module):
    """y = x W^T + b for one or several checkpoint matrices, packed one below the other; outputs stay sharded.

    `segments` maps shard ids to the matrices, in packing order.
    """

    def __init__(
        self, in_features: int, segments: Mapping[str, Segment], bias: bool, place: Placement
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.segments = dict(segments)
        self.sizes = [segment.rows for segment in segments.values()]
        rows = sum(self.sizes)
        self.weight = make_parameter((rows, in_features), place, self.load_segment)
        self.bias = make_parameter((rows,), place, self.load_segment) if bias else None

    def load_segment(self, parameter: nn.Parameter, loaded: torch.Tensor, shard_id: str | None) -> None:
        if shard_id is None or shard_id not in self.segments:
            raise ModelError(f"shard {shard_id!r} is none of {list(self.segments)}")
        segment = self.segments[shard_id]
        check_shape(loaded, (segment.total_rows, *parameter.shape[1:]))
        start = sum(self.sizes[: list(self.segments).index(shard_id)])
        parameter[start : start + segment.rows].copy_(loaded[segment.first : segment.first + segment.rows])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """y = x W^T + b where x is sharded by its last dimension; the result is whole on every rank."""

    def __init__(self, in_features: int, out_features: int, bias: bool, place: Placement) -> None:
        super().__init__()
        self.tp = place.tp
        self.in_features = in_features
        columns = self.tp.split(in_features, "input features")
        self.weight = make_parameter((out_features, columns), place, self.load_columns)
        self.bias = make_parameter((out_features,), place, load_whole) if bias else None

    def load_columns(
        self, parameter: nn.Parameter, loaded: torch.Tensor, shard_id: str | None = None
    ) -> None:
        rows, columns = parameter.shape
        check_shape(loaded, (rows, self.in_features))
        first = self.tp.rank * columns
        parameter.copy_(loaded[:, first : first + columns])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.tp.size == 1:
            return linear(x, self.weight, self.bias)
        y = self.tp.all_reduce(linear(x, self.weight))
        return y if self.bias is None else y + self.bias


class VocabParallelWeight(nn.Module):
    """A [vocab, hidden] weight split by rows; where that is uneven, zeros fill up the last rank's slice."""

    def __init__(self, vocab_size: int, hidden_size: int, place: Placement) -> None:
        super().__init__()
        self.tp = place.tp
        self.vocab_size = vocab_size
        self.rows = -(-vocab_size // self.tp.size)
        self.first = self.tp.rank * self.rows
        self.weight = make_parameter((self.rows, hidden_size), place, self.load_rows)

    def load_rows(self, parameter: nn.Parameter, loaded: torch.Tensor, shard_id: str | None = None) -> None:
        check_shape(loaded, (self.vocab_size, parameter.shape[1]))
        mine = loaded[self.first : self.first + self.rows]
        parameter[: len(mine)].copy_(mine)
        parameter[len(mine) :].zero_()


class VocabParallelEmbedding(VocabParallelWeight):
    """Token ids [T] to rows [T, hidden]."""

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        if self.tp.size == 1:
            return F.embedding(token_ids, self.weight)
        local = token_ids - self.first
        elsewhere = (local < 0) | (local >= self.rows)
        embedded = F.embedding(local.masked_fill(elsewhere, 0), self.weight)
        return self.tp.all_reduce(embedded.masked_fill_(elsewhere.unsqueeze(-1), 0))


class ParallelLMHead(VocabParallelWeight):
    """Hidden rows [R, hidden] to logits [R, vocab], whole on every rank."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.tp.all_gather(linear(hidden, self.weight))
        return logits[:, : self.vocab_size]
