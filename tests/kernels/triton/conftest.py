"""Triton kernels run on the GPU where there is one, else in Triton's interpreter (see tests/conftest.py)."""

from __future__ import annotations

import importlib.util

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["*.py"]  # of folders below too


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
