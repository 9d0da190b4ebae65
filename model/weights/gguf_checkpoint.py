"""A GGUF file as a checkpoint: ggml's tensor names and row order translated to Hugging Face's."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from model.config import ModelConfig
from model.parallel import LazyTensor
from model.weights.gguf_file import GgufFile
from model.weights.gguf_index import ROPE_FACTORS

MODULES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER_MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def hugging_face_name(name: str) -> str:
    """The Hugging Face name of a ggml tensor; a name without a counterpart stays as it is."""
    if (match := LAYER_TENSOR.fullmatch(name)) and match[2] in LAYER_MODULES:
        return f"model.layers.{match[1]}.{LAYER_MODULES[match[2]]}.{match[3]}"
    module, _, kind = name.rpartition(".")
    return f"{MODULES[module]}.{kind}" if module in MODULES else name


class GgufCheckpoint:
    """A `Checkpoint`: tensors by their Hugging Face names, dequantized when they are read."""

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        self.path = file.path
        self._file = file
        self._ggml_names = {hugging_face_name(name): name for name in file.tensors if name != ROPE_FACTORS}
        # Only files of this architecture store rotary rows pairwise (i and i + half a head side by side).
        self._interleaved: dict[str, int] = {}
        if file.metadata["general.architecture"] == "llama":
            self._interleaved = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}

    def names(self) -> Iterable[str]:
        return self._ggml_names

    def open(self, name: str, dtype: torch.dtype, device: torch.device) -> LazyTensor:
        ggml_name = self._ggml_names[name]
        entry = self._file.tensors[ggml_name]
        heads = self._interleaved.get(name.split(".")[-2])
        if heads is not None and entry.shape[0] % (2 * heads):
            heads = None  # a wrong shape, which the decoder is about to refuse
        return _GgufWeight(self._file, ggml_name, entry.shape, dtype, device, heads)


@dataclass(frozen=True, slots=True)
class _GgufWeight:
    """A `LazyTensor`; parts of the rotary matrices are of whole heads."""

    file: GgufFile
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    interleaved_heads: int | None

    def __getitem__(self, index: slice | tuple[slice, slice]) -> torch.Tensor:
        rows, columns = index if isinstance(index, tuple) else (index, slice(None))
        return self.file.load(
            self.name,
            dtype=self.dtype,
            device=self.device,
            interleaved_rows=self.shape[0] // self.interleaved_heads if self.interleaved_heads else None,
            rows=rows,
            columns=columns,
        )
