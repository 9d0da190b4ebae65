"""How many examples a property test draws: few of them in `make test`, more in `make test-thorough`."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

_FACTOR = int(os.environ.get("TEST_EXAMPLES_FACTOR", "1"))


def examples(count: int, **options: Any) -> settings:
    """`count` examples, the same in each run, or that many times TEST_EXAMPLES_FACTOR, new ones each time."""
    return settings(max_examples=count * _FACTOR, derandomize=_FACTOR == 1, deadline=None, **options)
