"""The 8B's products at one number of rows: each alone, with what follows it, and in a chain of layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.kernels.products.cublaslt import CublasLt
from benchmarks.kernels.products.measure import Graph, quick_ms, sustained_ms
from benchmarks.kernels.products.quack_kernels import KINDS, QuackKernels, Tile
from benchmarks.kernels.small_batch.timing import capture
from kernels.activation import silu_and_mul
from kernels.linear import add_linear
from kernels.norm import add_rms_norm, rms_norm

BF16 = torch.bfloat16
DEVICE = "cuda"
HIDDEN, INTERMEDIATE, QKV = 4096, 12_288, 6144
SHAPES = {  # [N, K]
    "qkv": (QKV, HIDDEN),
    "o": (HIDDEN, HIDDEN),
    "gate_up": (2 * INTERMEDIATE, HIDDEN),
    "down": (HIDDEN, INTERMEDIATE),
}
NUM_LAYERS = 8  # so that no weight is still in the L2 when its turn comes again
EPS = 1e-6
_CHECKED_ROWS = 32
_LT_ALGORITHMS = 10


class Layers:
    """Random weights."""

    def __init__(self) -> None:
        self.weights = {
            name: [torch.randn(n, k, device=DEVICE, dtype=BF16) * k**-0.5 for _ in range(NUM_LAYERS)]
            for name, (n, k) in SHAPES.items()
        }
        self.norm = torch.rand(HIDDEN, device=DEVICE, dtype=BF16) + 0.5


class Rows:
    """Measures at one number of rows, and remembers what was best."""

    def __init__(self, layers: Layers, quack: QuackKernels | None, num_rows: int, report: Any) -> None:
        self.layers = layers
        self.num_rows = num_rows
        self.report = report
        self.quack: Any = quack
        self.inputs = {k: torch.randn(num_rows, k, device=DEVICE, dtype=BF16) for k in (HIDDEN, INTERMEDIATE)}
        self.best: dict[str, tuple[float, str, Any]] = {}  # by "what: kind": (us, label, function)

    def _tiles(self, kind: str) -> Sequence[Tile]:
        return KINDS[kind] if self.quack else ()

    def product(self, name: str, lt: CublasLt | None) -> None:
        """x W^T alone."""
        weights = self.layers.weights[name]
        x = self.inputs[weights[0].shape[1]]
        functions: dict[str, Callable[..., torch.Tensor]] = {
            "cublas": F.linear,
            "torch's cublaslt": _linear_by_lt,
        }
        if lt is not None:
            found = lt.products(x, weights[0], _LT_ALGORITHMS)
            functions |= {f"lt {i}": product for i, product in enumerate(found)}
        for tile in self._tiles("plain"):
            functions[f"quack {tile}"] = partial(self.quack.plain, tile)
        expected = _linear_fp32(_ends(x), weights[0])

        def check(function: Callable[..., torch.Tensor]) -> float:
            return _error(_ends(function(x, weights[0])), expected)

        self._compare(f"{name}", functions, lambda function, i: function(x, weights[i]), check)

    def gated(self) -> None:
        """silu(x G^T) * (x U^T)."""
        weights = self.layers.weights["gate_up"]
        x = self.inputs[HIDDEN]
        functions: dict[str, Callable[..., torch.Tensor]] = {"cublas": _gated}
        for kind in ("gated", "gated_interleaved"):
            for tile in self._tiles(kind):
                functions[f"{kind} {tile}"] = partial(getattr(self.quack, kind), tile)
        gate, up = _linear_fp32(_ends(x), weights[0]).chunk(2, dim=-1)
        expected = F.silu(gate) * up
        taking_turns = _linear_fp32(_ends(x), weights[0])
        interleaved = F.silu(taking_turns[:, ::2]) * taking_turns[:, 1::2]

        def check(function: Any) -> float:
            is_plain = getattr(getattr(function, "func", None), "__name__", "") != "gated_interleaved"
            return _error(_ends(function(x, weights[0])), expected if is_plain else interleaved)

        self._compare("gate_up, silu", functions, lambda function, i: function(x, weights[i]), check)

    def added(self, name: str) -> None:
        """The residual plus x W^T, and its norm."""
        weights = self.layers.weights[name]
        x, norm = self.inputs[weights[0].shape[1]], self.layers.norm
        functions: dict[str, Callable[..., Any]] = {"cublas": _add_norm, "cublas, beta 1": _addmm_norm}
        for kind in ("add", "add_by_store"):
            for tile in self._tiles(kind):
                functions[f"{kind} {tile}"] = partial(self._quack_add_norm, kind, tile)
        for tile in self._tiles("add_scaled"):
            functions[f"add_scaled {tile}"] = partial(self.quack.add_scaled, tile)
        start = torch.randn(self.num_rows, HIDDEN, device=DEVICE, dtype=BF16)
        residual = start.clone()
        expected = _ends(start).float() + _linear_fp32(_ends(x), weights[0])
        rms = (expected.square().mean(-1, keepdim=True) + EPS).rsqrt()

        def check(function: Any) -> float:
            residual.copy_(start)
            out, rstd = function(x, weights[0], residual, norm, EPS)
            scale = _ends(rstd[:, None]) if rstd.dim() == 1 else 1.0
            normed = _ends(out).float() * scale
            return max(_error(_ends(residual), expected), _error(normed, expected * rms * norm))

        self._compare(
            f"{name}, add, norm",
            functions,
            lambda function, i: function(x, weights[i], residual, norm, EPS),
            check,
        )

    def _quack_add_norm(
        self, kind: str, tile: Tile, x: Any, weight: Any, residual: Any, norm: Any, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        getattr(self.quack, kind)(tile, x, weight, residual)
        return rms_norm(residual, norm, eps), residual

    def _compare(
        self,
        name: str,
        functions: dict[str, Callable[..., Any]],
        launch: Callable[[Callable[..., Any], int], Any],
        check: Callable[[Any], float],
    ) -> None:
        """All for a moment, then the better ones, and the first, under load."""
        graphs: dict[str, Graph] = {}
        quick: dict[str, float] = {}
        for label, function in functions.items():
            try:
                error = check(function)
                if not error < 2e-2:
                    raise ValueError(f"off by {error:.1e}")
                graph = capture(partial(_each_layer, launch, function))
                quick[label] = quick_ms(graph)
                graphs[label] = graph
            except Exception as failure:
                self.report.failed(f"{self.num_rows} {name}: {label}", failure)
        finalists = _finalists(quick)
        sustained = sustained_ms({label: graphs[label] for label in finalists})
        us = {label: ms * 1e3 / NUM_LAYERS for label, ms in sustained.items()}
        self.report.compared(self.num_rows, name, us, {k: v * 1e3 / NUM_LAYERS for k, v in quick.items()})
        for label, value in us.items():
            key = f"{name}: {label.split()[0]}"
            if key not in self.best or value < self.best[key][0]:
                self.best[key] = (value, label, functions[label])

    def chain(self) -> None:
        """Layers without attention, in which every candidate is put where it was best."""
        variants = self._chains()
        start = torch.randn(self.num_rows, HIDDEN, device=DEVICE, dtype=BF16)
        graphs: dict[str, Graph] = {}
        expected = None
        for label, layer in variants.items():
            try:
                result: list[torch.Tensor] = []
                graphs[label] = capture(partial(_run_chain, start, layer, result))
                graphs[label].replay()
                hidden = result[-1].float()
                expected = hidden if expected is None else expected
                error = _error(hidden, expected)
                if not error < 5e-2:
                    self.report.failed(f"{self.num_rows} chain: {label}", ValueError(f"off by {error:.1e}"))
            except Exception as failure:
                graphs.pop(label, None)
                self.report.failed(f"{self.num_rows} chain: {label}", failure)
        ms = sustained_ms(graphs, seconds=0.4)
        self.report.compared(self.num_rows, "layer", {k: v * 1e3 / NUM_LAYERS for k, v in ms.items()}, {})

    def _chains(self) -> dict[str, Callable[[int, Any, torch.Tensor], tuple[Any, torch.Tensor]]]:
        base = {"qkv": F.linear, "o": _add_norm, "gated": _gated, "down": _add_norm}
        gated = {"gated": self._best("gate_up, silu", "gated")}
        beta = {"o": _addmm_norm, "down": _addmm_norm}
        added = {name: self._best(f"{name}, add, norm", "add") for name in ("o", "down")}
        qkv = {"qkv": self._best("qkv", "cublas", "torch's", "lt", "quack")}
        kinds = ("cublas", "cublas,", "add", "add_by_store")
        every = {name: self._best(f"{name}, add, norm", *kinds) for name in ("o", "down")}
        every["gated"] = self._best("gate_up, silu", "cublas", "gated")
        choices = {
            "as it is": base,
            "beta 1": base | beta,
            "gated": base | gated,
            "gated, beta 1": base | gated | beta,
            "gated, quack adds": base | gated | added,
            "gated, best qkv": base | gated | qkv,
            "every best": every | qkv,
        }
        layers: dict[str, Callable[..., tuple[Any, torch.Tensor]]] = {
            label: partial(self._layer, functions)
            for label, functions in choices.items()
            if all(functions.values())
        }
        deferred = self._deferred()
        return layers if deferred is None else layers | {"norms deferred": deferred}

    def _best(self, name: str, *kinds: str) -> Any:
        """The fastest of these kinds; None if there is none."""
        found = [self.best[key] for key in (f"{name}: {kind}" for kind in kinds) if key in self.best]
        return min(found, key=lambda entry: entry[0])[2] if found else None

    def _layer(
        self, functions: dict[str, Any], i: int, hidden: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        weights = self.layers.weights
        qkv = functions["qkv"](hidden, weights["qkv"][i])
        attended = qkv[:, :HIDDEN]
        hidden, _ = functions["o"](attended, weights["o"][i], residual, self.layers.norm, EPS)
        hidden = functions["gated"](hidden, weights["gate_up"][i])
        hidden, _ = functions["down"](hidden, weights["down"][i], residual, self.layers.norm, EPS)
        return hidden, residual

    def _deferred(self) -> Callable[..., tuple[Any, Any]] | None:
        """Norms as a factor of rows, which the product after them applies."""
        add_o, add_down = (self._best(f"{name}, add, norm", "add_scaled") for name in ("o", "down"))
        gated, qkv = self._best("gate_up, silu", "gated"), self._best("qkv", "quack")
        if not (add_o and add_down and gated and qkv):
            return None
        gated_tile, qkv_tile = gated.args[0], qkv.args[0]
        if qkv_tile not in KINDS["of_scaled"]:
            qkv_tile = KINDS["of_scaled"][0]
        weights, norm, quack = self.layers.weights, self.layers.norm, self.quack

        def layer(i: int, scaled: Any, residual: torch.Tensor) -> tuple[Any, torch.Tensor]:
            if isinstance(scaled, torch.Tensor):  # the first layer's input is normed
                qkv = F.linear(scaled, weights["qkv"][i])
            else:
                qkv = quack.of_scaled(qkv_tile, *scaled, weights["qkv"][i])
            scaled = add_o(qkv[:, :HIDDEN], weights["o"][i], residual, norm, EPS)
            hidden = quack.gated_of_scaled(gated_tile, *scaled, weights["gate_up"][i])
            return add_down(hidden, weights["down"][i], residual, norm, EPS), residual

        return layer


def _each_layer(launch: Callable[[Any, int], Any], function: Any) -> None:
    for i in range(NUM_LAYERS):
        launch(function, i)


def _run_chain(start: torch.Tensor, layer: Callable[..., Any], result: list[torch.Tensor]) -> None:
    residual = start.clone()
    hidden: Any = rms_norm(residual, torch.ones(HIDDEN, device=DEVICE, dtype=BF16), EPS)
    for i in range(NUM_LAYERS):
        hidden, residual = layer(i, hidden, residual)
    result.append(residual)


def _finalists(quick: dict[str, float]) -> list[str]:
    """The first, the best of each kind, the three best of all."""
    ranked = sorted(quick, key=quick.__getitem__)
    chosen = {next(iter(quick)), *ranked[:3]}
    for kind in {label.split()[0] for label in ranked}:
        chosen.add(next(label for label in ranked if label.split()[0] == kind))
    return [label for label in quick if label in chosen]


def _gated(x: torch.Tensor, gate_up: torch.Tensor) -> torch.Tensor:
    return silu_and_mul(F.linear(x, gate_up))


def _add_norm(
    x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return add_rms_norm(F.linear(x, weight), residual, norm, eps)


def _addmm_norm(
    x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return rms_norm(add_linear(residual, x, weight), norm, eps), residual


def _linear_by_lt(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    before = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library("cublaslt")
    try:
        return F.linear(x, weight)
    finally:
        torch.backends.cuda.preferred_blas_library(before)


def _ends(x: torch.Tensor) -> torch.Tensor:
    """The first and last rows, which are in other tiles."""
    return torch.cat([x[:_CHECKED_ROWS], x[-_CHECKED_ROWS:]])


def _linear_fp32(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.linear(x.float(), weight.float())


def _error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual.float() - expected.float()).norm() / expected.float().norm())
