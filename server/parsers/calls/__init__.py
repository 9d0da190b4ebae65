"""Readers of a single tool call, by how it is written."""
