"""How long `octavo serve` takes to its first good answer from /health, phase by phase.

    python -m benchmarks.start --model FOLDER --load-format dummy --cold 2 --warm 1 --out DIR

A cold start finds no compiled kernel: it is given empty folders for all caches of compilers. A warm start
finds what the cold one before it left. Prints a Markdown table and writes it to the output folder with each
server's log. With --stacks, every process of a start also writes what its threads were at, every 20 ms: it
slows the start down by some percent.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.server_process import octavo

# Where Triton, flash-attn 4, CUDA's driver, torch and CUTLASS keep what they compile.
_CACHES = (
    *("TRITON_CACHE_DIR", "XDG_CACHE_HOME", "CUDA_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR"),
    *("CUTE_DSL_CACHE_DIR", "QUACK_CACHE_DIR"),
)
_SAMPLED = Path(__file__).parent / "sampled"
_PHASE = re.compile(r"^octavo: (.+): (\d+\.\d) s$", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", help="model folder (default: the embedded model)")
    parser.add_argument("--load-format", default="auto", help="dummy: random weights (default: auto)")
    parser.add_argument("--serve-flags", default="", help="further flags of `octavo serve`")
    parser.add_argument("--cold", type=int, default=2, help="starts with nothing compiled (default: 2)")
    parser.add_argument("--warm", type=int, default=1, help="starts after the last cold one (default: 1)")
    parser.add_argument("--stacks", action="store_true", help="write what every thread was at")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for results (default: out)")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    starts: dict[str, dict[str, float]] = {}
    caches = Path(tempfile.mkdtemp(prefix="octavo-start-"))
    try:
        for number in range(arguments.cold + arguments.warm):
            cold = number < arguments.cold
            name = f"cold-{number + 1}" if cold else f"warm-{number - arguments.cold + 1}"
            if cold:
                shutil.rmtree(caches)
                caches.mkdir()
            try:
                starts[name] = _start(name, cold, caches, arguments)
            except RuntimeError as error:
                print(f"FAILED {name}: {error}", flush=True)
                continue
            print(f"{name}: /health after {starts[name]['to /health']:.1f} s", flush=True)
            (arguments.out / "start.md").write_text(_markdown(starts) + "\n")
    finally:
        shutil.rmtree(caches)
    print(_markdown(starts), flush=True)


def _start(name: str, cold: bool, caches: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """Seconds of each phase, and in all, of one server, which ends at once."""
    log = arguments.out / f"{name}.server.log"
    added = {variable: str(caches / variable.lower()) for variable in _CACHES}
    if arguments.stacks:
        stacks = arguments.out.resolve() / f"{name}.stacks"
        stacks.mkdir(exist_ok=True)
        path = os.pathsep.join(filter(None, [str(_SAMPLED), os.environ.get("PYTHONPATH")]))
        added |= {"OCTAVO_STACKS": str(stacks), "PYTHONPATH": path}
    flags = ["--load-format", arguments.load_format, *arguments.serve_flags.split()]
    if arguments.model:
        flags += ["--model", arguments.model]
    with _environment(added), octavo(*flags, log=log) as server:
        seconds = server.ready_s
    phases = {phase: float(told) for phase, told in _PHASE.findall(log.read_text())}
    phases |= {"to /health": seconds}
    late = _compiled_late(caches / "triton_cache_dir") if cold else None
    return phases if late is None else phases | {"kernels of Triton not compiled ahead": late}


def _compiled_late(triton_cache: Path) -> int | None:
    """How many kernels the server itself compiled, after its compiler had ended; None if it had none."""
    markers = [file.stat().st_mtime for file in triton_cache.glob("octavo/*")]
    if not markers:
        return None
    return sum(file.stat().st_mtime > max(markers) for file in triton_cache.rglob("*.cubin"))


@contextmanager
def _environment(added: dict[str, str]) -> Iterator[None]:
    """Of the processes started within the block."""
    before = dict(os.environ)
    os.environ.update(added)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _markdown(starts: dict[str, dict[str, float]]) -> str:
    """A row for each phase in the order of the first start, a column for each start."""
    phases = list(dict.fromkeys(phase for start in starts.values() for phase in start))
    lines = ["| s | " + " | ".join(starts) + " |", "| --- |" + " --- |" * len(starts)]
    for phase in phases:
        told = (f"{start[phase]:.1f}" if phase in start else "" for start in starts.values())
        lines.append(f"| {phase} | {' | '.join(told)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
