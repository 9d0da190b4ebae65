"""Triton kernels, one idea a file, each with a reference in plain torch. Every module here imports triton."""
