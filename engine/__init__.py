"""The engine: requests, KV blocks, steps. Importing it pulls in neither torch nor HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from engine.llm import LLM
    from engine.structured_outputs import StructuredOutputsParams

__all__ = ["LLM", "SamplingParams", "StructuredOutputsParams"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from engine.environment import prepare_environment

        prepare_environment()
        from engine.llm import LLM

        return LLM
    if name == "StructuredOutputsParams":
        from engine.structured_outputs import StructuredOutputsParams

        return StructuredOutputsParams
    raise AttributeError(f"module 'engine' has no attribute {name!r}")
