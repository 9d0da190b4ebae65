"""Measured kernel configurations, as data: one JSON file for each family of kernels, keyed by device."""
