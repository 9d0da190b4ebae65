"""Checks, timings and tile sweeps of paged attention, on the card it runs on."""
