"""What a product's kernel does with its results."""

from __future__ import annotations

from enum import IntEnum

import triton.language as tl


class Epilogue(IntEnum):
    STORE = 0  # write them
    ADD = 1  # add them to an fp32 residual
    SILU_AND_MUL = 2  # of the gate rows and the up rows of one packed weight: silu(gate) * up


STORE = tl.constexpr(Epilogue.STORE.value)
ADD = tl.constexpr(Epilogue.ADD.value)
SILU_AND_MUL = tl.constexpr(Epilogue.SILU_AND_MUL.value)
