"""A long random load on a small pool: greedy answers equal those alone, and nothing is lost."""
