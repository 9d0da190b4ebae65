"""Tool parsers: any call, in any format, cut into any pieces."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.parsers.formats.call_array import CallArray
from server.parsers.formats.named_call import NamedCall
from server.parsers.registry import TOOL_PARSERS
from server.parsers.tool_parser import ToolParser
from tests.support.tool_texts import (
    Call,
    Message,
    deepseek_v3,
    deepseek_v31,
    hermes,
    llama3_json,
    mistral_array,
    mistral_named,
    mistral_with_ids,
    qwen3_coder,
    read,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
TRICKY = st.sampled_from(
    ['"', "\\", '\\"', "{}", "]", "<tool_call>", "[TOOL_CALLS]", "é\u2028", "\U0001fae0", "; {"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6) | TEXT | TRICKY,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXT, values, max_size=3),
    max_leaves=6,
)
NAMES = ("add", "list_tables", "get-weather")
TOOLS = tuple({"type": "function", "function": {"name": name}} for name in NAMES)
CUTS = st.lists(st.integers(0, 10**6), max_size=12)
JSON_CALLS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.dictionaries(TEXT | TRICKY, VALUES, max_size=3)),
    min_size=1,
    max_size=3,
)

Format = tuple[str, Callable[[Sequence[Call]], str]]
JSON_FORMATS: list[Format] = [
    ("hermes", hermes),
    ("llama3_json", llama3_json),
    ("mistral", mistral_array),
    ("mistral", mistral_named),
    ("mistral", mistral_with_ids),
    ("deepseek_v3", deepseek_v3),
    ("deepseek_v31", deepseek_v31),
]


def parser_of(name: str, tools: Any = TOOLS) -> ToolParser:
    return TOOL_PARSERS[name](tools)


def parsed(message: Message) -> list[Call]:
    return [(name, json.loads(arguments)) for name, arguments in message.calls]


@pytest.mark.parametrize(("name", "write"), JSON_FORMATS)
@settings(max_examples=60, deadline=None)
@given(calls=JSON_CALLS, cuts=CUTS)
def test_calls_come_whole_however_the_text_is_cut(
    name: str, write: Any, calls: list[Call], cuts: list[int]
) -> None:
    text = write(calls)
    message = read(parser_of(name), text, cuts)
    assert parsed(message) == calls
    assert (message.content, message.cut) == ("", None)
    assert message == read(parser_of(name), text), "pieces make no difference"


# A value cannot hold the tags that end it, nor a line break at its end.
XML_TEXT = TEXT.filter(lambda text: "<" not in text and text == text.strip("\n")) | st.sampled_from(
    ["a < b", "</param", '"quoted"\\', "two\nlines", "<b>é</b>", "null", "3"]
)
SCHEMA: dict[str, Any] = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "ratio": {"type": ["number", "null"]},
    "flag": {"type": "boolean"},
    "items": {"type": "array"},
    "object": {"anyOf": [{"type": "object"}, {"type": "null"}]},
}
TYPED_TOOLS = tuple(
    {"type": "function", "function": {"name": name, "parameters": {"properties": SCHEMA}}} for name in NAMES
)
JSON_VALUE = VALUES.filter(lambda value: "<" not in json.dumps(value))
TYPED_ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "text": XML_TEXT,
        "count": st.integers(),
        "ratio": st.floats(-1e6, 1e6) | st.none(),
        "flag": st.booleans(),
        "items": st.lists(JSON_VALUE, max_size=3),
        "object": st.dictionaries(TEXT.filter(lambda text: "<" not in text), JSON_VALUE, max_size=2)
        | st.none(),
        "unknown": XML_TEXT,
    },
)


@settings(max_examples=150, deadline=None)
@given(calls=st.lists(st.tuples(st.sampled_from(NAMES), TYPED_ARGUMENTS), min_size=1, max_size=3), cuts=CUTS)
def test_tagged_parameters_become_json_of_their_type(calls: list[Call], cuts: list[int]) -> None:
    text = qwen3_coder(calls)
    message = read(parser_of("qwen3_coder", TYPED_TOOLS), text, cuts)
    assert parsed(message) == calls
    assert (message.content, message.cut) == ("", None)
    assert message == read(parser_of("qwen3_coder", TYPED_TOOLS), text)


ALL_FORMATS: list[Format] = [*JSON_FORMATS, ("qwen3_coder", qwen3_coder)]
TWO_CALLS: list[Call] = [("add", {"a": "x", "b": "y z"}), ("list_tables", {})]


@pytest.mark.parametrize(("name", "write"), ALL_FORMATS)
@pytest.mark.parametrize("size", [1, 3, 7])
def test_an_empty_object_and_the_last_brace_stay(name: str, write: Any, size: int) -> None:
    text = write(TWO_CALLS)
    message = read(parser_of(name), text, range(0, len(text), size))
    assert parsed(message) == TWO_CALLS
    assert message.calls[1] == ("list_tables", "{}")


@pytest.mark.parametrize(("name", "write"), ALL_FORMATS)
def test_a_text_that_ends_anywhere_loses_nothing(name: str, write: Any) -> None:
    text = write(TWO_CALLS)
    whole = read(parser_of(name), text).calls
    for end in range(len(text)):
        message = read(parser_of(name), text[:end], range(end))
        if message.cut is not None:
            assert text[:end].endswith(message.cut)
            cut_name, cut_arguments = message.calls[-1]
            expected_name, expected_arguments = whole[len(message.calls) - 1]
            assert cut_name == expected_name and expected_arguments.startswith(cut_arguments)
            assert message.content == ""
        else:
            assert message.calls == whole[: len(message.calls)]
            assert text[:end].endswith(message.content)
            if text[:end].rstrip().endswith(("}", "}]", "</tool_ca")):
                assert message.content == "" or not message.calls
            if not message.calls:
                assert message.content == text[:end], "a call of which nothing was told is content"


PLAIN = st.text(alphabet='ab <>{}[]"\\\n;:tol_cTOLCAS|python=/f', max_size=40)


@pytest.mark.parametrize("name", TOOL_PARSERS)
@settings(max_examples=120, deadline=None)
@given(
    text=PLAIN
    | st.sampled_from(['{"name": "Bob", "age": 3}', "[1, 2]", "<tool_call>", "a <tool", "```\nx\n```"]),
    cuts=CUTS,
)
def test_what_is_no_call_is_content_to_the_last_character(name: str, text: str, cuts: list[int]) -> None:
    message = read(parser_of(name), text, cuts)
    assert message == read(parser_of(name), text)
    if not message.calls:
        assert message.content == text


@pytest.mark.parametrize(("name", "write"), [entry for entry in ALL_FORMATS if entry[0] != "llama3_json"])
def test_content_around_calls_keeps_its_words(name: str, write: Any) -> None:
    message = read(parser_of(name), "Let me see. \n\n" + write(TWO_CALLS), [3, 9, 20])
    assert message.content == "Let me see."
    assert parsed(message) == TWO_CALLS


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder"])
def test_content_after_the_tags(name: str) -> None:
    write = dict(ALL_FORMATS)[name]
    message = read(parser_of(name), write(TWO_CALLS) + "\nDone.\n")
    assert message.content == "\nDone."
    assert parsed(message) == TWO_CALLS


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"arguments": {"a": [1]}, "name": "add"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "add", "arguments": "{\\"a\\": [1]}"}</tool_call>'),
        ("hermes", '<tool_call>{"id": 7, "name": "add", "arguments": {"a": [1]}}'),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": [1]}}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": [1]}'),
        ("llama3_json", '<|python_tag|>{"name": "add", "parameters": {"a": [1]}}'),
        ("llama3_json", '\n{"type": "function", "name": "add", "parameters": {"a": [1]}}\n'),
        ("llama3_json", 'Sure: <|python_tag|>{"name": "add", "arguments": {"a": [1]}}'),
        ("mistral", '[TOOL_CALLS][{"arguments": {"a": [1]}, "name": "add"}]'),
        ("mistral", '[TOOL_CALLS] add [ARGS] {"a": [1]}'),
        (
            "deepseek_v3",
            '<｜tool▁calls▁begin｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n{"a": [1]}\n',
        ),
        ("deepseek_v3", 'Sure: <｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": [1]}<｜tool▁calls▁end｜>'),
    ],
)
def test_variants_that_models_write(name: str, text: str) -> None:
    for cuts in ([], range(len(text))):
        message = read(parser_of(name), text, cuts)
        assert parsed(message) == [("add", {"a": [1]})]
        assert message.cut is None and message.content in ("", "Sure:")


@pytest.mark.parametrize(
    "text",
    [
        "<function=add>\n<parameter=text>\nx\n</parameter>\n</function>\n</tool_call>",
        "<tool_call><function=add><parameter=text>x</parameter></function></tool_call>",
        "<tool_call>\n<function=add>\n<parameter=text>\nx\n</function>\n</tool_call>",
    ],
)
def test_variants_of_tags_that_models_write(text: str) -> None:
    for cuts in ([], range(len(text))):
        message = read(parser_of("qwen3_coder", TYPED_TOOLS), text, cuts)
        assert (message.calls, message.content, message.cut) == ([("add", '{"text": "x"}')], "", None)


def test_null_and_absent_arguments_are_an_empty_object() -> None:
    for body in ('{"name": "add", "arguments": null}', '{"name": "add"}'):
        assert read(parser_of("hermes"), f"<tool_call>{body}</tool_call>").calls == [("add", "{}")]


def test_python_spelling_and_values_of_no_type_of_the_schema() -> None:
    call = "<function=add><parameter=flag>True</parameter><parameter=count>many</parameter></function>"
    (arguments,) = [
        json.loads(arguments) for _, arguments in read(parser_of("qwen3_coder", TYPED_TOOLS), call).calls
    ]
    assert arguments == {"flag": True, "count": "many"}


@pytest.mark.parametrize(
    "schema", [{"type": None}, {"type": 3}, {"anyOf": None}, {"oneOf": {"type": ["array", 5]}}, "array"]
)
def test_a_schema_that_makes_no_sense_leaves_strings(schema: Any) -> None:
    function = {"name": "add", "parameters": {"properties": {"a": schema}}}
    call = "<function=add><parameter=a>\nxyz\n</parameter></function>"
    message = read(parser_of("qwen3_coder", [{"type": "function", "function": function}]), call)
    assert parsed(message) == [("add", {"a": "xyz"})]


@pytest.mark.parametrize("value", [r'["\ud800"]', "[1e999]", "[NaN]", "[1, {2}]"])
def test_values_that_json_cannot_carry_are_strings(value: str) -> None:
    function = {"name": "add", "parameters": {"properties": {"a": {"type": "array"}}}}
    call = f"<function=add><parameter=a>{value}</parameter></function>"
    message = read(parser_of("qwen3_coder", [{"type": "function", "function": function}]), call)
    assert parsed(message) == [("add", {"a": value})]


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        (r'{"name": "add", "arguments": "{\"a\": \"\ud800\"}"}', r'"{\"a\": \"\ud800\"}"'),
        (r'{"name": "\ud800", "arguments": {}}', None),
    ],
)
def test_half_a_surrogate_pair_is_never_told(body: str, arguments: str | None) -> None:
    """No frame could carry it."""
    message = read(parser_of("hermes"), f"<tool_call>{body}</tool_call>")
    assert message.calls == ([("add", arguments)] if arguments else [])
    (message.content + json.dumps(message.calls, ensure_ascii=False)).encode()


def test_arguments_are_told_before_the_call_is_over() -> None:
    for name, write in ALL_FORMATS:
        parser, message = parser_of(name), Message()
        text = write([("add", {"a": "some longer text"})])
        message.add(parser.push(text[: text.index("longer") + 3]))
        assert message.calls == [("add", '{"a": "some lon')]


@settings(max_examples=60, deadline=None)
@given(calls=JSON_CALLS, cuts=CUTS)
def test_forced_calls(calls: list[Call], cuts: list[int]) -> None:
    array = json.dumps([{"name": name, "parameters": arguments} for name, arguments in calls])
    message = read(CallArray(), array, cuts)
    assert parsed(message) == calls and (message.content, message.cut) == ("", None)
    name, arguments = calls[0]
    message = read(NamedCall(name), f" {json.dumps(arguments)}\n", cuts)
    assert parsed(message) == calls[:1] and (message.content, message.cut) == ("", None)


def test_forced_calls_that_are_cut() -> None:
    assert read(NamedCall("add"), '{"a": [1').cut == '{"a": [1'
    message = read(CallArray(), '[{"name": "add", "parameters": {}}, {"name": "add", "parameters": {"a"')
    assert message.calls == [("add", "{}"), ("add", '{"a"')]
    assert message.cut == ', {"name": "add", "parameters": {"a"'


@pytest.mark.parametrize("name", TOOL_PARSERS)
@pytest.mark.parametrize("start", ["", "x", "[TOOL_CALLS]", "<tool_call>", "<|python_tag|>"])
def test_endless_white_space_is_kept(name: str, start: str) -> None:
    """A model that has lost its way writes nothing else; what is held is not read again for every token."""
    text = start + 4000 * " \n" + "y"
    assert read(parser_of(name), text, range(len(text))).content == text
