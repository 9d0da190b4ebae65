"""Which fields ask for which grammar, and what is refused before anything reaches the engine."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from model.grammar.compiler import GrammarCompiler
from model.grammar.matcher import Grammar
from model.grammar.source import GrammarError, GrammarSource
from server.grammars import Grammars
from tests.support.byte_text import byte_tokenizer

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
NAMED_SCHEMA = {"name": "thing", "schema": SCHEMA}
MESSAGES = [{"role": "user", "content": "hello"}]


def post(served: Any, fields: dict[str, Any], *, chat: bool = True) -> Any:
    path, prompt = ("chat/completions", {"messages": MESSAGES}) if chat else ("completions", {"prompt": "hi"})
    return served.http.post(f"/v1/{path}", json={**prompt, **fields})


ASKING = [
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_object", "schema": SCHEMA}},
    {"response_format": {"type": "json_schema", "json_schema": NAMED_SCHEMA}},
    {"response_format": {"type": "json_schema", "json_schema": {**NAMED_SCHEMA, "strict": False}}},
    {"structured_outputs": {"json": SCHEMA}},
    {"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None, "disable_fallback": True}},
    {"structured_outputs": {"json_object": True}},
    {"structured_outputs": {"regex": r"\d+"}},
    {"structured_outputs": {"choice": ["a", "b"]}},
    {"structured_outputs": {"grammar": 'start: "a"'}},
    {"guided_json": SCHEMA},
    {"guided_json": json.dumps(SCHEMA)},
    {"guided_regex": r"\d+"},
    {"guided_choice": ["a", "b"]},
    {"guided_grammar": 'root ::= "a"'},
]


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completion"])
@pytest.mark.parametrize("fields", ASKING, ids=lambda fields: json.dumps(fields)[:40])
def test_what_constrains_an_answer(served: Any, fields: dict[str, Any], chat: bool) -> None:
    assert post(served, {**fields, "n": 2}, chat=chat).status_code == 200
    request = served.engine.submitted[-1]
    assert request.constraint is not None
    assert request.constraint.new_matcher().num_tokens == 0


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": None},
        {"response_format": {"type": "text"}},
        {"structured_outputs": {}},
        {"structured_outputs": {"json": None, "json_object": False}},
        {"guided_json": None, "guided_choice": None},
    ],
    ids=str,
)
def test_what_does_not(served: Any, fields: dict[str, Any]) -> None:
    assert post(served, fields).status_code == 200
    assert served.engine.submitted[-1].constraint is None


SCHEMA_ERROR, VALUE, UNSUPPORTED = "invalid_schema", "invalid_value", "unsupported_parameter"
WRONG = [
    ({"guided_json": {"type": "nope"}}, SCHEMA_ERROR, "guided_json", "nope"),
    ({"guided_json": {"uniqueItems": True}}, SCHEMA_ERROR, "guided_json", "uniqueItems"),
    ({"guided_json": "{"}, SCHEMA_ERROR, "guided_json", "JSON"),
    ({"guided_json": [1]}, SCHEMA_ERROR, "guided_json", "object"),
    ({"guided_regex": "("}, SCHEMA_ERROR, "guided_regex", "unclosed group"),
    ({"guided_regex": 5}, "invalid_type", "guided_regex", "string"),
    ({"guided_grammar": "start: nothing"}, SCHEMA_ERROR, "guided_grammar", "nothing"),
    ({"guided_choice": []}, VALUE, "guided_choice", "1 to"),
    ({"guided_choice": ["a", 1]}, VALUE, "guided_choice", "strings"),
    ({"structured_outputs": {"regex": "(?=a)b"}}, SCHEMA_ERROR, "structured_outputs.regex", "look-around"),
    ({"structured_outputs": {"structural_tag": "{}"}}, UNSUPPORTED, "structured_outputs.structural_tag", ""),
    ({"structured_outputs": {"made_up": 1}}, UNSUPPORTED, "structured_outputs.made_up", ""),
    ({"structured_outputs": []}, VALUE, "structured_outputs", ""),
    ({"response_format": {"type": "json_schema"}}, "missing_required_parameter", "response_format", "schema"),
    ({"response_format": {"type": "structural_tag"}}, UNSUPPORTED, "response_format", "structural_tag"),
    ({"response_format": {"type": "xml"}}, VALUE, "response_format", "json_schema"),
    ({"response_format": {}}, VALUE, "response_format", "type"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, VALUE, "guided_choice", "guided_regex"),
    (
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
        VALUE,
        "structured_outputs.regex",
        "both",
    ),
    ({"guided_json": json.dumps({"enum": ["\ud83d"]})}, "invalid_unicode", None, "Unicode"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "code", "param", "words"), WRONG, ids=lambda v: json.dumps(v)[:40])
def test_what_is_refused(
    served: Any, fields: dict[str, Any], code: str, param: str | None, words: str
) -> None:
    before = len(served.engine.submitted)
    for extra in ({}, {"stream": True}):
        answer = post(served, {**fields, **extra})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, code, param), error
        assert words in error["message"]
    assert len(served.engine.submitted) == before


def test_no_stop_reason_for_the_eos_of_a_complete_answer(served: Any) -> None:
    """`ignore_eos` or not; it is one for an EOS that was named a stop token."""
    (eos,) = byte_tokenizer().eos_token_ids
    for fields, stop_reason in (
        ({"guided_regex": "hi"}, None),
        ({"stop_token_ids": [eos]}, eos),
    ):
        answer = post(served, {"ignore_eos": True, "max_tokens": 9, **fields}, chat=False).json()
        (choice,) = answer["choices"]
        assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("hi", "stop", stop_reason)


def test_the_responses_api_names_its_own_field(served: Any) -> None:
    def ask(schema: dict[str, Any]) -> Any:
        text = {"format": {"type": "json_schema", "name": "thing", "schema": schema}}
        return served.http.post("/v1/responses", json={"input": "hello", "text": text})

    assert ask(SCHEMA).status_code == 200
    assert served.engine.submitted[-1].constraint is not None
    refused = ask({"uniqueItems": True})
    assert refused.status_code == 400
    assert (refused.json()["error"]["code"], refused.json()["error"]["param"]) == (
        SCHEMA_ERROR,
        "text.format",
    )


class CountingCompiler(GrammarCompiler):
    """A compiler of which a test sees how often it works, and that can be slow."""

    def __init__(self, delay_s: float = 0.0) -> None:
        tokenizer = byte_tokenizer()
        super().__init__(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
        self.delay_s = delay_s
        self.compiled: list[str] = []

    def compile(self, source: GrammarSource) -> Grammar:
        self.compiled.append(source.text)
        time.sleep(self.delay_s)
        return super().compile(source)


def test_a_grammar_is_compiled_once() -> None:
    compiler = CountingCompiler()
    grammars = Grammars(lambda: compiler, max_cached=2)

    async def use() -> None:
        one, other = GrammarSource.regex("a"), GrammarSource.regex("b")
        first, second = await asyncio.gather(
            grammars.compile(one), grammars.compile(GrammarSource.regex("a"))
        )
        assert first is second
        await grammars.compile(other)
        assert await grammars.compile(one) is first
        await grammars.compile(GrammarSource.regex("c"))  # `other` is the one that was used the longest ago
        assert await grammars.compile(one) is first
        for _ in range(2):
            with pytest.raises(GrammarError):
                await grammars.compile(GrammarSource.regex("("))
        await grammars.compile(other)

    asyncio.run(use())
    grammars.close()
    assert [text for text in compiler.compiled if text in "abc"] == ["a", "b", "c", "b"]
    assert compiler.compiled.count("(") == 1


def test_many_grammars_at_once_wait_for_each_other() -> None:
    grammars = Grammars(lambda: CountingCompiler(delay_s=0.05), timeout_s=0.5)

    async def use() -> None:
        await asyncio.gather(*(grammars.compile(GrammarSource.regex(f"a{i}")) for i in range(24)))

    asyncio.run(use())
    grammars.close()


def test_a_grammar_that_takes_too_long_is_refused() -> None:
    grammars = Grammars(lambda: CountingCompiler(delay_s=0.3), timeout_s=0.01)

    async def use() -> None:
        with pytest.raises(GrammarError, match="more than"):
            await grammars.compile(GrammarSource.regex("a"))

    asyncio.run(use())
    grammars.close()
