"""The flash-attn family behind one face: versions 4, 3 and 2, whichever is installed and fits.

All read a paged cache of [blocks, block_size, kv_heads, head_dim], and mask causally from the bottom right.
They need finite numbers in the whole of a sequence's last page, so the pool starts zeroed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from threading import Lock
from typing import Any, Protocol

import torch

from kernels.attention.flash_compile import FLASH_ATTN_4, HEAD_DIMS, cache_compiled_kernels
from kernels.attention.interface import AttentionShape
from kernels.gpu import gpu_of
from kernels.late_dynamo import import_dynamo_late

_MIN_QUERY_BOUND = 256  # above one tile of queries, packed heads or not
_recording = Lock()  # at most one `_RecordingCache` stands in


@dataclass(frozen=True, slots=True)
class PagedQueries:
    """S sequences with rows query_starts[i] to query_starts[i + 1], the last of context_lens[i] positions.

    Without `query_starts` every sequence has one row.
    """

    block_tables: torch.Tensor  # [S, any] int32
    context_lens: torch.Tensor  # [S] int32
    query_starts: torch.Tensor | None  # [S + 1] int32
    max_query_len: int
    max_context: int


Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]
"""(q [T, heads, head_dim], keys, values, out [T, heads, head_dim]): attend with one layer's cache."""


class FlashVersion(Protocol):
    name: str

    def prepare(self, queries: PagedQueries, shape: AttentionShape) -> Attend:
        """A function for the layers of one step; what they have in common is worked out once."""
        ...


def find_flash_attn(shape: AttentionShape) -> FlashVersion:
    """The newest that is installed and fits. Raises ValueError that says why none does."""
    reasons = []
    for version in (Flash4, Flash3, Flash2):
        reason = version.reason_against(shape)
        if reason is None and shape.device.type == "meta":
            return NoFlash(version.name)
        if reason is None:
            try:
                return version()
            except ImportError as error:
                reason = f"cannot be imported ({error})"
        reasons.append(f"{version.name} {reason}")
    raise ValueError("; ".join(reasons))


def _common_reason(shape: AttentionShape, module: str, capabilities: tuple[int, ...]) -> str | None:
    gpu = gpu_of(shape.device)
    if gpu is None:
        return "needs a CUDA device"
    if shape.dtype not in (torch.float16, torch.bfloat16):
        return f"computes in float16 and bfloat16, not in {shape.dtype}"
    if shape.head_dim not in HEAD_DIMS:
        return f"does not take a head size of {shape.head_dim}"
    if gpu.major not in capabilities:
        return "is not made for this GPU"
    try:
        return None if find_spec(module) else "is not installed"
    except ImportError:  # of the package around it
        return "is not installed"


def _window(shape: AttentionShape) -> int | None:
    """How far a row sees to its left, itself not counted."""
    return None if shape.sliding_window is None else shape.sliding_window - 1


@dataclass(slots=True)
class NoFlash:
    """Stands for another version, and attends not at all."""

    name: str

    def prepare(self, queries: PagedQueries, shape: AttentionShape) -> Attend:
        return lambda q, keys, values, out: None


class Flash4:
    """flash-attn 4 (CuTe DSL), compiled at first use: a few seconds for each variant, kept on disk."""

    name = "flash-attn 4"

    def __init__(self) -> None:
        cache_compiled_kernels()
        import_dynamo_late()
        self._interface = import_module("flash_attn.cute.interface")

    @staticmethod
    def reason_against(shape: AttentionShape) -> str | None:
        return _common_reason(shape, "flash_attn.cute", capabilities=(9, 10, 11))

    def prepare(self, queries: PagedQueries, shape: AttentionShape) -> Attend:
        """Decodes are passed as [S, 1, heads, head_dim], which needs no search for a tile's sequence."""
        one_row = queries.query_starts is None
        options: dict[str, Any] = {
            "page_table": queries.block_tables,
            "seqused_k": queries.context_lens,
            "cu_seqlens_q": queries.query_starts,
            # Bounds that change would compile further variants of the same kernel; on Hopper they do no more.
            "max_seqlen_q": None if one_row else max(queries.max_query_len, _MIN_QUERY_BOUND),
            "max_seqlen_k": queries.max_context,
            "softmax_scale": shape.scale,
            "causal": not one_row or shape.sliding_window is not None,
            "window_size_left": _window(shape),
        }
        return _RepeatedCall(self._interface._flash_attn_fwd, options, add_row_dim=one_row)


