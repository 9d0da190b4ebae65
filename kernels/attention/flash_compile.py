"""Compiles flash-attn 4's kernels in processes beside the start-up, which has torch and weights to load.

Its compiler is Python and holds the interpreter for seconds a kernel, so threads would not do. It needs no
GPU: fake tensors stand for real ones. What it makes lies in flash-attn's own cache on disk, by a key that
follows from the call alone, where the serving process finds it. If anything fails here, that process compiles
at first use.

    python -m kernels.attention.flash_compile KERNEL_AS_JSON FILE_TO_TOUCH
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

logger = logging.getLogger(__name__)

# Those that agree with fp32 on a card. With a head size of 80, flash-attn 4 was off by 4 % (blocks of 16).
HEAD_DIMS = (64, 128)

_PACKAGES = ("flash-attn-4", "nvidia-cutlass-dsl", "apache-tvm-ffi")
_PATIENCE_S = 120.0
_ROOT = str(Path(__file__).parents[2])


@dataclass(frozen=True, slots=True)
class FlashKernel:
    """What a kernel for prompt chunks is compiled for."""

    num_seqs: int  # in a batch; flash-attn 4 looks for a tile's sequence in another way above 256
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    sliding_window: int | None
    dtype: str  # as torch names it


@dataclass(frozen=True, slots=True)
class _Gpu:
    architecture: str  # "sm_90"
    num_sms: int


def cache_folder() -> Path:
    """Where flash-attn 4 keeps what it compiles for Octavo, and the markers that tell what is there."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo" / "flash-attn-4"


def cache_compiled_kernels() -> bool:
    """Have flash-attn 4 keep what it compiles; it reads these once, when it is imported.

    False if there is no place for it.
    """
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_DIR", str(cache_folder()))
    return True


class _Compiler(threading.Thread):
    """Runs one process to its end, and tells why it failed if it did."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        """Raises OSError if no process can be started."""
        super().__init__(name="octavo-flash-compiler", daemon=True)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
        nothing = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, stdin=nothing, stdout=nothing, stderr=self._errors, env=environment
        )

    def run(self) -> None:
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode:
            self._errors.seek(0)
            last = self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]
            logger.info("flash-attn 4: a kernel is not compiled ahead: %s", last or "it took too long")

    def stop(self) -> None:
        self._process.kill()


_compilers: list[_Compiler] = []


def start_compiling(kernels: Sequence[FlashKernel]) -> int:
    """Start a process for each kernel that was not compiled before; tells how many. Imports no torch.

    None where flash-attn 4 or a Hopper GPU is missing: no other has been tried.
    """
    try:
        versions = [version(package) for package in _PACKAGES]
    except PackageNotFoundError:
        return 0
    gpu = _find_gpu()
    if gpu is None or not gpu.architecture.startswith("sm_9") or not cache_compiled_kernels():
        return 0
    environment = os.environ | {
        "FLASH_ATTENTION_ARCH": gpu.architecture,
        "CUTE_DSL_ARCH": f"{gpu.architecture}a",
        "FLASH_ATTENTION_NUM_SMS": str(gpu.num_sms),
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(filter(None, [_ROOT, os.environ.get("PYTHONPATH")])),
    }
    for kernel in kernels:
        marker = _marker(kernel, gpu, versions)
        if kernel.head_dim in HEAD_DIMS and not marker.exists():
            try:
                compiler = _Compiler(_command(kernel, marker), environment)
            except OSError as error:
                logger.info("flash-attn 4: no kernel is compiled ahead: %s", error)
                break
            compiler.start()
            atexit.register(compiler.stop)
            _compilers.append(compiler)
    if _compilers:
        logger.info("compiling %d kernels of flash-attn 4 in the background", len(_compilers))
    return len(_compilers)


def wait_until_compiled() -> None:
    """Until all processes have ended, whatever came of them."""
    for compiler in _compilers:
        compiler.join()


def _marker(kernel: FlashKernel, gpu: _Gpu, versions: Sequence[str]) -> Path:
    """A file that is there once this kernel has been compiled by these versions."""
    parts = [asdict(kernel), asdict(gpu), versions, sys.version_info[:2]]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return cache_folder() / f"{digest[:32]}.compiled"


def _command(kernel: FlashKernel, marker: Path) -> list[str]:
    return [sys.executable, "-m", "kernels.attention.flash_compile", json.dumps(asdict(kernel)), str(marker)]


def _find_gpu() -> _Gpu | None:
    """The first visible one, as the driver tells; None without a driver or a GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return None
    values = []
    # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR and CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    for attribute in (75, 76, 16):
        value = ctypes.c_int()
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
            return None
        values.append(value.value)
    return _Gpu(f"sm_{values[0]}{values[1]}", values[2])


def compile_kernel(kernel: FlashKernel) -> None:
    """By a call that launches nothing, as its tensors are fake."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from kernels.attention.late_dynamo import import_dynamo_late

    import_dynamo_late()
    with FakeTensorMode():
        call_kernel(kernel)


def call_kernel(kernel: FlashKernel) -> None:
    """With chunks of one row each, in a cache of one block."""
    import torch

    from kernels.attention.flash_versions import Flash4, PagedQueries
    from kernels.attention.interface import AttentionShape

    device, dtype, num_seqs = torch.device("cuda", 0), getattr(torch, kernel.dtype), kernel.num_seqs
    shape = AttentionShape(
        num_layers=1,
        num_heads=kernel.num_heads,
        num_kv_heads=kernel.num_kv_heads,
        head_dim=kernel.head_dim,
        scale=kernel.head_dim**-0.5,
        block_size=kernel.block_size,
        dtype=dtype,
        device=device,
        sliding_window=kernel.sliding_window,
    )
    queries = PagedQueries(
        block_tables=torch.zeros(num_seqs, 1, dtype=torch.int32, device=device),
        context_lens=torch.ones(num_seqs, dtype=torch.int32, device=device),
        query_starts=torch.arange(num_seqs + 1, dtype=torch.int32, device=device),
        max_query_len=1,
        max_context=kernel.block_size,
    )
    q = torch.zeros(num_seqs, kernel.num_heads, kernel.head_dim, dtype=dtype, device=device)
    keys = torch.zeros(1, kernel.block_size, kernel.num_kv_heads, kernel.head_dim, dtype=dtype, device=device)
    Flash4().prepare(queries, shape)(q, keys, torch.zeros_like(keys), torch.empty_like(q))


if __name__ == "__main__":
    gc.disable()  # the process is short, and makes little but what it needs to its end
    compile_kernel(FlashKernel(**json.loads(sys.argv[1])))
    Path(sys.argv[2]).touch()
