"""Turns a step's plan into tensors, runs the model, samples; the one part of the engine that knows torch.

Begin with `model_runner`: `inputs`, the decoder, `sampler`, and a `step_launch` that is collected later.
`rows` is what stays on the device between steps. With CUDA graphs `graph_runner` replays instead what it
has captured over `decode_tables`, and `mixed_graphs` steps with prompts. The `*_ahead` modules compile
kernels while the engine starts; no step needs them.
"""
