"""Reported case of the end of a server: SIGTERM loses nothing that is in flight."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.end_to_end.conftest import tiny_flags
from tests.support.api import COMPLETIONS, joined_token_ids, post, stream_complete
from tests.support.process import serving, wait_until

NUM_TOKENS = 450


def test_h3_sigterm_lets_streams_finish_and_refuses_new_requests(case_model: tuple[Path, Any]) -> None:
    with serving(*tiny_flags(case_model[0]), "--max-num-seqs", "4") as server, ThreadPoolExecutor(4) as pool:
        calls = [
            pool.submit(stream_complete, server, f"Stream {i}", max_tokens=NUM_TOKENS, ignore_eos=True)
            for i in range(4)
        ]
        wait_until(lambda: server.metric("num_requests_running") == 4, 20)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.http.get("/health").status_code == 503, 10)
        refused = post(server, COMPLETIONS, {"prompt": "Too late", "max_tokens": 1})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert refused.headers["retry-after"]
        for call in calls:
            events = call.result()
            assert len(joined_token_ids(events)) == NUM_TOKENS
            assert events[-1]["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(30) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.base_url}/health")
