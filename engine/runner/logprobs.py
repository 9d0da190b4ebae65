"""Log-probabilities of sampled and of prompt tokens, computed only for the rows that ask."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from engine.request import TokenLogprobs

_ROWS_AT_ONCE = 256  # prompt rows whose logits are held at a time: 256 x 152k x fp32 is 150 MB


@dataclass(slots=True)
class LogprobTensors:
    """`chosen` [R] and, N wide, `top_logprobs` and `top_token_ids` [R, N], on the device or on the host."""

    chosen: torch.Tensor
    top_logprobs: torch.Tensor
    top_token_ids: torch.Tensor

    def to_host(self) -> LogprobTensors:
        tensors = (self.chosen, self.top_logprobs, self.top_token_ids)
        return LogprobTensors(*(tensor.to("cpu", non_blocking=True) for tensor in tensors))

    def to_lists(self, wanted: Seq[int]) -> list[TokenLogprobs]:
        """`wanted[i]`: how many alternatives row i asked for. Reads the host copy."""
        chosen = self.chosen.tolist()
        top_logprobs, top_token_ids = self.top_logprobs.tolist(), self.top_token_ids.tolist()
        return [
            TokenLogprobs(chosen[i], top_token_ids[i][:count], top_logprobs[i][:count])
            for i, count in enumerate(wanted)
        ]


def gather_logprobs(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> LogprobTensors:
    """Log-softmax of raw `logits` [R, V] fp32 at `token_ids` [R], with the `num_top` most likely tokens."""
    num_top = min(num_top, logits.shape[-1])
    top_logits, top_token_ids = logits.topk(num_top, dim=-1)  # of the logits: ties come out alike everywhere
    log_mass = logits.logsumexp(dim=-1, keepdim=True)
    chosen = logits.gather(1, token_ids.unsqueeze(1)) - log_mass
    return LogprobTensors(chosen.squeeze(1), top_logits - log_mass, top_token_ids)


def concatenate(parts: list[LogprobTensors]) -> LogprobTensors:
    return LogprobTensors(
        torch.cat([part.chosen for part in parts]),
        torch.cat([part.top_logprobs for part in parts]),
        torch.cat([part.top_token_ids for part in parts]),
    )


def slices(num_rows: int) -> list[slice]:
    """Row ranges whose logits fit in memory together; one, empty, if there are no rows."""
    return [slice(i, min(i + _ROWS_AT_ONCE, num_rows)) for i in range(0, max(num_rows, 1), _ROWS_AT_ONCE)]
