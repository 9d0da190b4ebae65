"""Checks, timings and tile sweep of the small-batch decode step, on the card it runs on."""
