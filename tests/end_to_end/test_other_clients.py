"""Other clients, and every snippet of docs/clients.md, against the embedded model."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.node import run_node
from tests.support.process import ServerProcess

ROOT = Path(__file__).parents[2]
SNIPPETS = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "docs" / "clients.md").read_text(), re.M | re.S)
JAPAN_ANSWER = "The capital of Japan is Tokyo."


@pytest.mark.parametrize(
    ("language", "code"), [snippet for snippet in SNIPPETS if snippet[0] in ("bash", "python", "javascript")]
)
def test_snippets_of_the_documentation(
    embedded: ServerProcess, capsys: Any, language: str, code: str
) -> None:
    assert "http://127.0.0.1:8000" in code
    code = code.replace("http://127.0.0.1:8000", embedded.base_url)
    if language == "bash":
        output = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=60).stdout
    elif language == "javascript":
        output = run_node(code)
    else:
        exec(compile(code, "docs/clients.md", "exec"), {})
        output = capsys.readouterr().out
    assert "Tokyo" in output


def test_there_are_snippets_for_everybody() -> None:
    assert [language for language, _ in SNIPPETS] == [
        "bash", "bash", "python", "python", "javascript", "python", "console",
    ]  # fmt: skip


def test_the_node_client(embedded: ServerProcess) -> None:
    script = (ROOT / "tests" / "end_to_end" / "node_client.mjs").read_text()
    results = json.loads(run_node(script, f"{embedded.base_url}/v1"))
    assert results["models"] == [embedded.http.get("/v1/models").json()["data"][0]["id"]]
    assert results["chat"] == results["streamed"] == [JAPAN_ANSWER, "stop", 8]
    assert results["pieces"] >= 5
    assert results["indexes"] == [0, 1, 2, 3]
    assert results["response"] == [JAPAN_ANSWER, "completed"]
    assert results["events"][0] == "response.created" and results["events"][-1] == "response.incomplete"
    assert results["error"] == ["BadRequestError", 400, "temperature", "invalid_value"]


def test_langchain(embedded: ServerProcess) -> None:
    from langchain_openai import ChatOpenAI

    url: Any = {"base_url": f"{embedded.base_url}/v1", "api_key": "unused", "model": ""}
    model = ChatOpenAI(**url, temperature=0, stream_usage=True)
    whole = model.invoke("What is the capital of Japan?")
    assert whole.content == JAPAN_ANSWER
    assert whole.usage_metadata["output_tokens"] == 8
    assert whole.response_metadata["finish_reason"] == "stop"
    chunks = list(model.stream("What is the capital of Japan?"))
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined += chunk
    assert joined.content == JAPAN_ANSWER
    assert joined.usage_metadata == whole.usage_metadata
    assert model.bind(stop=["Japan"]).invoke("What is the capital of Japan?").content == "The capital of "
