"""What a table of numbers must say about where it comes from."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.cpu.in_process import auto_dtype

ISA_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
PACKAGES = ("torch", "transformers", "uvicorn")


def describe(llama_venv: Path | None) -> dict[str, str]:
    cpu = _cpu_info()
    flags = set(cpu.get("flags", "").split())
    versions = [f"Python {platform.python_version()}", *(f"{name} {_version(name)}" for name in PACKAGES)]
    if llama_venv is not None:
        versions.append(f"llama-cpp-python {_llama_version(llama_venv)}")
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return {
        "date": date.today().isoformat(),
        "commit": _commit(),
        "CPU": f"{cpu.get('model name', platform.machine())}, {os.cpu_count()} cores",
        "instructions": ", ".join(flag for flag in ISA_FLAGS if flag in flags) or "none of note",
        "dtype": f"auto, here {str(auto_dtype()).removeprefix('torch.')}",
        "OpenMP": f"{os.environ['OMP_NUM_THREADS']} threads, {os.environ['OMP_WAIT_POLICY']}",
        "versions": ", ".join(versions),
        "load average at the start": load,
    }


def _cpu_info() -> dict[str, str]:
    """The first processor's entries."""
    first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _llama_version(venv: Path) -> str:
    code = "from importlib.metadata import version; print(version('llama-cpp-python'))"
    return _output([str(venv / "bin" / "python"), "-c", code])


def _commit() -> str:
    changed = _output(["git", "status", "--porcelain", "--untracked-files=no"])
    return _output(["git", "rev-parse", "--short", "HEAD"]) + (" with local changes" if changed else "")


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"
