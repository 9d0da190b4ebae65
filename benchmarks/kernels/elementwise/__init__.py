"""Checks, timings and tile sweeps of norm, activation, rotary and sampling, on the card it runs on."""
