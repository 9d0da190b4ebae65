"""From a parsed body to a `Generation` that the engine can take; most of it runs in a thread."""
