"""Every algorithm that cuBLASLt's heuristic offers for x W^T in bf16, not only its first."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import torch

_R_32F, _R_16BF, _COMPUTE_32F = 0, 14, 68
_TRANSPOSED = 1
_DESC_TRANSA = 3
_PREFERENCE_MAX_WORKSPACE = 1
_WORKSPACE_BYTES = 64 << 20


class _Algorithm(ctypes.Structure):
    _fields_ = [("data", ctypes.c_uint64 * 8)]


class _Heuristic(ctypes.Structure):
    _fields_ = [
        ("algorithm", _Algorithm),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


class CublasLt:
    """Products in the library that torch has loaded. Raises OSError where there is none."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(_loaded_library())
        self._handle = ctypes.c_void_p()
        self._check(self._library.cublasLtCreate(ctypes.byref(self._handle)))
        self._workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")

    def products(
        self, x: torch.Tensor, weight: torch.Tensor, most: int
    ) -> list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]:
        """Up to `most` ways to x W^T for tensors like these, the heuristic's first choice first."""
        rows, k = x.shape
        n = weight.shape[0]
        desc = ctypes.c_void_p()
        self._check(self._library.cublasLtMatmulDescCreate(ctypes.byref(desc), _COMPUTE_32F, _R_32F))
        transposed = ctypes.c_int32(_TRANSPOSED)
        self._check(
            self._library.cublasLtMatmulDescSetAttribute(desc, _DESC_TRANSA, ctypes.byref(transposed), 4)
        )
        # Column by column, as the library sees it: W is [K, N], x is [K, M], and the result [N, M].
        sizes = ((k, n, weight.stride(0)), (k, rows, x.stride(0)), (n, rows, n))
        layouts = tuple(self._layout(*size) for size in sizes)
        found = self._heuristics(desc, layouts, most)
        return [self._product(desc, layouts, heuristic) for heuristic in found]

    def _heuristics(
        self, desc: ctypes.c_void_p, layouts: tuple[ctypes.c_void_p, ...], most: int
    ) -> list[_Heuristic]:
        preference = ctypes.c_void_p()
        self._check(self._library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)))
        limit = ctypes.c_size_t(_WORKSPACE_BYTES)
        self._check(
            self._library.cublasLtMatmulPreferenceSetAttribute(
                preference, _PREFERENCE_MAX_WORKSPACE, ctypes.byref(limit), 8
            )
        )
        results, count = (_Heuristic * most)(), ctypes.c_int()
        weight, x, out = layouts
        self._check(
            self._library.cublasLtMatmulAlgoGetHeuristic(
                self._handle, desc, weight, x, out, out, preference, most, results, ctypes.byref(count)
            )
        )
        return [results[i] for i in range(count.value) if results[i].state == 0]

    def _product(
        self, desc: ctypes.c_void_p, layouts: tuple[ctypes.c_void_p, ...], heuristic: _Heuristic
    ) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)

        def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            out = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype, device=x.device)
            a, b, c = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (weight, x, out))
            self._check(
                self._library.cublasLtMatmul(
                    self._handle, desc, ctypes.byref(one), a, layouts[0], b, layouts[1],
                    ctypes.byref(zero), c, layouts[2], c, layouts[2], ctypes.byref(heuristic.algorithm),
                    ctypes.c_void_p(self._workspace.data_ptr()), ctypes.c_size_t(_WORKSPACE_BYTES),
                    ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
                )
            )  # fmt: skip
            return out

        return product

    def _layout(self, rows: int, columns: int, stride: int) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        self._check(
            self._library.cublasLtMatrixLayoutCreate(
                ctypes.byref(layout),
                _R_16BF,
                ctypes.c_uint64(rows),
                ctypes.c_uint64(columns),
                ctypes.c_int64(stride),
            )
        )
        return layout

    def _check(self, status: int) -> None:
        if status:
            raise RuntimeError(f"cuBLASLt says {status}")


def _loaded_library() -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "libcublasLt" in line:
            return line.split()[-1]
    raise OSError("torch has loaded no cuBLASLt")
