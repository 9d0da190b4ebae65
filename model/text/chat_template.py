"""Renders chat messages to the prompt text that a model was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.environment import Template

from model.config import ModelError
from model.text.template_environment import make_environment
from model.text.template_messages import (
    ChatTemplateError,
    Message,
    TemplateTraits,
    prepare_messages,
    read_traits,
)

__all__ = ["ChatTemplate", "ChatTemplateError"]

_RESERVED = frozenset(
    {"add_generation_prompt", "bos_token", "chat_template", "continue_final_message", "conversation"}
    | {"eos_token", "messages", "return_dict", "return_tensors", "tokenize", "tools"}
)
# Marks where the final message ends in the rendered text, if that message is to be continued. A template may
# trim messages, so the mark ends in a space that shows whether this one does.
_END_MARK = "OCTAVO-END-OF-FINAL-MESSAGE "


class ChatTemplate:
    """A model's chat template; without a source, rendering tells that the model has none.

    `tool_source` is used instead of `source` for requests with tools, where a model brings two templates.
    Raises ModelError for a template that does not parse. Rendering is safe from several threads.
    """

    def __init__(
        self,
        source: str | None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        *,
        tool_source: str | None = None,
    ) -> None:
        self._special_tokens = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        self._plain = _Compiled(source) if source is not None else None
        self._with_tools = _Compiled(tool_source) if tool_source is not None else self._plain

    def __bool__(self) -> bool:
        return self._plain is not None

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text, special tokens written out; encode it with `Tokenizer.encode_chat`.

        `template_kwargs` become variables of the template. Raises ChatTemplateError, with the template's own
        words where it refused the messages.
        """
        compiled = self._with_tools if tools else self._plain
        if compiled is None:
            raise ChatTemplateError("this model has no chat template; set one with --chat-template")
        variables = {"documents": None, **(template_kwargs or {})}
        if reserved := _RESERVED.intersection(variables):
            raise ChatTemplateError(f"{min(reserved)!r} cannot be set through chat_template_kwargs")
        if add_generation_prompt and continue_final_message:
            raise ChatTemplateError("add_generation_prompt and continue_final_message cannot both be true")
        prepared = prepare_messages(messages, compiled.traits)
        final_text = _mark_final_message(prepared) if continue_final_message else None
        variables |= self._special_tokens
        variables |= {"messages": prepared, "tools": list(tools) if tools else None}
        variables |= {"add_generation_prompt": add_generation_prompt}
        text = compiled.render(variables)
        return text if final_text is None else _cut_at_mark(text, final_text)


class _Compiled:
    def __init__(self, source: str) -> None:
        environment = make_environment()
        try:
            tree = environment.parse(source)
            self.template: Template = environment.from_string(tree)
        except TemplateSyntaxError as error:
            raise ModelError(f"chat template, line {error.lineno}: {error.message}") from None
        self.traits: TemplateTraits = read_traits(source, tree)

    def render(self, variables: dict[str, Any]) -> str:
        try:
            return self.template.render(variables)
        except TemplateError as error:
            raise ChatTemplateError(error.message or type(error).__name__) from error
        except Exception as error:  # a template may fail in any way that Python code may
            reason = f"{type(error).__name__}: {error}"
            raise ChatTemplateError(f"the chat template failed on these messages: {reason}") from error


def _mark_final_message(messages: list[dict[str, Any]]) -> str:
    """Append the mark to the last message's text, which is returned as it was."""
    content = messages[-1].get("content") if messages else None
    if isinstance(content, str):
        messages[-1]["content"] = content + _END_MARK
        return content
    if content:
        text = str(content[-1]["text"])
        content[-1]["text"] = text + _END_MARK
        return text
    raise ChatTemplateError("continue_final_message needs a last message with content")


def _cut_at_mark(text: str, final_text: str) -> str:
    """What comes before the mark, trimmed if the template trimmed the message."""
    end = text.rfind(_END_MARK.strip())
    if end < 0 or final_text.strip() not in text:
        raise ChatTemplateError("the chat template drops part of the message that is to be continued")
    return text[:end] if text.startswith(_END_MARK, end) else text[:end].rstrip()
