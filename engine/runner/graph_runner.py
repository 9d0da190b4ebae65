"""Steps by replaying CUDA graphs: decodes alone, or prompt chunks with the decodes beside them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from engine.config import SchedulerConfig
from engine.plan import StepPlan
from engine.runner.capture import Capture
from engine.runner.compile_ahead import run_side_by_side
from engine.runner.decode_tables import DecodeTables
from engine.runner.mixed_graphs import MixedGraphs
from engine.runner.model_runner import ModelRunner
from engine.runner.rows import Wants
from engine.runner.sampler import Sampled
from engine.runner.step_launch import StepLaunch
from kernels.attention.interface import AttentionBackend, GraphAttentionBackend
from kernels.decode_rows import gather_sampling_rows
from kernels.gpu import gpu_of
from kernels.sampling import Restriction, sample_tokens
from model.decoder import Decoder
from model.parallel import on_its_own

if TYPE_CHECKING:
    from model.small_batch import SmallBatchDecode

# How often attention splits a context is fixed at capture, so long contexts have graphs of their own. Beyond
# 64 rows there are programs enough without splitting any but the longest.
_FEW_ROWS = 64
_CONTEXTS_OF_FEW = (512, 1536, 4096)
_CONTEXTS_OF_MANY = (8192,)


@dataclass(frozen=True, slots=True)
class _DrawGraph:
    replay: Callable[[], None]
    token_ids: torch.Tensor  # [size] int64

    def draw(self) -> Sampled:
        self.replay()
        return Sampled(self.token_ids)


@dataclass(frozen=True, slots=True)
class _DecodeGraph:
    forward: Callable[[], None]
    logits: torch.Tensor  # [size, vocab_size]
    draws: dict[Wants, _DrawGraph]  # for rows that ask for no more than that


def _small_batch_decode(decoder: Decoder) -> SmallBatchDecode | None:
    """The fused kernels for few rows, where they cover the model."""
    weight = decoder.lm_head.weight
    if gpu_of(weight.device) is None:
        return None
    from model.small_batch import SmallBatchDecode  # needs triton

    if not SmallBatchDecode.supports(decoder.config, weight.dtype, decoder.tp):
        return None
    return SmallBatchDecode(decoder)


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Batch sizes to capture: close together where a padded row costs most, `max_num_seqs` included."""
    steps = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256]
    steps += range(320, max_num_seqs + 1, 64)
    return [size for size in steps if size < max_num_seqs] + [max_num_seqs]


