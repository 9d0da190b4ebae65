"""From a parsed body to a `Generation`: checks, template, tokens.

For a thread, not the event loop, unless the body `prepares_quickly`.
"""

from __future__ import annotations

import uuid

from server.delivery.generation import Generation
from server.errors import invalid, unsupported
from server.preparation.chat_prompt import render_chat
from server.preparation.forced_calls import forced_calls
from server.preparation.generation_builder import GenerationBuilder, Limits
from server.preparation.message_reading import message_reading
from server.preparation.structured_output import wanted_grammar
from server.preparation.tokenizing import check_token_ids, tokenize
from server.preparation.tool_use import read_tool_use
from server.protocol.chat import ChatRequest
from server.protocol.common import GenerationBody
from server.protocol.completions import CompletionRequest, parse_prompts
from server.state import ServerState

DEFAULT_COMPLETION_TOKENS = 16
MAX_CHOICES = 2048
"""Most choices of one request, over all its prompts."""


def prepare_completion(body: CompletionRequest, state: ServerState, arrived_ns: int) -> Generation:
    """Raises `APIError` or `ParameterError`."""
    model = state.resolve_model(body.model)
    n = _check_counts(body, state)
    if body.best_of not in (None, n):
        raise unsupported("best_of", "best_of is not supported, unless it equals n")
    _check_num_logprobs(body.logprobs, "logprobs", state)
    limits = Limits(body.max_tokens, DEFAULT_COMPLETION_TOKENS)
    echo = bool(body.echo)
    prompts = parse_prompts(body.prompt)
    if len(prompts) * n > MAX_CHOICES:
        raise invalid("n", f"n times the number of prompts must not be above {MAX_CHOICES}")
    max_queue = state.engine.engine_config.max_queue
    if len(prompts) > max_queue:  # a 429 would have clients come again for nothing
        raise invalid("prompt", f"prompt holds more than the {max_queue} that may wait (--max-queue)")
    response_id = f"cmpl-{uuid.uuid4().hex}"
    builder = GenerationBuilder(body, state, arrived_ns, response_id, n, limits, wanted_grammar(body))
    for i, prompt in enumerate(prompts):
        name = f"prompt[{i}]" if len(prompts) > 1 else "prompt"
        if isinstance(prompt, str):
            ids = tokenize(state, prompt, name, add_special_tokens=body.add_special_tokens is not False)
        else:
            ids = check_token_ids(prompt, state.engine.model_config.vocab_size, "prompt")
        builder.add(ids, body.logprobs, echoed=prompt if echo else None)
    return builder.build("completion", model, logprobs=body.logprobs is not None, echo=echo)


def prepare_chat(
    body: ChatRequest, state: ServerState, arrived_ns: int, *, id_prefix: str = "chatcmpl-"
) -> Generation:
    """Raises `APIError` or `ParameterError`."""
    model = state.resolve_model(body.model)
    n = _check_counts(body, state)
    num_logprobs = body.num_logprobs()
    _check_num_logprobs(num_logprobs, "top_logprobs", state)
    if body.wanted_max_tokens is not None and body.wanted_max_tokens < 1:
        raise invalid(body.max_tokens_param, f"{body.max_tokens_param} must be at least 1")
    limits = Limits(
        body.wanted_max_tokens, state.config.default_max_tokens, body.max_tokens_param, "messages"
    )
    tool_use = read_tool_use(body)
    prompt = render_chat(body, state, tool_use.tools)
    shows_reasoning = body.include_reasoning is not False
    # A forced call leaves no content that a response format could be about.
    grammar = forced_calls(tool_use) or wanted_grammar(body)
    reading = message_reading(
        state.config, tool_use, prompt, is_bound=grammar is not None, shows_reasoning=shows_reasoning
    )
    if reading is not None and grammar is not None:
        grammar = reading.bind(grammar, state.text.tokenizer)
    if reading is not None and reading.needs_special_tokens(state.text.tokenizer):
        body = body.model_copy(update={"skip_special_tokens": False})
    response_id = f"{id_prefix}{uuid.uuid4().hex}"
    builder = GenerationBuilder(body, state, arrived_ns, response_id, n, limits, grammar, reading)
    builder.add(prompt.token_ids, num_logprobs, echoed=None)
    return builder.build("chat", model, logprobs=num_logprobs is not None, echo=False)


def _check_counts(body: GenerationBody, state: ServerState) -> int:
    """`n`, checked along with what else does not depend on the prompt."""
    body.check_common()
    n = 1 if body.n is None else body.n
    if not 1 <= n <= state.config.max_n:
        raise invalid("n", f"n must be between 1 and {state.config.max_n} (--max-n)")
    _check_num_logprobs(body.prompt_logprobs, "prompt_logprobs", state)
    if body.priority and state.engine.engine_config.scheduling_policy != "priority":
        raise unsupported("priority", "priority needs a server with --scheduling-policy priority")
    return n


def _check_num_logprobs(num_logprobs: int | None, param: str, state: ServerState) -> None:
    if num_logprobs is not None and not 0 <= num_logprobs <= state.config.max_logprobs:
        raise invalid(param, f"{param} must be between 0 and {state.config.max_logprobs} (--max-logprobs)")
