"""The text side of a sequence, opened as its sampling parameters want it."""

from __future__ import annotations

from collections.abc import Sequence

from engine.sampling_params import SamplingParams
from model.text.text_stream import TextStream
from model.text.tokenizer import Tokenizer


def open_text(tokenizer: Tokenizer, prompt_ids: Sequence[int], params: SamplingParams) -> TextStream:
    """For one continuation of the prompt."""
    return TextStream(
        tokenizer,
        prompt_ids,
        stops=params.stop,
        include_stop=params.include_stop_str_in_output,
        min_tokens=params.min_tokens,
        skip_special_tokens=params.skip_special_tokens,
    )