class GraphModelRunner(ModelRunner):
    """Replays a graph for the padded number of decodes, or one of `MixedGraphs`; only huge steps run eagerly.

    Needs an attention backend that can plan a decode on the device (`GraphAttentionBackend`).
    """

    def __init__(
        self,
        decoder: Decoder,
        attention: AttentionBackend,
        config: SchedulerConfig,
        eos_token_ids: frozenset[int],
        seed: int,
        capture: Capture,
    ) -> None:
        """`capture` turns a function over fixed tensors into something that can be replayed."""
        super().__init__(decoder, attention, config, eos_token_ids, seed)
        assert isinstance(attention, GraphAttentionBackend)
        self._graph_attention: GraphAttentionBackend = attention
        self._block_size = config.block_size
        self._max_context = config.max_model_len
        self._sizes = graph_sizes(config.max_num_seqs)
        self._tables = DecodeTables(self._rows, config.block_size, spare_block=config.num_blocks)
        self._capture = capture
        self._rows.fields.capture(capture)
        self._small_batch = _small_batch_decode(decoder)
        self._graphs: dict[tuple[int, int], _DecodeGraph] = {}
        self._mixed_graphs = MixedGraphs(
            decoder,
            attention,
            self._rows,
            self._tables,
            config.block_size,
            max_rows=config.max_num_batched_tokens,
            capture=capture,
        )

    @property
    def padding(self) -> dict[str, Any]:
        return {"decode_sizes": self._sizes, **self._mixed_graphs.padding}

    def capture_all(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Capture every graph that `launch` may want; one that is missing is captured when it is wanted."""
        decodes = [(size, context) for size in reversed(self._sizes) for context in self._contexts(size)]
        if self._small_batch is not None:
            # A dozen kernels for each size and context, which compile one after the other otherwise.
            small = [key for key in decodes if self._small_batch.takes(*key)]
            self._tables.empty_batch()
            with on_its_own(self._decoder), self._decoder.shortened():
                run_side_by_side([partial(self._forward, *key) for key in small], self._device)
        captures: list[Callable[[], object]] = [
            partial(self._mixed_graphs.graph, *key) for key in self._mixed_graphs.keys
        ]
        captures += [partial(self._graph, size, context) for size, context in decodes]
        for done, capture in enumerate(captures, start=1):
            capture()
            if progress is not None:
                progress(done, len(captures))

    def close(self) -> None:
        """Frees the graphs too, and with them what their kernels hold of libraries."""
        super().close()
        self._graphs.clear()
        self._mixed_graphs.clear()

    def launch(self, plan: StepPlan) -> StepLaunch:
        """Note what has changed in the tables that graphs read, send it in one upload, and replay."""
        launch = self._begin()
        self._tables.update(plan.decodes.that_begin_a_block(self._block_size))
        if plan.chunks:
            self._run_chunks(plan, launch)
        else:
            self._decode(plan, launch)
        launch.close()
        return launch

    @torch.inference_mode()
    def _run_chunks(self, plan: StepPlan, launch: StepLaunch) -> None:
        """And the decodes beside them."""
        self._tables.update(plan.chunks)
        self._tables.set_lengths([chunk for chunk in plan.chunks if chunk.samples])
        self._tables.set_batch(plan.decodes.group.rows, self._size(plan))
        self._rows.fields.send(launch.buffers)
        sampled = plan.sampled
        key = None if plan.scores_prompts else self._mixed_graphs.key_of(plan)
        if key is None:  # so long that the host keeps up, or in need of every row's logits
            self._run(plan, launch)
            self._tables.advance()
        else:
            logits = self._mixed_graphs.run(plan, key, launch.buffers)
            if sampled:
                self._sample_rows(launch, logits, sampled)

    def _padded(self, last_rows: torch.Tensor) -> torch.Tensor:
        """To a size of decodes, whose kernels have been loaded.

        Which ones cuBLAS takes depends on the number of rows, and before CUDA loads another one, it waits for
        all steps that are enqueued.
        """
        size = self._sizes[bisect_left(self._sizes, len(last_rows))]
        return torch.nn.functional.pad(last_rows, (0, size - len(last_rows)))

    def _decode(self, plan: StepPlan, launch: StepLaunch) -> None:
        """Without one call of torch where nobody asks for more than there is a graph for."""
        size = self._size(plan)
        longest = plan.decodes.longest_context
        context = next(context for context in self._contexts(size) if context >= longest)
        graph = self._graph(size, context)
        self._tables.set_batch(plan.decodes.group.rows, size)  # after a capture, which empties it
        self._rows.fields.send(launch.buffers)
        graph.forward()
        draws = graph.draws.get(self._sampler.wants(plan.decodes.group))
        if draws is not None:
            launch.sample(plan.sampled, draws.draw)
        else:
            self._sample(graph.logits, plan, launch)

    @torch.inference_mode()
    def _sample(self, logits: torch.Tensor, plan: StepPlan, launch: StepLaunch) -> None:
        self._sample_rows(launch, logits[: len(plan.decodes)].float(), plan.sampled)
        self._tables.advance()

    def _size(self, plan: StepPlan) -> int:
        """To which the batch of its decodes is padded."""
        return self._sizes[bisect_left(self._sizes, len(plan.decodes))]

    def _contexts(self, size: int) -> list[int]:
        """Context lengths with a graph of their own, the longest last."""
        bounds = _CONTEXTS_OF_FEW if size <= _FEW_ROWS else _CONTEXTS_OF_MANY
        return [*(bound for bound in bounds if bound < self._max_context), self._max_context]

    def _graph(self, size: int, context: int) -> _DecodeGraph:
        graph = self._graphs.get((size, context))
        if graph is None:
            graph = self._graphs[size, context] = self._capture_graph(size, context)
        return graph

    @torch.inference_mode()
    def _capture_graph(self, size: int, context: int) -> _DecodeGraph:
        self._tables.empty_batch()
        forward, logits = self._capture(lambda: self._forward(size, context))
        draws = {
            wants: _DrawGraph(*self._capture(partial(self._draw, logits, wants)))
            for wants in (Wants.TEMPERATURE, Wants.RESTRICTION)
        }
        return _DecodeGraph(forward, logits, draws)

    def _forward(self, size: int, context: int) -> torch.Tensor:
        """Logits [size, vocab_size] of one token for each row of the batch."""
        rows = self._tables.batch[:size]
        gathered, batch = self._tables.gather(rows, context)
        token_ids, positions = gathered.token_ids, gathered.positions
        if self._small_batch is not None and self._small_batch.takes(size, context):
            logits = torch.empty(size, self._rows.vocab_size, dtype=torch.float32, device=self._device)
            self._small_batch.run(token_ids, positions, batch, logits)
            return logits
        hidden = self._decoder(token_ids, positions, self._graph_attention.plan_decode(batch))
        return self._decoder.head(hidden)

    def _draw(self, logits: torch.Tensor, wants: Wants) -> torch.Tensor:
        """Draw, remember each row's token, move the lengths on."""
        rows, state = self._tables.batch[: len(logits)], self._rows
        asked = gather_sampling_rows(rows, state.temperature, state.seed, self._tables.lengths)
        restriction = None
        if wants is Wants.RESTRICTION:
            restriction = Restriction(state.top_k[rows], state.top_p[rows], state.min_p[rows])
        token_ids = sample_tokens(logits, asked.temperature, asked.seeds, asked.positions, restriction)
        self._tables.record(rows, token_ids)
        return token_ids
