"""Greedy tokens of fixed prompts on a tiny model, by several ways to run it in one process.

    python -m benchmarks.tensor_parallel.text FOLDER --save
    python -m benchmarks.tensor_parallel.text FOLDER --tp 2 --ways bfloat16,float32+eager --results FILE

A way is a type, perhaps with "+eager", "+nccl" or "+one-shot". Each appends a line to the results at once.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from pathlib import Path

from benchmarks.tensor_parallel.results import append

PROMPT_LENS = (1, 3, 17, 40, 130, 300, 5, 64, 9, 2, 33, 11, 90, 7, 4, 21, 12, 8, 250, 6)
VOCAB_SIZE = 500
# Nothing divides by two, and the fused kernels for small batches cover it.
TINY = {
    "hidden_size": 576,
    "head_dim": 64,
    "intermediate_size": 512,
    "vocab_size": 513,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--save", action="store_true", help="write the model, and no more")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--ways", default="float32")
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    if arguments.save:
        from tests.support.tiny_models import save_tiny_model

        save_tiny_model(arguments.model, "qwen3", with_tokenizer=True, **TINY)
        return
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", level=logging.INFO, stream=sys.stderr)
    for way in arguments.ways.split(","):
        generate(arguments.model, arguments.tp, way, arguments.results)
    sys.stdout.flush()
    os._exit(0)  # a library that cannot end must not hold up what comes next


def generate(model: Path, tp: int, way: str, results: Path | None) -> None:
    from engine import LLM, SamplingParams

    began_s = time.monotonic()
    dtype, *options = way.split("+")
    all_reduce = next((option for option in options if option != "eager"), "auto")
    llm = LLM(
        str(model),
        tensor_parallel_size=tp,
        dtype=dtype,
        enforce_eager="eager" in options,
        all_reduce=all_reduce,
        num_kv_blocks=64,
        max_num_seqs=32,
        max_num_batched_tokens=512,
    )
    started_s = time.monotonic()
    prompts = [[(7 * i + 13 * length) % VOCAB_SIZE for i in range(length)] for length in PROMPT_LENS]
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    together = llm.generate(prompts, params, use_tqdm=False)
    alone = [llm.generate([prompt], params, use_tqdm=False)[0] for prompt in prompts[:4]]
    few = llm.generate(prompts[4:10], params, use_tqdm=False)
    tokens = [output["token_ids"] for output in together + alone + few]
    append(results, {"kind": "text", "tp": tp, "way": way, "tokens": tokens})
    done_s = time.monotonic()
    llm.close()
    print(
        f"{way} on {tp}: started in {started_s - began_s:.1f} s, generated in {done_s - started_s:.1f}, "
        f"closed in {time.monotonic() - done_s:.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
