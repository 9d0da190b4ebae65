"""Which tokens constrained sequences may get: rank 0 follows their constraints, and tells the others."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from engine.parallel.link import Link
from engine.plan import ScheduledSequence
from engine.runner.token_masks import MaskSource, TokenMasks


class SentMasks:
    """Rank 0's `MaskSource`: every mask that it asks for goes to all ranks."""

    def __init__(self, masks: MaskSource, send: Callable[[bytes], None]) -> None:
        self._masks = masks
        self._send = send

    def build(self, constrained: list[ScheduledSequence]) -> TokenMasks:
        masks = self._masks.build(constrained)
        self._send(pickle.dumps(masks.bits))
        return masks


class ReceivedMasks:
    """The other ranks': the next message is the masks of the same sequences."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def build(self, constrained: list[ScheduledSequence]) -> TokenMasks:
        number, payload = self._link.receive()
        self._link.send(number)
        return TokenMasks(pickle.loads(payload))


class ElsewhereMatcher:
    """Stands in a copy of a sequence for the matcher that rank 0 has."""

    num_tokens = 0

    def advance(self, token_ids: list[int]) -> None:
        raise AssertionError("rank 0 follows the constraints")

    @classmethod
    def fill(cls, matchers: list[Any], masks: np.ndarray) -> list[bool]:
        raise AssertionError("rank 0 follows the constraints")
