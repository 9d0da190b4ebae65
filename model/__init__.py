"""One decoder for all architectures: `decoder`, `layers` and `parallel` are its pass over the rows of a step.

`small_batch` is the same pass in fused kernels, for few rows on a GPU. `weights/` fills the parameters from a
checkpoint, `text/` turns text into token ids and back, `grammar/` compiles what constrains an answer.
"""
