"""Shapes OpenAI chat messages as a template expects them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import nodes

Message = Mapping[str, Any]


class ChatTemplateError(ValueError):
    """The messages cannot be rendered; the message is the template's own where it raised one."""


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """What a template's source tells of the messages that it expects."""

    iterates_content: bool  # walks over a list of parts; otherwise content has to be one string
    tests_for_string: bool  # also takes a string where it would walk over parts
    knows_developer: bool
    knows_calls: bool
    tests_for_none: bool  # whether there is any content


def read_traits(source: str, tree: nodes.Template) -> TemplateTraits:
    """`tree` is the parsed `source`."""
    content_names = {"content"}
    for assignment in tree.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name) and _is_content(assignment.node, content_names):
            content_names.add(assignment.target.name)
    return TemplateTraits(
        iterates_content=any(_is_content(loop.iter, content_names) for loop in tree.find_all(nodes.For)),
        tests_for_string=any(test.name == "string" for test in tree.find_all(nodes.Test)),
        knows_developer="developer" in source,
        knows_calls="tool_calls" in source,
        tests_for_none=any(
            test.name == "none" and _is_content(test.node, content_names)
            for test in tree.find_all(nodes.Test)
        ),
    )


def _is_content(node: nodes.Node | None, names: set[str]) -> bool:
    """Whether the expression is a message's content: `x.content`, `x["content"]` or a name for it."""
    while isinstance(node, nodes.Filter):
        node = node.node
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in names


def prepare_messages(messages: Sequence[Message], traits: TemplateTraits) -> list[dict[str, Any]]:
    """Copies of `messages` for a template: fields that are None left out, content in the template's form (and
    none in the form that it expects of that), tool-call arguments as objects, `developer` as `system` where
    the template does not know it.

    Raises ChatTemplateError for content that is not text.
    """
    return [_prepare(message, f"messages[{i}]", traits) for i, message in enumerate(messages)]


def _prepare(message: Message, where: str, traits: TemplateTraits) -> dict[str, Any]:
    prepared = {key: value for key, value in message.items() if value is not None}
    if prepared.get("role") == "developer" and not traits.knows_developer:
        prepared["role"] = "system"
    if "content" in prepared:
        prepared["content"] = _prepare_content(prepared["content"], f"{where}.content", traits)
    elif traits.tests_for_none:
        prepared["content"] = None
    elif not traits.knows_calls:  # the only messages that may lack content are those with calls
        prepared["content"] = _prepare_content("", f"{where}.content", traits)
    if "reasoning" in prepared:
        prepared.setdefault("reasoning_content", prepared["reasoning"])
    if "tool_calls" in prepared:
        prepared["tool_calls"] = [_prepare_tool_call(call) for call in prepared["tool_calls"]]
    return prepared


def _prepare_content(content: Any, where: str, traits: TemplateTraits) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        wraps = traits.iterates_content and not traits.tests_for_string
        return [{"type": "text", "text": content}] if wraps else content
    if not isinstance(content, Sequence):
        raise ChatTemplateError(f"{where} must be a string or a list of text parts")
    texts = [_text_of_part(part, f"{where}[{i}]") for i, part in enumerate(content)]
    if traits.iterates_content:
        return [{"type": "text", "text": text} for text in texts]
    return "".join(texts)


def _text_of_part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if kind != "text":
        raise ChatTemplateError(
            f"{where}: parts of type {kind!r} are not supported, this model reads text only"
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise ChatTemplateError(f"{where}.text must be a string")
    return text


def _prepare_tool_call(call: Any) -> Any:
    """OpenAI sends the arguments as JSON text, templates want the object; anything else stays as it is."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return call
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}
