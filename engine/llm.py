"""Offline generation: give it prompts, get texts, no server in between."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence as Seq
from functools import lru_cache
from queue import SimpleQueue
from typing import Any, TypedDict

import numpy as np
from tqdm import tqdm

from engine.block_manager import hash_blocks
from engine.build import build_engine
from engine.config import EngineConfig
from engine.record import RequestRecord
from engine.request import NO_TOKEN, FinishReason, Request, StepOutput
from engine.sampling_params import SamplingParams
from engine.text import open_text
from model.grammar.compiler import GrammarCompiler
from model.source import resolve_model
from model.text.tokenizer import Tokenizer, load_tokenizer

Prompt = str | Seq[int]


class Generation(TypedDict):
    """One finished text. `finish_reason` is "stop", "length", or "error" for a structured output that took
    too much work to follow.
    """

    text: str
    token_ids: list[int]
    finish_reason: str


class LLM:
    """A model to generate with, `LLM(path).generate(prompts, params)`; the engine thread runs until `close`.

    `options` are the fields of `EngineConfig`. Raises `ConfigError` or `ModelError`.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        config = EngineConfig(model=model, **options)
        source = resolve_model(model, config.revision, with_weights=config.load_format != "dummy")
        self.tokenizer = load_tokenizer(source)
        self.engine = build_engine(config, None, source, self.tokenizer.eos_token_ids)
        self._outputs: SimpleQueue[StepOutput | BaseException] = SimpleQueue()
        self._request_ids = itertools.count()
        self.engine.subscribe(self._outputs.put, self._outputs.put)
        self.engine.start()
        # Made when the first structured output is asked for.
        self._compiler = lru_cache(maxsize=1)(self._make_compiler)
        self._compile = lru_cache(maxsize=128)(lambda source: self._compiler().compile(source))

    def generate(
        self,
        prompts: Seq[Prompt],
        sampling_params: SamplingParams | Seq[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[Generation]:
        """Texts in the order of the prompts, each a text or a list of token ids.

        One `SamplingParams` for all, or one for each. Raises `PromptTooLongError`, `ParameterError`,
        `GrammarError` for structured outputs that cannot be had, and `RuntimeError` if the engine dies.
        """
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            sampling_params = [sampling_params or SamplingParams()] * len(prompts)
        open_texts: dict[int, _Text] = {}
        texts = []
        pairs = list(zip(prompts, sampling_params, strict=True))
        with tqdm(total=len(pairs), desc="generating", unit="prompt", disable=not use_tqdm) as bar:
            for prompt, params in pairs:
                # The engine's queue is bounded; what does not fit waits here.
                while len(open_texts) >= self.engine.engine_config.max_queue:
                    self._take(open_texts, bar)
                texts.append(self._submit(prompt, params, open_texts))
            while open_texts:
                self._take(open_texts, bar)
        return [text.generation() for text in texts]

    def close(self) -> None:
        """End the engine. Nothing can be generated afterwards."""
        self.engine.shutdown()

    def _submit(self, prompt: Prompt, params: SamplingParams, open_texts: dict[int, _Text]) -> _Text:
        params.check_vocabulary(self.engine.model_config.vocab_size)
        prompt_ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        block_size = self.engine.engine_config.block_size
        assert block_size is not None
        prompt_array = np.array(prompt_ids, dtype=np.int32)
        record = RequestRecord(f"llm-{next(self._request_ids)}", arrived_ns=time.monotonic_ns())
        wanted = params.structured_outputs
        request = Request(
            record.request_id,
            prompt_array,
            params,
            hash_blocks(prompt_array, block_size),
            record,
            constraint=None if wanted is None else self._compile(wanted.source()),
        )
        text = _Text(self.tokenizer, prompt_ids, params)
        open_texts[request.sequence_ids[0]] = text
        self.engine.submit(request)
        return text

    def _make_compiler(self) -> GrammarCompiler:
        vocab_size = self.engine.model_config.vocab_size
        return GrammarCompiler(self.tokenizer, vocab_size, self.engine.eos_token_ids)

    def _take(self, open_texts: dict[int, _Text], bar: tqdm[Any]) -> None:
        """Wait for one step's tokens and hand them out."""
        output = self._outputs.get()
        if isinstance(output, BaseException):
            raise RuntimeError("the engine has died") from output
        columns = zip(output.sequence_ids, output.token_ids, output.finish_reasons, strict=True)
        for sequence_id, token_id, reason in columns:
            text = open_texts.get(sequence_id)
            if text is None:  # tokens that were under way when a stop string ended it
                continue
            text.add(token_id, reason)
            if text.finish_reason is not None:
                if reason is None:
                    self.engine.finish_sequence(sequence_id)
                del open_texts[sequence_id]
                bar.update()


class _Text:
    """One continuation as it grows."""

    def __init__(self, tokenizer: Tokenizer, prompt_ids: list[int], params: SamplingParams) -> None:
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self._parts: list[str] = []
        self._stream = open_text(tokenizer, prompt_ids, params)

    def add(self, token_id: int, reason: FinishReason | None) -> None:
        if token_id != NO_TOKEN:
            self.token_ids.append(token_id)
            self._parts.append(self._stream.push(token_id, is_stop=reason is FinishReason.STOP))
        if reason is not None:
            self._parts.append(self._stream.finish())
        self.finish_reason = FinishReason.STOP if self._stream.matched is not None else reason

    def generation(self) -> Generation:
        assert self.finish_reason is not None
        return {
            "text": "".join(self._parts),
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason.value,
        }