class _RepeatedCall:
    """Calls flash-attn 4 in full for the first layer, and its compiled kernel straight for the others.

    Its Python checks arguments and looks for the kernel at every call, which takes the host far longer than
    the launch. The layers of a step differ in q, keys, values and out alone: the kernel's first arguments.
    """

    def __init__(self, function: Any, options: dict[str, Any], add_row_dim: bool) -> None:
        self._function, self._options, self._add_row_dim = function, options, add_row_dim
        self._layout: tuple[Any, ...] = ()
        self._kernel: Callable[..., Any] | None = None
        self._more_arguments: tuple[Any, ...] = ()

    def __call__(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, out: torch.Tensor) -> None:
        if self._add_row_dim:
            q, out = q.unsqueeze(1), out.unsqueeze(1)
        layout = (q.shape, q.stride(), q.dtype, keys.shape)
        if self._kernel is not None and layout == self._layout:
            self._kernel(q, keys, values, out, *self._more_arguments)
            return
        FLASH_ATTN_4.wait_until_compiled()
        with _recording:
            cache = _RecordingCache(self._function.compile_cache)
            self._function.compile_cache = cache
            try:
                self._function(q, keys, values, out=out, **self._options)
            finally:
                self._function.compile_cache = cache.kernels
        self._layout, self._kernel = layout, None
        mine = (q, keys, values, out)
        same = [_is_view_of(a, b) for a, b in zip(cache.arguments[:4], mine, strict=False)]
        if len(same) == 4 and all(same):
            self._kernel, self._more_arguments = cache.kernel, cache.arguments[4:]


def _is_view_of(argument: Any, tensor: torch.Tensor) -> bool:
    return isinstance(argument, torch.Tensor) and (
        (argument.data_ptr(), argument.shape, argument.stride())
        == (tensor.data_ptr(), tensor.shape, tensor.stride())
    )


class _RecordingCache:
    """Stands before flash-attn 4's table of compiled kernels and notes the last call of one."""

    def __init__(self, kernels: Any) -> None:
        self.kernels = kernels
        self.kernel: Callable[..., Any] | None = None
        self.arguments: tuple[Any, ...] = ()

    def __contains__(self, key: Any) -> bool:
        return key in self.kernels

    def __setitem__(self, key: Any, kernel: Any) -> None:
        self.kernels[key] = kernel

    def __getitem__(self, key: Any) -> Callable[..., Any]:
        kernel = self.kernels[key]

        def call(*arguments: Any) -> Any:
            self.kernel, self.arguments = kernel, arguments
            return kernel(*arguments)

        return call


class Flash3:
    """flash-attn 3, the Hopper build, which installs the module `flash_attn_interface`."""

    name = "flash-attn 3"

    def __init__(self) -> None:
        self._attend = import_module("flash_attn_interface").flash_attn_with_kvcache

    @staticmethod
    def reason_against(shape: AttentionShape) -> str | None:
        return _common_reason(shape, "flash_attn_interface", capabilities=(9,))

    def prepare(self, queries: PagedQueries, shape: AttentionShape) -> Attend:
        one_row = queries.query_starts is None
        left = _window(shape)

        def attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, out: torch.Tensor) -> None:
            result = self._attend(
                q.unsqueeze(1) if one_row else q,
                keys,
                values,
                cache_seqlens=queries.context_lens,
                page_table=queries.block_tables,
                cu_seqlens_q=queries.query_starts,
                max_seqlen_q=queries.max_query_len,
                softmax_scale=shape.scale,
                causal=True,
                window_size=(-1, -1) if left is None else (left, 0),
            )
            out.copy_(result.view(out.shape))

        return attend


class Flash2:
    """flash-attn 2; its pages are multiples of 256 tokens."""

    name = "flash-attn 2"

    def __init__(self) -> None:
        self._module = import_module("flash_attn")

    @staticmethod
    def reason_against(shape: AttentionShape) -> str | None:
        reason = _common_reason(shape, "flash_attn.flash_attn_interface", capabilities=(8, 9))
        if reason is None and shape.block_size % 256:
            return f"needs a block size that is a multiple of 256, not {shape.block_size}"
        return reason

    def prepare(self, queries: PagedQueries, shape: AttentionShape) -> Attend:
        left = _window(shape)
        options: dict[str, Any] = {
            "block_table": queries.block_tables,
            "softmax_scale": shape.scale,
            "causal": True,
            "window_size": (-1, -1) if left is None else (left, 0),
        }
        if queries.query_starts is None:
            options["cache_seqlens"] = queries.context_lens
            return lambda q, keys, values, out: _store(
                out, self._module.flash_attn_with_kvcache(q.unsqueeze(1), keys, values, **options)
            )
        zero = queries.context_lens.new_zeros(1)
        options |= {
            "cu_seqlens_q": queries.query_starts,
            "cu_seqlens_k": torch.cat([zero, queries.context_lens.cumsum(0, dtype=torch.int32)]),
            "max_seqlen_q": queries.max_query_len,
            "max_seqlen_k": queries.max_context,
        }
        return lambda q, keys, values, out: _store(
            out, self._module.flash_attn_varlen_func(q, keys, values, **options)
        )


def _store(out: torch.Tensor, result: torch.Tensor) -> None:
    out.copy_(result.view(out.shape))
