"""What each kernel of a step is there for, told by its name."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

SUMS = "sums over ranks"
OTHER = "other"
# The first that fits. A norm within the kernel of a sum counts as sum: what takes time there is the wait.
_KINDS = {
    SUMS: re.compile("nccl|all_reduce|exchange|arrival|Memcpy PtoP"),
    "attention": re.compile("attend|flash|decode_splits|combine|prefill_tiles|rotary|scatter_rows"),
    "products": re.compile("gemm|gemv|nvjet|cutlass|splitK|cublas|silu"),
    "norms": re.compile("norm"),
}


def kind_of(kernel: str) -> str:
    return next((kind for kind, pattern in _KINDS.items() if pattern.search(kernel)), OTHER)


def time_by_kind(kernels: Iterable[tuple[str, float, float]]) -> dict[str, float]:
    """Microseconds a step, most first, of kernels (name, calls a step, us a step)."""
    times: dict[str, float] = defaultdict(float)
    for name, _, us in kernels:
        times[kind_of(name)] += us
    return dict(sorted(times.items(), key=lambda item: -item[1]))
