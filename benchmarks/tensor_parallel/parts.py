"""What the benchmark runs: parts by name, each a command with a time limit."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tensor_parallel.boxed import Boxed

# Of the published model; the rest of its config.json is the 8B's.
QWEN3_32B = {
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 25600,
    "vocab_size": 151936,
}
WORKLOADS = {"8b": "W1,W3-16,W4", "32b": "W1s,W4h"}
PROFILE_CASES = "1x300,16x600,64x600,256x600,96x600+1024,96x600+4096"
TEXT_WAYS = {
    "text-1": "bfloat16,float32",
    "text-2": "bfloat16",
    "text-2b": "float32,bfloat16+eager,float32+nccl",
}
# Limits in seconds, about twice what each should take.
_LIMITS = {
    "reduce": 75,
    "tiny": 60,
    "text-1": 90,
    "text-2": 75,
    "text-2b": 120,
    "profile": 160,
    "8b": 200,
    "32b": 220,
}
_START_S = {"octavo": 130, "peer": 260}
PARTS = (
    "reduce       NCCL and the one-shot kernel: right sums, and time by size",
    "tiny         writes the tiny model that text needs; takes no GPU",
    "text-1       greedy tokens of a tiny model on one rank",
    "text-2       the same on two, to be compared; text-2b by more ways, one after the other",
    "8b-2, 32b-2  serving with two ranks",
    "8b-1, 32b-1  serving with one",
    "profile-8b-2 kernels of a step, with the time of its all-reduces; also 32b, and 1",
    "peer-8b-2    another server, by --peer-command",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What parts are made from."""

    models: Path | None  # holds the folder qwen3-8b
    scratch: Path
    results: Path  # file of JSON lines
    all_reduce: str = "auto"
    workloads: str | None = None  # instead of those of the shape
    peer_command: str | None = None
    serve_flags: str = ""

    def side_by_side(self, names: Sequence[str]) -> list[Boxed]:
        """Parts that run at once, each on GPUs of its own and its share of the cores, in the order named."""
        cores = sorted(os.sched_getaffinity(0))
        share = len(cores) // len(names)
        first_gpu, boxes = 0, []
        for i, name in enumerate(names):
            if len(names) == 1:
                return [self.part(name)]
            num_gpus = _num_ranks(name)
            gpus = range(first_gpu, first_gpu + num_gpus)
            first_gpu += num_gpus
            own = frozenset(cores[i * share : (i + 1) * share])
            boxes.append(self.part(name, gpus, own))
        return boxes

    def part(self, name: str, gpus: Iterable[int] = (), cores: frozenset[int] = frozenset()) -> Boxed:
        """Raises ValueError for a name that is none."""
        visible = ",".join(map(str, gpus))
        environment = {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
        kind = next((kind for kind in ("profile", "peer") if name.startswith(f"{kind}-")), "octavo")
        if name == "reduce":
            words = ["benchmarks.tensor_parallel.all_reduce", "--results", str(self.results)]
            limit_s = _LIMITS[name]
        elif name == "tiny" or name in TEXT_WAYS:
            words = ["benchmarks.tensor_parallel.text", str(self.scratch / "tiny")]
            words += ["--save"] if name == "tiny" else []
            words += [] if name == "tiny" else ["--tp", name[5], "--ways", TEXT_WAYS[name]]
            words += ["--results", str(self.results)]
            limit_s = _LIMITS[name]
        else:
            shape, ranks = _shape_and_ranks(name.removeprefix(f"{kind}-"))
            make_words = {"profile": self._profile, "peer": self._peer, "octavo": self._serve}[kind]
            words = make_words(name, shape, ranks)
            limit_s = _LIMITS["profile" if kind == "profile" else shape] + _START_S.get(kind, 0)
        return Boxed(name, ["-m", *words], limit_s, environment, cores)

    def _serve(self, name: str, shape: str, ranks: int) -> list[str]:
        flags = f"--tensor-parallel-size {ranks} --all-reduce {self.all_reduce} {self.serve_flags}".strip()
        return [*self._measure(name, shape, "octavo"), "--serve-flags", flags]

    def _peer(self, name: str, shape: str, ranks: int) -> list[str]:
        if self.peer_command is None:
            raise ValueError(f"{name} needs --peer-command")
        command = self.peer_command.replace("{ranks}", str(ranks))
        return [*self._measure(name, shape, "peer"), "--serve-command", command]

    def _measure(self, name: str, shape: str, kind: str) -> list[str]:
        words = ["benchmarks.serving", "--model", str(self._model(shape)), "--load-format", "dummy"]
        words += ["--label", name, "--out", str(self.scratch)]
        words += ["--workloads", self.workloads or WORKLOADS[shape], "--results", str(self.results)]
        return [*words, "--start-timeout", str(_START_S[kind])]

    def _profile(self, name: str, shape: str, ranks: int) -> list[str]:
        words = ["benchmarks.step_profile", "--model", str(self._model(shape)), "--load-format", "dummy"]
        words += ["--tensor-parallel-size", str(ranks), "--all-reduce", self.all_reduce]
        return [*words, "--cases", PROFILE_CASES, "--results", str(self.results), "--label", name]

    def _model(self, shape: str) -> Path:
        """A folder with the config of that shape and a tokenizer."""
        if self.models is None:
            raise ValueError("serving parts need --models")
        if (self.models / f"qwen3-{shape}").exists():
            return self.models / f"qwen3-{shape}"
        model = self.scratch / f"qwen3-{shape}"
        if not model.exists():
            shutil.copytree(self.models / "qwen3-8b", model)
            config = json.loads((model / "config.json").read_text())
            (model / "config.json").write_text(json.dumps(config | QWEN3_32B))
        return model


def _num_ranks(name: str) -> int:
    return int(name[-1]) if name[-1].isdigit() else 0


def _shape_and_ranks(name: str) -> tuple[str, int]:
    shape, _, ranks = name.rpartition("-")
    if shape not in WORKLOADS or not ranks.isdigit():
        raise ValueError(f"there is no part {name!r}")
    return shape, int(ranks)
