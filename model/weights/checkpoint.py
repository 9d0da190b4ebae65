"""From a checkpoint's tensors to a decoder's parameters: each exactly once, and nothing left over."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import torch

from model.config import ModelError
from model.decoder import Decoder
from model.parallel import LazyTensor

Progress = Callable[[str, int, int], None]
"""Told of (phase, done, total) as loading goes on; total is the same throughout a phase."""

LOADING_PHASE = "loading weights"
NAMES_SHOWN = 3


class Checkpoint(Protocol):
    """Named tensors on disk."""

    path: Path

    def names(self) -> Iterable[str]:
        """Hugging Face names of all tensors, in the order in which they are best read."""
        ...

    def open(self, name: str, dtype: torch.dtype, device: torch.device) -> LazyTensor:
        """One tensor. A format that has to unpack does so into this `dtype`, on this `device`."""
        ...


def fill_decoder(decoder: Decoder, checkpoint: Checkpoint, progress: Progress | None = None) -> None:
    """Load every parameter of this rank from the checkpoint.

    Raises ModelError that names the tensor which is missing, has no place in the model, or the wrong shape.
    """
    needed = decoder.checkpoint_names()
    names = [name for name in checkpoint.names() if name in needed or not _is_harmless(name, decoder)]
    if missing := needed.difference(names):
        raise ModelError(f"{checkpoint.path}: missing {_list_tensors(missing)}")
    if unexpected := set(names) - needed:
        architecture = decoder.config.architecture
        raise ModelError(f"{checkpoint.path}: no place in {architecture} for {_list_tensors(unexpected)}")
    place = next(decoder.parameters())
    for done, name in enumerate(names, 1):
        tensor = checkpoint.open(name, place.dtype, place.device)
        if not tensor.dtype.is_floating_point:
            raise ModelError(f"{checkpoint.path}: tensor {name} is {tensor.dtype}, not a floating-point type")
        try:
            decoder.load_weight(name, tensor)
        except ModelError as error:
            raise ModelError(f"{checkpoint.path}: {error}") from None
        if progress is not None:
            progress(LOADING_PHASE, done, len(names))


def _is_harmless(name: str, decoder: Decoder) -> bool:
    """Tensors that some exporters add and that say nothing new: rotary tables, copies of a tied head."""
    tied_head = name == "lm_head.weight" and decoder.config.tie_word_embeddings
    return tied_head or name.endswith("rotary_emb.inv_freq")


def _list_tensors(names: Iterable[str]) -> str:
    ordered = sorted(names)
    shown = ", ".join(ordered[:NAMES_SHOWN])
    more = f" and {len(ordered) - NAMES_SHOWN} more" if len(ordered) > NAMES_SHOWN else ""
    return f"tensor{'s' if len(ordered) > 1 else ''} {shown}{more}"
