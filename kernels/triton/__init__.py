"""Triton kernels, one idea a file; each has a reference in plain torch. Imports triton: for GPUs, and tests."""
