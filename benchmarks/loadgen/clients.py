"""The load generators that are compared, each as the command that sends one load."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

INPUT_TOKENS, TOKENS = 32, 64
BARE_READER = "benchmarks.loadgen.bare_reader"
VLLM_CLIENT = Path(__file__).parent / "vllm_client.py"


@dataclass(frozen=True, slots=True)
class Client:
    name: str
    package: str
    python: str
    arguments: Callable[[float, int], list[str]]  # of (req/s, requests); "{url}" stands for the server's

    def command(self, rate: float, requests: int) -> list[str]:
        return [self.python, *self.arguments(rate, requests)]


def known_clients(directory: Path, vllm: str | None, guidellm: str | None) -> list[Client]:
    """`directory` gets what the peers need beside a server: a tokenizer."""
    tokenizer = str(_save_tokenizer(directory))

    def octavo(rate: float, requests: int) -> list[str]:
        load = ["--rate", f"{rate:g}", "--requests", str(requests), "--input-tokens", str(INPUT_TOKENS)]
        return ["-m", "loadgen", "load", "--base-url", "{url}", *load, "--output-tokens", str(TOKENS)]

    def bare(rate: float, requests: int) -> list[str]:
        return ["-m", BARE_READER, "{url}", f"{rate:g}", str(requests), str(INPUT_TOKENS), str(TOKENS)]

    def vllm_bench(rate: float, requests: int) -> list[str]:
        return [
            str(VLLM_CLIENT), "--backend", "openai", "--base-url", "{url}", "--endpoint", "/v1/completions",
            "--model", "mock", "--tokenizer", tokenizer, "--dataset-name", "random", "--random-input-len",
            str(INPUT_TOKENS), "--random-output-len", str(TOKENS), "--num-prompts", str(requests),
            "--request-rate", f"{rate:g}", "--ignore-eos", "--disable-tqdm", "--ready-check-timeout-sec", "0",
        ]  # fmt: skip

    def guide(rate: float, requests: int) -> list[str]:
        return [
            "-m", "guidellm", "run", "--backend", "kind=openai_http,target={url},model=mock",
            "--profile", f"kind=constant,rate={rate:g}",
            "--constraint", f"kind=max_requests,count={requests}",
            "--tokenizer", f"kind=huggingface_auto,model={tokenizer}", "--disable-console-interactive",
            "--data", f"kind=synthetic_text,prompt_tokens={INPUT_TOKENS},output_tokens={TOKENS}",
            "--output", f"kind=json,path={directory / 'guidellm.json'}",
        ]  # fmt: skip

    return [
        Client("octavo load", "loadgen", sys.executable, octavo),
        Client("bare reader", "loadgen", sys.executable, bare),
        Client("vllm bench serve", "vllm", vllm or sys.executable, vllm_bench),
        Client("guidellm", "guidellm", guidellm or sys.executable, guide),
    ]


def absent(client: Client) -> str | None:
    """Why a client cannot be run, or None if it can."""
    look = f"import importlib.util as u, sys; sys.exit(u.find_spec({client.package!r}) is None)"
    try:
        missing = subprocess.run([client.python, "-c", look], check=False).returncode
    except OSError as error:
        return f"{client.python}: {error.strerror}"
    return f"{client.python} has no {client.package}" if missing else None


def _save_tokenizer(directory: Path) -> Path:
    """Two thousand words, one token each."""
    vocabulary = {"[UNK]": 0, **{f"word{number}": number for number in range(1, 2000)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory
