"""Grammars of answers that may begin with thoughts."""

from __future__ import annotations

import pytest

from model.grammar.source import GrammarSource, ThoughtTags
from tests.support.grammars import byte_compiler, matches

COMPILER = byte_compiler()


SOURCES = [
    (GrammarSource.json_schema({"const": 1}), "1"),
    (GrammarSource.choice(["yes", "no"]), "no"),
    (GrammarSource.regex("[0-9]+"), "42"),
    (GrammarSource.grammar('root ::= "a" b\nb ::= "c"'), "ac"),
]


@pytest.mark.parametrize(("source", "answer"), SOURCES)
def test_thoughts_may_come_before_a_bound_answer(source: GrammarSource, answer: str) -> None:
    begun = COMPILER.compile(source.after_thoughts(ThoughtTags(None, "</think>")))
    possible = COMPILER.compile(source.after_thoughts(ThoughtTags("<think>", "</think>")))
    assert matches(begun, f"hm <b>\n</think>\n\n{answer}") and not matches(begun, answer)
    assert matches(possible, answer) and matches(possible, f"<think>hm</think>{answer}")
    for wrong in (f"hm</think>{answer}", f"<think>hm{answer}", f"<think>hm</think>!{answer}"):
        assert not matches(possible, wrong)
