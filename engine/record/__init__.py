"""The arrival-time record: what happened to each request and each step, and when."""

from engine.record.request_record import RequestRecord

__all__ = ["RequestRecord"]
