"""Triton kernels, one idea a file, each with a reference in plain torch. Every module here imports triton.

Those in `small_batch/` make up whole decode steps of few rows; the others serve every step.
"""
