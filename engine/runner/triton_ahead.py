"""Has Triton's kernels compiled in a process beside the start-up, from before torch is imported.

Triton's compiler is Python for a good part: in threads of one process, sixteen cores give no more than two.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from kernels.compiler_process import CompilerProcess
from kernels.gpu import Gpu, find_gpu
from model.source import ModelSource

logger = logging.getLogger(__name__)

_ROOT = Path(__file__).parents[2]
_FLAGS = (
    *("dtype", "attention_backend", "enforce_eager", "block_size"),
    *("max_num_seqs", "max_num_batched_tokens", "max_model_len"),
)
_processes: list[CompilerProcess] = []


def compile_triton_ahead(config: EngineConfig, source: ModelSource) -> bool:
    """Start compiling what the engine will launch, unless that has been done before; whether it is."""
    if config.device == "cpu" or config.attention_backend == "torch" or config.tensor_parallel_size > 1:
        return False
    gpu = find_gpu()
    if gpu is None or gpu.major < 8:
        return False
    try:
        versions = [version(package) for package in ("triton", "torch")]
    except PackageNotFoundError:
        return False
    flags: dict[str, Any] = {name: getattr(config, name) for name in _FLAGS}
    marker = _cache_folder() / "octavo" / _digest(flags, source, gpu, versions)
    if marker.exists():
        return False
    arguments = {
        "config": flags | {"model": str(source.path)},
        "gpu": asdict(gpu),
        "marker": str(marker),
    }
    command = [sys.executable, "-m", "engine.runner.triton_variants", json.dumps(arguments)]
    try:
        _processes.append(CompilerProcess("Triton's kernels: something", command, {}))
    except OSError as error:
        logger.info("Triton's kernels are not compiled ahead: %s", error)
        return False
    logger.info("compiling Triton's kernels in the background")
    return True


def wait_for_triton() -> None:
    """Until the process has ended, whatever came of it."""
    for process in _processes:
        process.join()


def _cache_folder() -> Path:
    """Triton's: where it is emptied, the markers go too."""
    home = os.environ.get("TRITON_HOME") or Path.home()
    return Path(os.environ.get("TRITON_CACHE_DIR") or Path(home, ".triton", "cache"))


def _digest(flags: dict[str, Any], source: ModelSource, gpu: Gpu, versions: list[str]) -> str:
    """Of all that kernels follow from: another file at this path means that they have not been compiled."""
    digest = hashlib.sha256(json.dumps([flags, asdict(gpu), versions, sys.version_info[:2]]).encode())
    config_file = source.path / "config.json" if source.kind == "folder" else source.path
    digest.update(f"{config_file.resolve()} {config_file.stat().st_mtime_ns}".encode())
    for folder in ("engine/runner", "kernels", "model"):
        for file in sorted((_ROOT / folder).rglob("*")):
            if file.suffix in (".py", ".json"):
                digest.update(file.read_bytes())
    return digest.hexdigest()[:32]
