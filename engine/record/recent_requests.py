"""The records of the newest requests, finished or not, for whoever asks what became of one."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from engine.record.request_record import RequestRecord


class RecentRequests:
    """Keeps the last `capacity` records that were added, by request id. Any thread may use it."""

    def __init__(self, capacity: int = 512) -> None:
        self._capacity = capacity
        self._records: OrderedDict[str, RequestRecord] = OrderedDict()
        self._lock = Lock()

    def add(self, record: RequestRecord) -> None:
        """Add a record when its request arrives; later changes of it are seen."""
        with self._lock:
            self._records[record.request_id] = record
            if len(self._records) > self._capacity:
                self._records.popitem(last=False)

    def get(self, request_id: str) -> RequestRecord | None:
        with self._lock:
            return self._records.get(request_id)

    def newest(self, limit: int) -> list[RequestRecord]:
        """At most `limit` records, the newest first."""
        with self._lock:
            records = list(self._records.values())
        return records[::-1][:limit]
