"""What the time of a step depends on: a handful of numbers, taken from a plan or from a logged step."""

from __future__ import annotations

from typing import NamedTuple

from engine.plan import StepPlan
from engine.record import StepEntry


class StepShape(NamedTuple):
    decode_rows: int
    decode_context: int  # tokens attended to, summed over the decodes
    num_chunks: int
    prompt_rows: int
    chunk_work: int  # query-key pairs of the chunks' attention: rows * (start + rows / 2), summed
    longest_context: int = 0  # of one decode

    @property
    def num_sequences(self) -> int:
        return self.decode_rows + self.num_chunks

    @property
    def total_rows(self) -> int:
        return self.decode_rows + self.prompt_rows


def shape_of_plan(plan: StepPlan) -> StepShape:
    decodes, prompt_rows, work = plan.decodes, 0, 0
    for _, _, start, num_tokens, _ in plan.chunks:
        prompt_rows += num_tokens
        work += num_tokens * (start + num_tokens // 2)
    longest = decodes.longest_context if decodes else 0
    return StepShape(len(decodes), decodes.total_context, len(plan.chunks), prompt_rows, work, longest)


def shape_of_entry(entry: StepEntry) -> StepShape:
    num_decodes = len(entry.is_prefill) - sum(entry.is_prefill)  # decodes come first
    starts, rows = entry.num_cached_tokens, entry.num_scheduled_tokens
    chunks = list(zip(starts[num_decodes:], rows[num_decodes:], strict=True))
    return StepShape(
        decode_rows=num_decodes,
        decode_context=sum(starts[:num_decodes]) + num_decodes,
        num_chunks=len(chunks),
        prompt_rows=sum(rows[num_decodes:]),
        chunk_work=sum(num_rows * (start + num_rows // 2) for start, num_rows in chunks),
        longest_context=max(starts[:num_decodes], default=-1) + 1,
    )
