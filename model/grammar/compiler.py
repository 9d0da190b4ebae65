"""Compiles grammars for the vocabulary of one model.

llguidance bounds the work of compiling, and of every mask, in its own units ("fuel"), so that what a client
sends can neither hang nor exhaust the process; what does not fit is refused here, or ends that one output.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable

import llguidance
import numpy as np

from model.grammar.deep_stack import with_deep_stack
from model.grammar.matcher import Grammar, GrammarMatcher
from model.grammar.schema_check import check_schema
from model.grammar.source import GrammarError, GrammarKind, GrammarSource, ThoughtTags
from model.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

MAX_SOURCE_BYTES = 64 * 1024

_LIMITS = llguidance.LLParserLimits(verbose_errors=False)

_WHITESPACE = r"[\x20\x0A\x0D\x09]{1,32}"
"""Where JSON allows any: room for indentation, but no endless whitespace, which small models love."""


class GrammarCompiler:
    """Knows the vocabulary; safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        """`vocab_size` is the model's; tokens that only the model or only the tokenizer has never match.

        Raises `GrammarError` for a model without EOS.
        Takes about 0.3 s and 10 MB for 50,000 tokens.
        """
        eos = sorted(token_id for token_id in eos_token_ids if token_id < vocab_size)
        if not eos:
            raise GrammarError("the model has no EOS, with which a constrained answer ends")
        wrapper = llguidance.TokenizerWrapper(_Vocabulary(tokenizer, vocab_size, eos))
        self._tokenizer = llguidance.LLTokenizer(wrapper, n_vocab=vocab_size, eos_token=eos)
        self._mask_words = -(-vocab_size // 32)

    def compile(self, source: GrammarSource) -> Grammar:
        """Raises `GrammarError` with one line that says what is wrong. May take seconds; leaves the GIL."""
        if len(source.text.encode()) > MAX_SOURCE_BYTES:
            raise GrammarError(f"longer than {MAX_SOURCE_BYTES} bytes")
        try:
            return with_deep_stack(lambda: self._compile(source))
        except GrammarError:
            raise
        except BaseException as error:  # a panic of Rust code is no Exception
            logger.exception("compiling a %s failed", source.kind)
            raise GrammarError(f"compiling it failed: {type(error).__name__}") from None

    def _compile(self, source: GrammarSource) -> Grammar:
        grammar = _to_llguidance(source)
        if source.thoughts is not None:
            grammar = _after_thoughts(grammar, source.thoughts)
        is_wrong, messages = llguidance.LLMatcher.validate_grammar_with_warnings(
            grammar, self._tokenizer, limits=_LIMITS
        )
        if is_wrong:
            raise GrammarError(_summary(messages[0]))
        start = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=_LIMITS)
        # The first mask shows grammars that match nothing, and warms up what all copies start from.
        masks = np.empty((1, self._mask_words), dtype=np.int32)
        [is_satisfiable] = GrammarMatcher.fill([GrammarMatcher(start)], masks)
        if not is_satisfiable:
            raise GrammarError(_summary(start.get_error()))
        return Grammar(start)


class _Vocabulary:
    """What llguidance asks of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: list[int]) -> None:
        raw = tokenizer.table.raw[:vocab_size]
        self.tokens = raw + [b""] * (vocab_size - len(raw))
        self.eos_token_id = eos_token_ids[0]
        self.bos_token_id = tokenizer.bos_token_id
        self.special_token_ids = sorted(i for i in tokenizer.special_ids if i < vocab_size)
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def _to_llguidance(source: GrammarSource) -> str:
    try:
        match source.kind:
            case GrammarKind.JSON_SCHEMA:
                check_schema(json.loads(source.text))
                return llguidance.LLMatcher.grammar_from_json_schema(
                    source.text,
                    overrides={  # also of what the schema itself says in llguidance's own keyword
                        "item_separator": ", " if source.on_one_line else ",",
                        "key_separator": ": " if source.on_one_line else ":",
                        "whitespace_flexible": not source.on_one_line,
                        "whitespace_pattern": None if source.on_one_line else _WHITESPACE,
                        "coerce_one_of": False,
                        "lenient": False,
                    },
                )
            case GrammarKind.REGEX:
                pattern = llguidance.regex_to_lark(source.text, use_ascii="dws")
                return llguidance.LLMatcher.grammar_from_regex(pattern)
            case GrammarKind.GRAMMAR:
                return llguidance.grammar_from("grammar", source.text)
    except GrammarError:
        raise
    except (ValueError, RecursionError) as error:
        raise GrammarError(_summary(str(error) or "nested too deeply")) from None


def _after_thoughts(answer: str, tags: ThoughtTags) -> str:
    """`answer` is Lark, or llguidance's own list of grammars, the first being the start."""
    grammars = json.loads(answer)["grammars"] if answer.startswith("{") else [{"lark_grammar": answer}]
    grammars[0]["name"] = "answer"
    thoughts = "thoughts SPACE?" if tags.open is None else f"({json.dumps(tags.open)} thoughts SPACE?)?"
    start = f"""
        start: {thoughts} @answer
        thoughts[suffix={json.dumps(tags.close)}]: /(?s:.*)/
        SPACE: /[ \\n]{{1,4}}/
    """
    return json.dumps({"grammars": [{"lark_grammar": start}, *grammars]})


def _summary(message: str) -> str:
    """The first line, and the one that gives the reason where it is another."""
    first, *others = message.strip().splitlines() or [""]
    reasons = [line for line in others if line.startswith("error: ")]
    return " ".join([first, *reasons])
