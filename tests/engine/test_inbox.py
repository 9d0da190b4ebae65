"""Commands come out in order, some at a time."""

from __future__ import annotations

import threading

from engine.inbox import MAX_TAKEN, Abort, Inbox


def test_a_burst_is_taken_in_parts_and_in_order() -> None:
    inbox = Inbox()
    commands = [Abort(str(i)) for i in range(2 * MAX_TAKEN + 1)]
    for command in commands:
        inbox.put(command)
    parts = [list(inbox.take()) for _ in range(4)]
    assert [len(part) for part in parts] == [MAX_TAKEN, MAX_TAKEN, 1, 0]
    assert [command for part in parts for command in part] == commands


def test_it_waits_for_the_first_command_only() -> None:
    inbox = Inbox()
    assert list(inbox.take(wait_s=0.001)) == []
    threading.Timer(0.01, inbox.put, [Abort("a")]).start()
    assert list(inbox.take(wait_s=10.0)) == [Abort("a")]
