"""llguidance and xgrammar over the embedded model's vocabulary: compile time, mask time, what each enforces.

    pip install --no-deps xgrammar apache-tvm-ffi   # not needed by Octavo; without it one column is missing
    python -m benchmarks.grammar_libraries

Times are CPU times of one thread. Masks are those along outputs that are drawn evenly from the allowed
tokens, which visit more odd states than a model does. A keyword is ignored if a text that violates it passes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Protocol

import jsonschema
import llguidance
import numpy as np

from model.source import resolve_model
from model.text.tokenizer import Tokenizer, load_tokenizer
from tests.support.schemas import SCHEMAS

OUTPUTS_PER_SCHEMA = 5
MAX_TOKENS = 1000

VIOLATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "minimum": ({"type": "integer", "minimum": 5}, "4"),
    "maximum (number)": ({"type": "number", "maximum": 0.5}, "0.75"),
    "multipleOf": ({"type": "integer", "multipleOf": 7}, "8"),
    "minLength": ({"type": "string", "minLength": 3}, '"ab"'),
    "pattern": ({"type": "string", "pattern": "^[a-z]+$"}, '"A"'),
    "pattern with minLength": ({"type": "string", "pattern": "^[a-z]+$", "minLength": 3}, '"ab"'),
    "format date": ({"type": "string", "format": "date"}, '"2026-99-99"'),
    "minItems": ({"type": "array", "minItems": 2}, "[1]"),
    "uniqueItems": ({"type": "array", "uniqueItems": True}, "[1,1]"),
    "contains": ({"type": "array", "contains": {"const": 7}}, "[1]"),
    "prefixItems": ({"type": "array", "prefixItems": [{"type": "integer"}]}, '["a"]'),
    "required": ({"type": "object", "required": ["a"]}, "{}"),
    "minProperties": ({"type": "object", "minProperties": 1}, "{}"),
    "patternProperties": ({"patternProperties": {"^a": {"type": "integer"}}, "type": "object"}, '{"a":"x"}'),
    "propertyNames": ({"type": "object", "propertyNames": {"pattern": "^a"}}, '{"b":1}'),
    "dependentRequired": ({"type": "object", "dependentRequired": {"a": ["b"]}}, '{"a":1}'),
    "allOf": ({"allOf": [{"type": "integer"}, {"maximum": 3}]}, "4"),
    "oneOf": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "1"),
    "not": ({"type": "integer", "not": {"const": 1}}, "1"),
    "if/then": ({"if": {"const": 1}, "then": False}, "1"),
    "unevaluatedProperties": (
        {"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False},
        '{"b":1}',
    ),
}


class Matching(Protocol):
    def mask(self) -> np.ndarray: ...

    def advance(self, token_id: int) -> bool: ...


Compile = Callable[[str], Callable[[], Matching]]
"""A schema's JSON to a maker of matchers. Raises what the library raises."""


class LLGuidanceMatching:
    def __init__(self, matcher: llguidance.LLMatcher, words: int) -> None:
        self.matcher = matcher
        self.bits = np.zeros(words, dtype=np.int32)

    def mask(self) -> np.ndarray:
        self.matcher.unsafe_compute_mask_ptr(self.bits.ctypes.data, self.bits.nbytes)
        return self.bits

    def advance(self, token_id: int) -> bool:
        return self.matcher.consume_token(token_id)


