"""The tensors of one step: flat token rows, decodes first, then prompt chunks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine.plan import StepPlan
from engine.runner.device_fields import Uploads
from engine.runner.rows import Rows
from engine.runner.upload import upload
from kernels.attention.interface import AttentionBatch


@dataclass(slots=True)
class StepInputs:
    """What one forward pass takes: T token rows, of which R are sampled from."""

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    last_rows: torch.Tensor  # [R] int64: which of the T rows is the last of each sampled sequence; R >= 1
    attention: AttentionBatch


class InputBuilder:
    """Builds `StepInputs` from a plan with a handful of array operations, whatever the batch size."""

    def __init__(self, rows: Rows, block_size: int) -> None:
        self._rows = rows
        self._block_size = block_size
        self._device = rows.device

    def build(self, plan: StepPlan, uploads: Uploads) -> StepInputs:
        """Brings the rows up to date first, by `uploads`. Waits for nothing on the device."""
        scheduled = plan.scheduled
        for entry in scheduled:
            self._rows.update(entry)
        self._rows.fields.send(uploads)
        rows = np.array([entry.row for entry in scheduled], dtype=np.int64)
        starts = np.array([entry.start for entry in scheduled], dtype=np.int64)
        query_lens = np.array([entry.num_tokens for entry in scheduled], dtype=np.int64)
        ends = query_lens.cumsum()

        # [T]: which sequence each token row belongs to, and its position there
        owner = np.repeat(np.arange(len(scheduled)), query_lens)
        positions = starts[owner] + np.arange(len(owner)) - (ends - query_lens)[owner]
        blocks = self._rows.block_tables[rows[owner], positions // self._block_size].astype(np.int64)
        slots = blocks * self._block_size + positions % self._block_size

        context_lens = starts + query_lens
        max_blocks = -(-int(context_lens.max()) // self._block_size)
        samples = np.array([entry.samples for entry in scheduled], dtype=bool)
        samples[-1] |= not samples.any()  # so that there is a row to compute in the last layer
        attention = AttentionBatch(
            num_decodes=len(plan.decodes),
            query_lens=query_lens.tolist(),
            context_lens=context_lens.tolist(),
            block_tables=self._upload(self._rows.block_tables[rows, :max_blocks]),
            slots=self._upload(slots),
        )
        return StepInputs(
            token_ids=self._token_ids(plan, rows),
            positions=self._upload(positions),
            last_rows=self._upload(ends[samples] - 1),
            attention=attention,
        )

    def _token_ids(self, plan: StepPlan, rows: np.ndarray) -> torch.Tensor:
        """Decodes feed their row's last sampled token, which may exist on the device only."""
        num_decodes = len(plan.decodes)
        decoded = self._rows.last_token[self._upload(rows[:num_decodes])]
        if not plan.chunks:
            return decoded
        prompt: list[int] = []
        for chunk in plan.chunks:
            prompt += chunk.sequence.token_ids[chunk.start : chunk.start + chunk.num_tokens]
        return torch.cat([decoded, self._upload(np.array(prompt, dtype=np.int64))])

    def _upload(self, array: np.ndarray) -> torch.Tensor:
        return upload(array, self._device)
