"""What each field of a request means, its default and its range: for /openapi.json and docs/api.md.

The ranges are checked in `engine.sampling_params` and `server.preparation.prepare`; tests hold these words
to them.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class FieldNote(NamedTuple):
    """One field of a request, for docs/api.md and the OpenAPI schema."""

    text: str
    default: str = ""  # in the words of a reader; empty: none
    schema: dict[str, Any] = {}  # further keywords of JSON Schema, such as `minimum`
    differs: str = ""  # how others have it


def _within(minimum: float, maximum: float) -> dict[str, Any]:
    return {"minimum": minimum, "maximum": maximum}


_AT_LEAST_0, _AT_LEAST_1 = {"minimum": 0}, {"minimum": 1}
_STRING = {"type": "string", "minLength": 1}
_TOKEN_IDS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
_PROMPT = {
    "anyOf": [
        _STRING,
        _TOKEN_IDS,
        {"type": "array", "minItems": 1, "items": _STRING},
        {"type": "array", "minItems": 1, "items": _TOKEN_IDS},
    ]
}
_TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]}
_TEXT_PART = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}
_CONTENT = {"anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART}, {"type": "null"}]}
_MESSAGE = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": ["developer", "system", "user", "assistant", "tool", "function"]},
        "content": _CONTENT,
    },
}
_MESSAGES = {"anyOf": [{"type": "array", "minItems": 1, "items": _MESSAGE}, {"type": "null"}]}
_ITEMS = {"anyOf": [_STRING, {"type": "array", "minItems": 1, "items": {"type": "object"}}]}
_COUNT_OR_BOOL = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "boolean"}, {"type": "null"}]}
_STOP = {"anyOf": [_STRING, {"type": "array", "maxItems": 64, "items": _STRING}, {"type": "null"}]}
_NOT_IN_OPENAI = "OpenAI: none. vLLM: the same."

NOTES = {
    "model": FieldNote("A served name", "the first served name", differs="OpenAI: required. vLLM: the same."),
    # What to answer
    "prompt": FieldNote(
        "A string, a list of strings, a list of token ids (taken as they are), or a list of such lists",
        schema=_PROMPT,
        differs="OpenAI: null begins a document. vLLM: the same; it refuses fewer empty forms.",
    ),
    "messages": FieldNote(
        "The conversation, oldest first: `role` and `content`, a string or parts of type text",
        schema=_MESSAGES,
        differs="OpenAI, vLLM: images and audio for models that take them.",
    ),
    "input": FieldNote(
        "A text, or a list of items: messages, function calls and their outputs",
        schema=_ITEMS,
        differs="OpenAI: also files, images and items of its own tools.",
    ),
    "instructions": FieldNote("A system message that comes before the input"),
    # How much
    "n": FieldNote(
        "Continuations of each prompt; up to `--max-n`",
        "1",
        _AT_LEAST_1,
        "vLLM: refused above 1 at temperature 0; here such choices are equal.",
    ),
    "best_of": FieldNote("Nothing but `n` is accepted", "n", differs="OpenAI: offered. vLLM: ignored."),
    "CompletionRequest.max_tokens": FieldNote(
        "Most tokens to generate. A given value must fit beside the prompt; 0 only reads the prompt.",
        "16, or the room left if that is less",
        _AT_LEAST_0,
        "vLLM: 0 with `echo` generates one token.",
    ),
    "max_tokens": FieldNote(
        "As `max_completion_tokens`, by its old name", "", _AT_LEAST_1, "OpenAI: deprecated."
    ),
    "max_completion_tokens": FieldNote(
        "Most tokens to generate. A given value must fit beside the prompt.",
        "the room left, or `--default-max-tokens`",
        _AT_LEAST_1,
        "vLLM: the same.",
    ),
    "max_output_tokens": FieldNote(
        "Most tokens to generate",
        "the room left, or `--default-max-tokens`",
        _AT_LEAST_1,
        "OpenAI: at least 16.",
    ),
    "min_tokens": FieldNote(
        "No EOS, stop id or stop string ends an answer before it has this many",
        "0",
        _AT_LEAST_0,
        _NOT_IN_OPENAI,
    ),
    # How tokens are drawn
    "temperature": FieldNote(
        "Below 0.00001 the most likely token is taken",
        "the model's own, else 1",
        _within(0, 2),
        "OpenAI: 1 by default. vLLM: raised to 0.01 if it is smaller but not 0.",
    ),
    "top_p": FieldNote(
        "Draw from the most likely tokens with this probability together",
        "the model's own, else 1",
        {"exclusiveMinimum": 0, "maximum": 1},
        "OpenAI: takes 0. vLLM: the same.",
    ),
    "top_k": FieldNote(
        "Draw from so many tokens; 0 and -1 are off",
        "the model's own, else 0",
        _within(-1, 2**31 - 1),
        _NOT_IN_OPENAI,
    ),
    "min_p": FieldNote(
        "Leave out tokens less likely than this share of the most likely one",
        "the model's own, else 0",
        _within(0, 1),
        _NOT_IN_OPENAI,
    ),
    "seed": FieldNote(
        "The same request with the same seed draws alike in any company; -1 is none",
        "none",
        _within(-(2**63), 2**63 - 1),
        "vLLM: not independent of the batch.",
    ),
    "presence_penalty": FieldNote("Taken off the logit of a token that was generated", "0", _within(-2, 2)),
    "frequency_penalty": FieldNote(
        "Taken off the logit of a token for each time that it was generated", "0", _within(-2, 2)
    ),
    "repetition_penalty": FieldNote(
        "Divides the positive logits of tokens of prompt and answer, multiplies the negative ones",
        "the model's own, else 1",
        _within(0.001, 1000),
        "OpenAI: none. vLLM: any above 0.",
    ),
    "logit_bias": FieldNote(
        "By token id; added to logits, also of greedy requests. Values are clamped to -100..100.",
        differs="OpenAI: refuses larger ones. vLLM: the same.",
    ),
    # Where it ends
    "stop": FieldNote(
        "A string or up to 64, of 16,384 characters in all; the earliest match in the text ends the answer",
        schema=_STOP,
        differs="OpenAI: up to 4. vLLM: of several, the first listed one is looked for first.",
    ),
    "stop_token_ids": FieldNote(
        "Tokens that end an answer; they count, but are not in the text", differs=_NOT_IN_OPENAI
    ),
    "include_stop_str_in_output": FieldNote(
        "End after the stop string instead. SGLang's name for it, `no_stop_trim`, is taken too.",
        "false",
        differs=_NOT_IN_OPENAI,
    ),
    "ignore_eos": FieldNote("No EOS of the model ends an answer", "false", differs=_NOT_IN_OPENAI),
    # What the answer holds
    "echo": FieldNote("Begin the text with the prompt; with `logprobs` it is scored too", "false"),
    "CompletionRequest.logprobs": FieldNote(
        "List so many of the most likely tokens, and the chosen one; up to `--max-logprobs`; true is 1",
        "none",
        _COUNT_OR_BOOL,
        "OpenAI: up to 5. vLLM: the same.",
    ),
    "logprobs": FieldNote("Give the log-probability of each token, of the model's raw logits", "false"),
    "top_logprobs": FieldNote(
        "List so many of the most likely tokens too; up to `--max-logprobs`",
        "0",
        _AT_LEAST_0,
        "OpenAI: up to 20. vLLM: -1 for all.",
    ),
    "prompt_logprobs": FieldNote(
        "Score the prompt: list so many of the most likely tokens in the place of each; not in streams",
        "none",
        _AT_LEAST_0,
        "OpenAI: none. vLLM: -1 for all; a rank for each.",
    ),
    "return_token_ids": FieldNote("Give the ids of prompt and answer", "false", differs=_NOT_IN_OPENAI),
    "return_tokens_as_token_ids": FieldNote(
        "Name tokens `token_id:N` in log-probabilities", "false", differs=_NOT_IN_OPENAI
    ),
    "stream": FieldNote("Send the answer as server-sent events", "false"),
    "stream_options": FieldNote(
        "Only with `stream`. `include_usage`: the usage comes last; `continuous_usage_stats`: in each chunk",
        differs="OpenAI: the first only. vLLM: chunks before the last have no `usage`, here it is null.",
    ),
    "include": FieldNote(
        "`message.output_text.logprobs`",
        differs="OpenAI: many more; those are refused.",
    ),
    # How text becomes tokens, and back
    "add_special_tokens": FieldNote(
        "Begin texts with BOS, where the model wants one", "true", differs=_NOT_IN_OPENAI
    ),
    "ChatRequest.add_special_tokens": FieldNote(
        "Ignored: the chat template writes BOS, or not", differs="vLLM: off unless asked for."
    ),
    "skip_special_tokens": FieldNote("Leave special tokens out of the text", "true", differs=_NOT_IN_OPENAI),
    "return_token_strs": FieldNote(
        "Give each token as the vocabulary has it", "false", differs=_NOT_IN_OPENAI
    ),
    "tokens": FieldNote("Token ids", differs=_NOT_IN_OPENAI),
    "TokenizeRequest.prompt": FieldNote(
        "A text or a list of texts; without it, a conversation in `messages`",
        schema=_TEXTS,
        differs="OpenAI: none. vLLM: no lists.",
    ),
    # The conversation's rendering
    "add_generation_prompt": FieldNote(
        "End the prompt with the beginning of an answer",
        "true, unless `continue_final_message`",
        differs=_NOT_IN_OPENAI,
    ),
    "continue_final_message": FieldNote(
        "Go on with the last message instead of answering it", "false", differs=_NOT_IN_OPENAI
    ),
    "chat_template_kwargs": FieldNote(
        "Variables for the chat template, such as `enable_thinking`", differs=_NOT_IN_OPENAI
    ),
    "reasoning_effort": FieldNote(
        "Handed to the chat template; `none` sets `enable_thinking` to false", differs="vLLM: the same."
    ),
    "reasoning": FieldNote("`effort`: as `reasoning_effort` of chats", differs="OpenAI: also summaries."),
    "text": FieldNote("`format`: as `response_format` of chats", '`{"format": {"type": "text"}}`'),
    # Tools, reasoning and structure
    "tools": FieldNote(
        "Functions that the model may call; not an empty list",
        differs="OpenAI: also custom and built-in tools.",
    ),
    "tool_choice": FieldNote(
        "`auto`, `none`, `required`, or one function",
        "`auto` with tools",
        differs="OpenAI: also `allowed_tools`.",
    ),
    "parallel_tool_calls": FieldNote("False keeps only the first call of an answer", "true"),
    "include_reasoning": FieldNote("False leaves the reasoning out", "true", differs=_NOT_IN_OPENAI),
    "chat_template": FieldNote(
        "A template of the request's own; needs `--trust-request-chat-template`", differs=_NOT_IN_OPENAI
    ),
    "response_format": FieldNote(
        "`text`, `json_object`, or `json_schema` with a schema that the answer then fits",
        '`{"type": "text"}`',
        differs="OpenAI: a subset of JSON Schema. vLLM: also `structural_tag`.",
    ),
    "structured_outputs": FieldNote(
        "One of `json`, `regex`, `choice`, `grammar`, `json_object`", differs=_NOT_IN_OPENAI
    ),
    "guided_json": FieldNote("`structured_outputs.json` by its old name", differs="vLLM: ignored."),
    "guided_regex": FieldNote("`structured_outputs.regex` by its old name", differs="vLLM: ignored."),
    "guided_choice": FieldNote("`structured_outputs.choice` by its old name", differs="vLLM: ignored."),
    "guided_grammar": FieldNote("`structured_outputs.grammar` by its old name", differs="vLLM: ignored."),
    "truncate_prompt_tokens": FieldNote(
        "Keep at most so many tokens of the prompt; -1 keeps what leaves room for the answer",
        "prompts are never cut",
        {"minimum": -1},
        _NOT_IN_OPENAI,
    ),
    "truncation_side": FieldNote(
        "Where the tokens beyond that are taken away",
        "`left`",
        {"enum": ["left", "right", None]},
        _NOT_IN_OPENAI,
    ),
    # Who asks
    "cache_salt": FieldNote(
        "Keeps cached prefixes apart from those of other salts",
        schema={"minLength": 1},
        differs=_NOT_IN_OPENAI,
    ),
    "priority": FieldNote(
        "Lower runs first; other than 0 only with `--scheduling-policy priority`",
        "0",
        differs=_NOT_IN_OPENAI,
    ),
    "request_id": FieldNote(
        "A label, answered in `x-request-id` unless that header was sent. `rid` is taken too.",
        differs="vLLM, SGLang: the engine's key for the request.",
    ),
    "service_tier": FieldNote(
        "Whatever it is, the answer says `default`", differs="OpenAI: other prices and speeds. vLLM: ignored."
    ),
    "AbortRequest.request_id": FieldNote("The id of the answer that is to end"),
    "abort_all": FieldNote("End all of them", "false"),
    # What /v1/responses knows of and does not offer
    "ResponsesRequest.n": FieldNote("Only 1: a response is one answer", "1"),
    "ResponsesRequest.max_tokens": FieldNote("Refused: it is `max_output_tokens` here"),
    "ResponsesRequest.prompt_logprobs": FieldNote("Refused"),
    "ResponsesRequest.return_token_ids": FieldNote("Refused"),
    "ResponsesRequest.return_tokens_as_token_ids": FieldNote("Refused"),
    "ResponsesRequest.add_special_tokens": FieldNote("Refused"),
    "ResponsesRequest.response_format": FieldNote("Refused: it is `text.format` here"),
    "ResponsesRequest.stream_options": FieldNote("Accepted for its `include_obfuscation`, which is ignored"),
    "previous_response_id": FieldNote("A 404: nothing is stored", differs="OpenAI, vLLM: offered."),
    "conversation": FieldNote("Refused: nothing is stored", differs="OpenAI: offered."),
    "ResponsesRequest.prompt": FieldNote("Refused: nothing is stored", differs="OpenAI: a stored template."),
    "background": FieldNote("Only false", "false", differs="OpenAI, vLLM: offered."),
    "store": FieldNote("Ignored; the answer says false", "false", differs="OpenAI: true unless given."),
    "truncation": FieldNote(
        "Only `disabled`: input is never cut", "`disabled`", differs="OpenAI: also `auto`."
    ),
    "metadata": FieldNote("Repeated in the answer"),
}
"""By field, or by model and field where one name means several things."""


REQUIRED = {
    "CompletionRequest": "prompt",
    "ChatRequest": "messages",
    "ResponsesRequest": "input",
    "DetokenizeRequest": "tokens",
}
"""Fields without a default, by model."""


def note_of(model: str, field: str) -> FieldNote:
    """Raises `KeyError` for a field that has none."""
    return NOTES.get(f"{model}.{field}") or NOTES[field]


def describe(model_schema: dict[str, Any], model: str) -> None:
    """Add the notes to a model's JSON schema."""
    if model in REQUIRED:
        model_schema["required"] = [REQUIRED[model]]
    for field, schema in model_schema["properties"].items():
        if f"{model}.{field}" in NOTES or field in NOTES:
            note = note_of(model, field)
            schema.pop("title", None)
            if "anyOf" in note.schema:
                schema.clear()
            schema.update(note.schema)
            schema["description"] = note.text
