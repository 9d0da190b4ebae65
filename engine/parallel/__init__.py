"""Tensor parallelism: rank 0 lives in the daemon, the others are worker processes that repeat its steps."""
