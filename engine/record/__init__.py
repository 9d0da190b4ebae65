"""The arrival-time record: what happened to each request and each step, and when."""

from engine.record.counters import EngineCounters
from engine.record.event_log import EventLog
from engine.record.recent_requests import RecentRequests
from engine.record.request_record import RequestRecord
from engine.record.step_log import StepEntry, StepLog

__all__ = ["EngineCounters", "EventLog", "RecentRequests", "RequestRecord", "StepEntry", "StepLog"]
