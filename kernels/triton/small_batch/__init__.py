"""The kernels of a decode step of few rows, in the order of `model/small_batch.py`: five to eight a layer."""
