"""Greedy tokens of fixed prompts as one line of JSON, to compare ranks, types and ways to run.

python -m benchmarks.tensor_parallel.text MODEL --tp 2 --dtype bfloat16 --all-reduce one-shot
"""

from __future__ import annotations

import argparse
import json

from engine import LLM, SamplingParams

PROMPT_LENS = (1, 3, 17, 40, 130, 300, 5, 64, 9, 2, 33, 11, 90, 7, 4, 21, 12, 8, 250, 6)
VOCAB_SIZE = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--all-reduce", default="auto")
    arguments = parser.parse_args()
    llm = LLM(
        arguments.model,
        tensor_parallel_size=arguments.tp,
        dtype=arguments.dtype,
        enforce_eager=arguments.eager,
        all_reduce=arguments.all_reduce,
        num_kv_blocks=64,
        max_num_seqs=32,
        max_num_batched_tokens=512,
    )
    prompts = [[(7 * i + 13 * length) % VOCAB_SIZE for i in range(length)] for length in PROMPT_LENS]
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    together = llm.generate(prompts, params, use_tqdm=False)
    alone = [llm.generate([prompt], params, use_tqdm=False)[0] for prompt in prompts[:4]]
    few = llm.generate(prompts[4:10], params, use_tqdm=False)
    llm.close()
    print("TOKENS " + json.dumps([output["token_ids"] for output in together + alone + few]))


if __name__ == "__main__":
    main()
