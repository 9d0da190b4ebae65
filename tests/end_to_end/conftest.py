from collections.abc import Iterator

import openai
import pytest

from tests.support.process import ServerProcess, serving


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """The embedded model in fp32, with the daemon's own checks after every step."""
    with serving("--dtype", "float32", "--check-invariants", "--max-num-seqs", "32") as process:
        yield process


@pytest.fixture(scope="session")
def client(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="unused", timeout=120)
