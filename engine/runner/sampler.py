"""Samples one token for each row of logits, launching only what some live row asks for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch

from engine.plan import DecodeGroup, SampledSequences
from engine.runner.logprobs import LogprobTensors, gather_logprobs
from engine.runner.rows import Rows, Wants
from engine.runner.token_masks import MaskBuilder, MaskSource
from engine.runner.upload import upload
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence
from kernels import sampling


@dataclass(slots=True)
class _BatchNeeds:
    """What the sequences of one batch ask of the sampler; stays valid while the membership does.

    Lists hold indices into the batch. Index tensors are made once, on the device.
    """

    of: SampledSequences
    group: DecodeGroup | None  # the members, if all of them decode: later steps may have the same
    rows: torch.Tensor  # [R] int64
    random: torch.Tensor | None = None  # indices of rows that draw; None when all are greedy
    restricted: torch.Tensor | None = None  # indices among the drawing rows with top-k, top-p or min-p
    penalized: torch.Tensor | None = None
    bias_at: tuple[torch.Tensor, torch.Tensor] | None = None  # batch index and token id of each biased logit
    bias: torch.Tensor | None = None
    min_tokens: list[int] = field(default_factory=list)
    constrained: list[int] = field(default_factory=list)
    constrained_at: torch.Tensor | None = None
    logprobs: list[int] = field(default_factory=list)
    logprobs_at: torch.Tensor | None = None
    num_top_logprobs: int = 0


@dataclass(slots=True)
class Sampled:
    """What came of sampling one batch, on the device until it is sent."""

    token_ids: torch.Tensor  # [R] int64, behind which there may be others
    logprobs: LogprobTensors | None = None  # rows in the order of `logprobs_of`
    logprobs_of: list[int] = field(default_factory=list)  # batch indices that asked
    stuck: list[int] = field(default_factory=list)  # ids of sequences whose constraint cannot be followed


class Sampler:
    """Draws by each row's parameters, and by the masks of constrained sequences."""

    def __init__(self, rows: Rows, eos_token_ids: frozenset[int]) -> None:
        self._rows = rows
        self._eos_token_ids = eos_token_ids
        self._device = rows.device
        self.masks: MaskSource = MaskBuilder(rows.vocab_size, eos_token_ids)
        self._minus_infinity = torch.full((), float("-inf"), device=rows.device)
        self._needs: _BatchNeeds | None = None
        self._wants: tuple[DecodeGroup | None, Wants] = (None, Wants.MORE)  # of the last group asked about

    def wants(self, group: DecodeGroup) -> Wants:
        """The most that one of these sequences asks for."""
        if group is not self._wants[0]:
            self._wants = (group, Wants(self._rows.wants[group.rows].max()))
        return self._wants[1]

    def is_constrained(self, scheduled: SampledSequences) -> bool:
        """Whether `sample` needs to know the tokens of all steps before, for one of these sequences."""
        return bool(self._needs_of(scheduled).constrained)

    def sample(self, logits: torch.Tensor, scheduled: SampledSequences) -> Sampled:
        """`logits` [R, V] fp32 belong to `scheduled`, R long; remembers each row's token on the device."""
        needs = self._needs_of(scheduled)
        adjusted = self._adjust(logits, needs, scheduled)
        stuck: list[int] = []
        if needs.constrained_at is not None:
            masks = self.masks.build([scheduled[i] for i in needs.constrained])
            adjusted = sampling.apply_token_masks(
                adjusted, needs.constrained_at, upload(masks.bits, self._device)
            )
            stuck = masks.stuck
        token_ids = self._choose(adjusted, needs, scheduled)
        self._rows.last_token[needs.rows] = token_ids
        if needs.penalized is not None:
            self._rows.penalties.count(needs.rows[needs.penalized], token_ids[needs.penalized])
        logprobs = None
        if needs.logprobs_at is not None:
            at = needs.logprobs_at
            logprobs = gather_logprobs(logits[at], token_ids[at], needs.num_top_logprobs)
        return Sampled(token_ids, logprobs, needs.logprobs, stuck)

    def _adjust(self, logits: torch.Tensor, needs: _BatchNeeds, scheduled: SampledSequences) -> torch.Tensor:
        """Logits after penalties, bias and min_tokens; the raw ones stay as they are, for the logprobs."""
        adjusted = logits
        if needs.penalized is not None:
            state, rows = self._rows.penalties, needs.rows[needs.penalized]
            adjusted = adjusted.clone()
            adjusted[needs.penalized] = sampling.apply_penalties(
                logits[needs.penalized],
                state.output_counts[rows],
                state.in_prompt[rows],
                state.repetition[rows],
                state.frequency[rows],
                state.presence[rows],
            )
        if needs.bias_at is not None and needs.bias is not None:
            adjusted = adjusted.index_put(needs.bias_at, needs.bias, accumulate=True)
        forbidden = self._forbidden_ends(needs, scheduled)
        if forbidden is not None:
            adjusted = adjusted.index_put(forbidden, self._minus_infinity)
        return adjusted

    def _forbidden_ends(
        self, needs: _BatchNeeds, scheduled: SampledSequences
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Where sequences below their min_tokens would end: every EOS and stop id of each."""
        at: list[int] = []
        tokens: list[int] = []
        for i in needs.min_tokens:
            entry = scheduled[i]
            params = entry.sequence.params
            generated = entry.start + entry.num_tokens - entry.sequence.num_prompt_tokens
            if generated < params.min_tokens:
                ends = self._ends(params)
                at += [i] * len(ends)
                tokens += ends
        return (self._index(at), self._index(tokens)) if at else None

    def _ends(self, params: SamplingParams) -> list[int]:
        eos = () if params.ignore_eos else self._eos_token_ids
        return [*eos, *params.stop_token_ids]

    def _choose(self, logits: torch.Tensor, needs: _BatchNeeds, scheduled: SampledSequences) -> torch.Tensor:
        """One token for each row of [R, V], [R] int64; a CPU does for a row only what that asks for."""
        if needs.random is None:
            return sampling.most_likely(logits)
        positions = self._index(scheduled.positions)
        if logits.is_cuda:
            return self._choose_at_once(logits, needs, positions)
        token_ids = sampling.most_likely(logits)
        rows = needs.rows[needs.random]
        drawn_logits = logits[needs.random]
        drawn_logits -= drawn_logits.amax(dim=-1, keepdim=True)  # a tiny temperature must not overflow
        scaled = drawn_logits.div_(self._rows.temperature[rows].unsqueeze(1))
        if needs.restricted is not None:
            at = needs.restricted
            state, restricted_rows = self._rows, rows[at]
            scaled[at] = sampling.restrict(
                scaled[at],
                state.top_k[restricted_rows],
                state.top_p[restricted_rows],
                state.min_p[restricted_rows],
            )
        token_ids[needs.random] = sampling.draw(scaled, self._rows.seed[rows], positions[needs.random])
        return token_ids

    def _choose_at_once(
        self, logits: torch.Tensor, needs: _BatchNeeds, positions: torch.Tensor
    ) -> torch.Tensor:
        """All rows in the same few kernels, each by its own parameters."""
        state, rows = self._rows, needs.rows
        restriction = None
        if needs.restricted is not None:
            restriction = sampling.Restriction(state.top_k[rows], state.top_p[rows], state.min_p[rows])
        return sampling.sample_tokens(
            logits, state.temperature[rows], state.seed[rows], positions, restriction
        )

    def _needs_of(self, scheduled: SampledSequences) -> _BatchNeeds:
        """Looked up anew only where the membership has changed."""
        needs, group = self._needs, scheduled.group
        if needs is None or not (scheduled is needs.of or (group is not None and group is needs.group)):
            needs = self._needs = self._gather_needs(scheduled)
        return needs

    def _gather_needs(self, scheduled: SampledSequences) -> _BatchNeeds:
        rows = scheduled.rows
        needs = _BatchNeeds(scheduled, scheduled.group, self._index(rows))
        random = np.flatnonzero(self._rows.draws[rows])
        if len(random):
            needs.random = self._index(random)
        wanting = np.flatnonzero(self._rows.wants[rows]).tolist()
        if wanting:
            self._gather_extras(needs, [(i, scheduled[i].sequence) for i in wanting], random.tolist())
        return needs

    def _gather_extras(
        self, needs: _BatchNeeds, wanting: list[tuple[int, Sequence]], random: list[int]
    ) -> None:
        """All but temperatures; `wanting` are (index, sequence) of those that ask for any of it."""
        params = [(i, sequence.params) for i, sequence in wanting]
        restricting = {i for i, p in params if p.restricts_choice}
        needs.restricted = self._index_or_none([j for j, i in enumerate(random) if i in restricting])
        needs.penalized = self._index_or_none([i for i, p in params if p.has_penalties])
        biases = [(i, token, bias) for i, p in params for token, bias in p.logit_bias.items()]
        if biases:
            at, tokens, values = zip(*biases, strict=True)
            needs.bias_at = (self._index(at), self._index(tokens))
            needs.bias = upload(np.array(values, dtype=np.float32), self._device)
        needs.constrained = [i for i, sequence in wanting if sequence.matcher is not None]
        needs.constrained_at = self._index_or_none(needs.constrained)
        # The masks of constrained sequences know of min_tokens.
        needs.min_tokens = [i for i, s in wanting if s.params.min_tokens > 0 and s.matcher is None]
        needs.logprobs = [i for i, p in params if p.logprobs is not None]
        needs.logprobs_at = self._index_or_none(needs.logprobs)
        needs.num_top_logprobs = max(p.logprobs or 0 for _, p in params)

    def _index(self, values: Iterable[int]) -> torch.Tensor:
        return upload(np.asarray(values, dtype=np.int64), self._device)

    def _index_or_none(self, values: list[int]) -> torch.Tensor | None:
        return self._index(values) if values else None
