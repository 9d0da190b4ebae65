"""Functions of tensors: each module is an operation in plain torch, the CPU's path and the reference.

On a GPU it calls its fused kernel in `triton/`, if triton is installed (`fused.runs_fused`). `attention/` has
backends of one interface instead. `tuned/` holds tile sizes that won on a card.
"""
