"""What compiled grammars let through, and what is refused with which words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model.grammar.compiler import MAX_SOURCE_BYTES, GrammarCompiler
from model.grammar.matcher import Grammar, GrammarMatcher
from model.grammar.source import GrammarError, GrammarSource
from model.text.tokenizer import Tokenizer
from tests.support.byte_text import byte_tokenizer

PADDING = 40  # rows of the model's vocabulary that the tokenizer does not know


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_tokenizer()


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, tokenizer.vocab_size + PADDING, tokenizer.eos_token_ids)


def mask_of(matcher: GrammarMatcher, tokenizer: Tokenizer) -> np.ndarray:
    masks = np.zeros((1, -(-(tokenizer.vocab_size + PADDING) // 32)), dtype=np.int32)
    assert GrammarMatcher.fill([matcher], masks) == [True]
    return masks[0]


def allowed_after(grammar: Grammar, tokenizer: Tokenizer, text: str) -> set[int]:
    matcher = grammar.new_matcher()
    matcher.advance(tokenizer.encode(text, add_special_tokens=False))
    return set(np.flatnonzero(np.unpackbits(mask_of(matcher, tokenizer).view(np.uint8), bitorder="little")))


def matches(grammar: Grammar, tokenizer: Tokenizer, text: str) -> bool:
    """Whether `text` is a whole output: each of its tokens is allowed, and EOS after them."""
    matcher = grammar.new_matcher()
    for token_id in [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_ids[0]]:
        mask = mask_of(matcher, tokenizer)
        if not mask[token_id // 32] >> token_id % 32 & 1:
            return False
        matcher.advance([token_id])
    return True


JSON_OBJECT = GrammarSource.any_json_object()
CHOICES = ["yes", "no", 'q"\\\n\u00fc', ""]
BOUNDED = {"type": "integer", "minimum": -3, "maximum": 12}
TAGGED = 'start: "<t>" call "</t>"\ncall: %json {"const": {"a": 1}}'


@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        (JSON_OBJECT, ["{}", '{"a": [1, null, "\u00e9"]}', '{\n  "a":1}'], ["[]", "1", " {}", "{} "]),
        (GrammarSource.json_schema({"enum": ["a", 1, None]}), ['"a"', "1", "null"], ["2", "a"]),
        (GrammarSource.json_schema({"properties": {"nullable": {"const": 1}}}), ['{"nullable":1}'], []),
        (GrammarSource.json_schema(BOUNDED), ["-3", "12"], ["13", "-4", "1.0"]),
        (GrammarSource.json_schema({"type": "string", "pattern": "^[a-z]{2}$"}), ['"ab"'], ['"a"', '"abc"']),
        (GrammarSource.regex(r"\d{2}|x/y"), ["12", "x/y"], ["1", "123", "\u0661\u0662", "x"]),
        (GrammarSource.choice(CHOICES), CHOICES, ["maybe", "ye"]),
        (GrammarSource.grammar('start: "a" start "b" | "c"'), ["c", "aacbb"], ["acbb", "ab"]),
        (GrammarSource.grammar('root ::= "x" [0-9]+'), ["x1", "x12"], ["x", "1"]),
        (GrammarSource.grammar(TAGGED), ['<t>{"a":1}</t>'], ['{"a":1}', "<t>{}</t>"]),
    ],
)
def test_what_matches(
    compiler: GrammarCompiler, tokenizer: Tokenizer, source: GrammarSource, good: list[str], bad: list[str]
) -> None:
    grammar = compiler.compile(source)
    for text in good:
        assert matches(grammar, tokenizer, text), text
    for text in bad:
        assert not matches(grammar, tokenizer, text), text


def test_only_text_tokens_are_ever_allowed(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    """No special token but EOS, none that only the model has; EOS alone once the output is complete."""
    anything = compiler.compile(GrammarSource.regex(r"(?s:.*)"))
    allowed = allowed_after(anything, tokenizer, "")
    assert allowed & tokenizer.special_ids == set(tokenizer.eos_token_ids)
    assert max(allowed) < tokenizer.vocab_size
    complete = allowed_after(compiler.compile(GrammarSource.choice(["ab"])), tokenizer, "ab")
    assert complete == set(tokenizer.eos_token_ids)


def test_whitespace_is_bounded(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    grammar = compiler.compile(GrammarSource.any_json_object())
    space = tokenizer.encode(" ", add_special_tokens=False)[0]
    assert space in allowed_after(grammar, tokenizer, "{\n" + " " * 30)
    assert space not in allowed_after(grammar, tokenizer, "{\n" + " " * 31)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (GrammarSource.json_schema({"type": "nope"}), "nope"),
        (GrammarSource.json_schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (GrammarSource.json_schema({"properties": {"a": {"not": {}}}}), "not"),
        (GrammarSource.json_schema({"if": {}, "then": {}, "else": {}}), "if"),
        (GrammarSource.json_schema({"type": "string", "format": "made-up"}), "made-up"),
        (GrammarSource.json_schema({"$ref": "https://example.com/schema"}), "https://example.com/schema"),
        (GrammarSource.json_schema({"$ref": "#/$defs/missing"}), "missing"),
        (GrammarSource.json_schema({"type": "integer", "minimum": 5, "maximum": 4}), "minimum"),
        (GrammarSource.json_schema({"type": "string", "pattern": "(?=a)b"}), "look-around"),
        (GrammarSource.json_schema({"x-guidance": {"lenient": True}, "contains": {}}), "contains"),
        (GrammarSource.json_schema(nested(150)), "recursion"),
        (GrammarSource.json_schema({"items": {"type": "string", "nullable": True}}), "nullable"),
        (
            GrammarSource.json_schema({"anyOf": [{"minimum": 0, "exclusiveMinimum": True}]}),
            "exclusiveMinimum",
        ),
        (GrammarSource.json_schema({"properties": {"a": {"multipleOf": 1_000_003}}}), "multipleOf"),
        (GrammarSource.regex("("), "unclosed group"),
        (GrammarSource.regex("(?=a)b"), "look-around"),
        (GrammarSource.regex(r"(a)\1"), "backreferences"),
        (GrammarSource.regex("[^\\s\\S]"), ""),
        (GrammarSource.grammar(""), ""),
        (GrammarSource.grammar("start: start"), ""),
        (GrammarSource.grammar("start: " + "(" * 20_000 + '"a"' + ")" * 20_000), "nested"),
        (GrammarSource.regex("a" * (MAX_SOURCE_BYTES + 1)), "bytes"),
    ],
    ids=lambda value: value.text[:40] if isinstance(value, GrammarSource) else "",
)
def test_what_is_refused(compiler: GrammarCompiler, source: GrammarSource, words: str) -> None:
    with pytest.raises(GrammarError) as error:
        compiler.compile(source)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_copies_do_not_share_their_state(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    grammar = compiler.compile(GrammarSource.choice(["ab", "ac"]))
    first, second = grammar.new_matcher(), grammar.new_matcher()
    first.advance(tokenizer.encode("a", add_special_tokens=False))
    mask = mask_of(second, tokenizer)
    assert second.num_tokens == 0
    assert np.unpackbits(mask.view(np.uint8)).sum() == 1  # the "a" that begins both
    assert allowed_after(grammar, tokenizer, "a") == set(tokenizer.encode("bc", add_special_tokens=False))


def test_outputs_that_cannot_go_on_are_told_alone_and_beside_others(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    lost, well = (compiler.compile(GrammarSource.regex("ab")).new_matcher() for _ in range(2))
    lost.advance(tokenizer.encode("x", add_special_tokens=False))
    masks = np.zeros((2, -(-(tokenizer.vocab_size + PADDING) // 32)), dtype=np.int32)
    assert GrammarMatcher.fill([lost, well], masks) == [False, True]
    assert GrammarMatcher.fill([lost], masks[:1]) == [False]


def test_a_model_without_eos_cannot_be_constrained(tokenizer: Tokenizer) -> None:
    with pytest.raises(GrammarError, match="no EOS"):
        GrammarCompiler(tokenizer, tokenizer.vocab_size, ())


def test_a_long_chain_of_rules_does_not_overflow_the_stack(compiler: GrammarCompiler) -> None:
    rules = [f"r{i:x}: r{i + 1:x}" for i in range(4000)]
    compiler.compile(GrammarSource.grammar("\n".join(["start: r0", *rules, f'r{4000:x}: "a"'])))


def test_a_failure_of_the_library_refuses_the_grammar(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Panic(BaseException):
        """As Rust's arrive."""

    def panic(self: GrammarCompiler, source: GrammarSource) -> Grammar:
        raise Panic

    monkeypatch.setattr(GrammarCompiler, "_compile", panic)
    with pytest.raises(GrammarError, match="Panic"):
        compiler.compile(GrammarSource.regex("a"))
