"""Round a loaded decoder's linear layers to half precision, for faster decodes on a CPU without bf16."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from kernels.half_weight import HalfWeight, has_half_weights
from model.config import ModelError
from model.decoder import Decoder
from model.parallel import ColumnParallelLinear, ParallelLMHead, RowParallelLinear
from model.weights.checkpoint import Progress

PACKING_PHASE = "packing weights"


def check_half_weights(dtype: torch.dtype, device: torch.device) -> None:
    """Raises ModelError where weights cannot be half of the compute type."""
    if device.type != "cpu" or dtype != torch.float32:
        raise ModelError("--weight-dtype float16 is for a CPU that computes in fp32 (--dtype float32)")
    if not has_half_weights():
        raise ModelError("--weight-dtype float16 needs FBGEMM, which torch has on x86 cores with AVX2")


def halve_weights(decoder: Decoder, progress: Progress | None = None) -> None:
    """Replace the weights of all linear layers and the head, which a tied embedding does not follow."""
    decoder.end_loading()
    linears = [
        module
        for module in decoder.modules()
        if isinstance(module, ColumnParallelLinear | RowParallelLinear | ParallelLMHead)
    ]
    linears.reverse()  # the head takes longest
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # packing one weight occupies one core
        for done, _ in enumerate(pool.map(_halve_weight, linears), 1):
            if progress is not None:
                progress(PACKING_PHASE, done, len(linears))


def _halve_weight(module: nn.Module) -> None:
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    half = HalfWeight(weight)
    del module.weight  # a module lets nothing but a parameter take a parameter's place
    module.weight = half  # type: ignore[assignment]
