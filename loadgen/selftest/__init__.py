"""Measures the measurement, against a server that knows the truth."""