def with_llguidance(tokenizer: Tokenizer) -> Compile:
    from model.grammar.compiler import GrammarCompiler

    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
    words = -(-tokenizer.vocab_size // 32)

    def compile_schema(schema: str) -> Callable[[], Matching]:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
        start = llguidance.LLMatcher(compiler._tokenizer, grammar, log_level=0)
        if start.is_error():
            raise ValueError(start.get_error().partition("\n")[0])
        return lambda: LLGuidanceMatching(start.deep_copy(), words)

    return compile_schema


class XGrammarMatching:
    def __init__(self, matcher: Any, words: int) -> None:
        import torch

        self.matcher = matcher
        self.bits = torch.zeros(1, words, dtype=torch.int32)

    def mask(self) -> np.ndarray:
        self.matcher.fill_next_token_bitmask(self.bits)
        bits: np.ndarray = self.bits.numpy()[0]
        return bits

    def advance(self, token_id: int) -> bool:
        return bool(self.matcher.accept_token(token_id))


def with_xgrammar(tokenizer: Tokenizer) -> Compile:
    import xgrammar

    vocabulary = [raw.decode("latin-1") for raw in tokenizer.table.raw]
    info = xgrammar.TokenizerInfo(
        [raw.encode("latin-1") for raw in vocabulary],
        xgrammar.VocabType.RAW,
        vocab_size=tokenizer.vocab_size,
        stop_token_ids=list(tokenizer.eos_token_ids),
    )
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    words = -(-tokenizer.vocab_size // 32)

    def compile_schema(schema: str) -> Callable[[], Matching]:
        compiled = compiler.compile_json_schema(schema, strict_mode=False)
        return lambda: XGrammarMatching(xgrammar.GrammarMatcher(compiled), words)

    return compile_schema


def draw(
    matching: Matching, tokenizer: Tokenizer, rng: np.random.Generator, times: list[float]
) -> str | None:
    """An output of evenly drawn tokens, None if it has no end; `times` gets how long each mask took."""
    token_ids: list[int] = []
    while len(token_ids) < MAX_TOKENS:
        begin = time.thread_time()
        bits = matching.mask()
        times.append(time.thread_time() - begin)
        allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
        token_id = int(rng.choice(allowed))
        if token_id in tokenizer.eos_token_ids:
            return tokenizer.decode(token_ids)
        token_ids.append(token_id)
        matching.advance(token_id)
    return None


def is_valid(schema: dict[str, Any], text: str) -> bool:
    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def measure(name: str, compile_schema: Compile, tokenizer: Tokenizer) -> None:
    rng = np.random.default_rng(0)
    compile_s: list[float] = []
    mask_s: list[float] = []
    outputs: list[tuple[str, str | None]] = []
    refused = []
    for title, schema in SCHEMAS.items():
        begin = time.thread_time()
        try:
            make = compile_schema(json.dumps(schema))
        except Exception as error:
            refused.append(f"{title} ({str(error)[:60]})")
            continue
        compile_s.append(time.thread_time() - begin)
        outputs += [(title, draw(make(), tokenizer, rng, mask_s)) for _ in range(OUTPUTS_PER_SCHEMA)]
    us = np.array(mask_s) * 1e6
    print(f"{name}: compile ms, median {np.median(compile_s) * 1e3:.1f}, most {max(compile_s) * 1e3:.1f}")
    print(f"  mask us, mean {us.mean():.0f}, p99 {np.quantile(us, 0.99):.0f}, most {us.max():.0f}")
    ended = [(title, text) for title, text in outputs if text is not None]
    wrong = [title for title, text in ended if not is_valid(SCHEMAS[title], text)]
    print(
        f"  of {len(outputs)} outputs, {len(outputs) - len(ended)} without an end, {len(wrong)} not valid:",
        end="",
    )
    print(f" {', '.join(sorted(set(wrong))) or 'none'}; refused: {', '.join(refused) or 'none'}")


def treatment(compile_schema: Compile, schema: dict[str, Any], text: str, tokenizer: Tokenizer) -> str:
    try:
        matching = compile_schema(json.dumps(schema))()
    except Exception:
        return "refused"
    for token_id in [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_ids[0]]:
        bits = np.unpackbits(matching.mask().view(np.uint8), bitorder="little")
        if not bits[token_id]:
            return "enforced"
        matching.advance(token_id)
    return "IGNORED"


def main() -> None:
    tokenizer = load_tokenizer(resolve_model(None))
    libraries = {"llguidance": with_llguidance(tokenizer)}
    if find_spec("xgrammar") is not None:
        libraries["xgrammar"] = with_xgrammar(tokenizer)
    for name, compile_schema in libraries.items():
        measure(name, compile_schema, tokenizer)
    print(f"\n{'keyword':24}", *(f"{name:12}" for name in libraries))
    for keyword, (schema, text) in VIOLATIONS.items():
        treatments = [treatment(compile_, schema, text, tokenizer) for compile_ in libraries.values()]
        print(f"{keyword:24}", *(f"{word:12}" for word in treatments))


if __name__ == "__main__":
    main()
