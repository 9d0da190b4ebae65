"""Cases on structured output: what the embedded model draws is valid, and bad schemas harm nobody."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest

from tests.support.process import ServerProcess
from tests.support.schemas import SCHEMAS

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "ü"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def nested(depth: int) -> str:
    return '{"items":' * depth + "{}" + "}" * depth


def test_t4_an_invalid_schema_is_a_400_and_nothing_else(embedded: ServerProcess) -> None:
    wrong: list[dict[str, Any]] = [
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nope"}}}},
        {"structured_outputs": {"json": {"type": "array", "uniqueItems": True}}},
        {"guided_json": nested(2000)},
        {"guided_json": json.loads(nested(150))},
        {"guided_regex": "("},
        {"guided_regex": "(?=a)b"},
        {"guided_grammar": "start: " + "(" * 5000},
        {"guided_regex": "(a|aa)+" * 500},  # compiles, and takes too much work after the first token
    ]
    for fields in wrong:
        answer = embedded.http.post("/v1/completions", json={"prompt": "x", **fields})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_schema"), fields
    deep = f'{{"prompt": "x", "guided_json": {nested(2000)}}}'  # more than a JSON parser goes into
    answer = embedded.http.post("/v1/completions", content=deep, headers={"Content-Type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_schema", "guided_json")


@pytest.mark.parametrize("stream", [False, True])
def test_t4_a_schema_is_followed_at_temperature_1(embedded: ServerProcess, stream: bool) -> None:
    body = {
        "messages": [{"role": "user", "content": "Describe a person as JSON."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}},
        "temperature": 1.0,
        "seed": 3,
        "n": 2,
        "max_tokens": 200,
        "logprobs": True,
        "top_logprobs": 5,
        "stream": stream,
    }
    texts, reasons = ["", ""], ["", ""]
    answer = embedded.http.post("/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    if stream:
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    else:
        events = [answer.json()]
    for choice in (choice for event in events for choice in event["choices"]):
        content = choice.get("message") or choice["delta"]
        texts[choice["index"]] += content.get("content") or ""
        reasons[choice["index"]] = choice["finish_reason"]
        for token in (choice["logprobs"] or {"content": []})["content"]:
            assert token["logprob"] > -9999
            assert all(top["logprob"] >= -9999 for top in token["top_logprobs"])
    assert reasons == ["stop", "stop"]
    for text in texts:
        jsonschema.validate(json.loads(text), PERSON)


def test_t4_twenty_schemas_side_by_side(embedded: ServerProcess) -> None:
    """`benchmarks/structured_output.py` draws more."""

    def answer_to(name: str) -> Any:
        schema = {"name": "answer", "schema": SCHEMAS[name]}
        body = {
            "messages": [{"role": "user", "content": f"An example of {name}, as JSON:"}],
            "response_format": {"type": "json_schema", "json_schema": schema},
            "temperature": 1.0,
            "seed": 5,
            "max_tokens": 400,
        }
        return embedded.http.post("/v1/chat/completions", json=body, timeout=280)

    with ThreadPoolExecutor(len(SCHEMAS)) as threads:
        answers = dict(zip(SCHEMAS, threads.map(answer_to, SCHEMAS), strict=True))
    for name, answer in answers.items():
        assert answer.status_code == 200, (name, answer.text)
        choice = answer.json()["choices"][0]
        assert choice["finish_reason"] == "stop", name
        jsonschema.Draft202012Validator(SCHEMAS[name]).validate(json.loads(choice["message"]["content"]))
