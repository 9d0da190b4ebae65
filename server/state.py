"""What the routes share: engine, text, configuration and the delivery of outputs."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath
from typing import TypeVar

from engine.handle import EngineHandle
from engine.version import __version__
from model.grammar.compiler import GrammarCompiler
from server.config import ServerConfig
from server.delivery.delivery import Delivery
from server.errors import APIError
from server.grammars import Grammars
from server.text_bundle import TextBundle

NUM_TEXT_THREADS = 2
"""Tokenizing leaves the GIL to others, so a second one keeps short prompts from waiting behind a long one."""

ResultT = TypeVar("ResultT")


@dataclass
class ServerState:
    """One for the application; `start` completes it once there is an event loop."""

    engine: EngineHandle
    text: TextBundle
    config: ServerConfig
    started: int = field(default_factory=lambda: int(time.time()))
    executor: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(NUM_TEXT_THREADS, thread_name_prefix="octavo-text")
    )
    error_responses: Counter[int] = field(default_factory=Counter)  # by status
    _delivery: Delivery | None = None

    @property
    def delivery(self) -> Delivery:
        assert self._delivery is not None, "the app's lifespan has not begun"
        return self._delivery

    def start(self, delivery: Delivery) -> None:
        """Called once, on the event loop that serves."""
        self._delivery = delivery
        self.engine.subscribe(delivery.on_step, delivery.on_death)

    async def in_thread(self, work: Callable[[], ResultT]) -> ResultT:
        """Run tokenizing and the like beside the event loop."""
        return await self.delivery.loop.run_in_executor(self.executor, work)

    @cached_property
    def grammars(self) -> Grammars:
        engine = self.engine
        return Grammars(
            lambda: GrammarCompiler(self.text.tokenizer, engine.model_config.vocab_size, engine.eos_token_ids)
        )

    @cached_property
    def model_names(self) -> tuple[str, ...]:
        """What requests may call the model; the first is its main name."""
        if self.config.served_model_name:
            return self.config.served_model_name
        model = self.engine.engine_config.model
        return (
            (model,) if model and not PurePath(model).is_absolute() else (PurePath(model or "default").name,)
        )

    @cached_property
    def system_fingerprint(self) -> str:
        """Changes with what may change the tokens that a seed draws."""
        config = self.engine.engine_config
        names = ("model", "revision", "dtype", "weight_dtype", "attention_backend", "tensor_parallel_size")
        setting = [repr(self.engine.model_config), *(str(getattr(config, name)) for name in names)]
        digest = hashlib.blake2b("\n".join(setting).encode(), digest_size=4)
        return f"octavo-{__version__}-{digest.hexdigest()}"

    @cached_property
    def max_prompt_bytes(self) -> int:
        """Longer text cannot fit the context, whatever tokens it has."""
        longest_token = max(map(len, self.text.tokenizer.table.raw))
        return self.engine.max_model_len * longest_token

    def resolve_model(self, name: str | None) -> str:
        """The name to answer with. Raises `APIError` (404)."""
        if not name:
            return self.model_names[0]
        if name not in self.model_names:
            message = f"model {name[:100]!r} does not exist; this server has {', '.join(self.model_names)}"
            raise APIError(404, message, code="model_not_found", param="model")
        return name
