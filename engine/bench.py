"""`octavo bench`: offline throughput over random prompts, in the shape of nano-vllm's bench.py."""

from __future__ import annotations

import argparse
import random
import time

from engine.sampling_params import SamplingParams


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="model folder, GGUF file or hub name (default: the embedded SmolLM2)")
    parser.add_argument("--load-format", default="auto", help="as for serve; dummy needs no weights")
    parser.add_argument("--dtype", default="auto", help="as for serve (default: auto)")
    parser.add_argument("--num-seqs", type=int, default=64, help="prompts (default: 64)")
    parser.add_argument("--min-input-len", type=int, default=100, help="shortest prompt (default: 100)")
    parser.add_argument("--max-input-len", type=int, default=256, help="longest prompt (default: 256)")
    parser.add_argument("--min-output-len", type=int, default=32, help="shortest output (default: 32)")
    parser.add_argument("--max-output-len", type=int, default=64, help="longest output (default: 64)")
    parser.add_argument("--max-num-seqs", type=int, help="sequences that run at once (default: as for serve)")
    parser.add_argument("--temperature", type=float, default=0.6, help="0 is greedy (default: 0.6)")
    parser.add_argument("--seed", type=int, default=0, help="of lengths and prompts (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    from engine import LLM  # imports torch, for seconds

    rng = random.Random(arguments.seed)
    llm = LLM(
        arguments.model,
        load_format=arguments.load_format,
        dtype=arguments.dtype,
        max_num_seqs=arguments.max_num_seqs,
    )
    vocab_size = llm.engine.model_config.vocab_size  # a tokenizer may know more tokens than its model
    prompts = [
        [
            rng.randrange(vocab_size)
            for _ in range(rng.randint(arguments.min_input_len, arguments.max_input_len))
        ]
        for _ in range(arguments.num_seqs)
    ]
    params = [
        SamplingParams(
            temperature=arguments.temperature,
            ignore_eos=True,
            max_tokens=rng.randint(arguments.min_output_len, arguments.max_output_len),
        )
        for _ in prompts
    ]
    llm.generate(["Warm up."], SamplingParams(max_tokens=4), use_tqdm=False)
    start = time.perf_counter()
    outputs = llm.generate(prompts, params)
    seconds = time.perf_counter() - start
    num_input = sum(map(len, prompts))
    num_output = sum(len(output["token_ids"]) for output in outputs)
    llm.close()
    print(
        f"Input: {num_input} tok, Output: {num_output} tok, Time: {seconds:.2f} s, "
        f"Throughput: {num_output / seconds:.2f} tok/s"
    )
    return 0
