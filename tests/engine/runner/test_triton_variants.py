"""What an engine would launch on a GPU is found, and compiled, where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import json, sys
from pathlib import Path
import torch
from engine.config import EngineConfig
from engine.runner.triton_variants import variants_of
from kernels.gpu import Gpu
from kernels.sampling import Restriction, sample_tokens
from kernels.triton.variants import compile_variants, noted_variants
from model.config_reader import read_model_config
from model.source import resolve_model

H200 = Gpu("NVIDIA H200", 9, 0, 132)

def sampling(rows):
    with noted_variants(H200) as variants:
        for n in rows:
            logits = torch.empty(n, 151936, device="meta")
            numbers, indices = torch.empty(n, device="meta"), torch.empty(n, dtype=torch.int64, device="meta")
            restriction = Restriction(indices, numbers, numbers)
            sample_tokens(logits, numbers, indices, indices, restriction)
    return sorted(kernel.args[0].__name__ for kernel in variants)

few, any_number = sampling([1]), sampling(range(1, 513, 7))
config = EngineConfig(model=sys.argv[1], max_num_seqs=20, attention_backend="triton")
model = read_model_config(resolve_model(sys.argv[1], with_weights=False))
variants = variants_of(config, model, H200)
compile_variants(variants[-2:])
cubins = len(list(Path(sys.argv[2]).rglob("*.cubin")))
names = [kernel.args[0].__name__ for kernel in variants]
print(json.dumps({"few": few, "any": any_number, "names": names, "cubins": cubins}))
"""


def test_every_kernel_of_an_engine_is_found_and_compiled_without_a_gpu(tmp_path: Path) -> None:
    """In a process of its own: here Triton may be set to interpret."""
    pytest.importorskip("triton")
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": 320,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 512,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    cache = tmp_path / "cache"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path), str(cache)],
        env=environment | {"TRITON_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["any"] == found["few"], "the number of rows that sample makes a kernel of its own"
    assert {"_attend_dot", "decode_splits", "prefill_tiles", "_narrow", "_best_of_row", "_exclude"} <= set(
        found["names"]
    )
    assert found["cubins"] == 2
