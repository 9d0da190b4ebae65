"""Readers of weight files, and what puts tensors into a model's parameters."""
