"""Incremental readers of what chat models write: text in, events out. They know neither HTTP nor tokens."""
