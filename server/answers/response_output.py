"""The output items of a response, in the order in which they are written, and the events telling of them."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from server.parsers.events import CallArguments, CallCut, CallStart, Content, Event, Reasoning

Emit = Callable[..., None]
"""Takes the kind of an event, without `response.`, and its fields by name."""

Logprobs = list[dict[str, Any]]


class ResponseOutput:
    """`add` what an answer consists of, then `close`. An answer without any text is an empty message."""

    def __init__(self, emit: Emit) -> None:
        self.items: list[dict[str, Any]] = []  # those that are over
        self._emit = emit
        self._open: OutputItem | None = None

    def add(self, event: Event, logprobs: Logprobs) -> None:
        """`logprobs` are those of the tokens that a `Content` comes from."""
        match event:
            case Content(text):
                self._item(MessageItem).add(text, logprobs)
            case Reasoning(text):
                self._item(ReasoningItem).add(text, [])
            case CallStart(name, call_id):
                self._begin(CallItem(name, call_id))
            case CallArguments(text):
                assert self._open is not None
                self._open.add(text, [])
            case CallCut():
                self._end("incomplete")

    def close(self, *, is_cut: bool) -> None:
        """`is_cut`: the answer reached its limit, and so did what is open; a call's `CallCut` tells that."""
        if not self.items and self._open is None:
            self._begin(MessageItem())
        is_whole = not is_cut or isinstance(self._open, CallItem)
        self._end("completed" if is_whole else "incomplete")

    def _item(self, kind: type[MessageItem] | type[ReasoningItem]) -> OutputItem:
        """The open item if it is of this kind, else a new one."""
        if not isinstance(self._open, kind):
            self._begin(kind())
        assert self._open is not None
        return self._open

    def _begin(self, item: OutputItem) -> None:
        self._end("completed")
        self._open = item
        item.begin(self._emit, len(self.items))

    def _end(self, status: str) -> None:
        if self._open is not None:
            self.items.append(self._open.end(status))
            self._open = None


class OutputItem(ABC):
    """One item: `begin`, `add` text to it, `end`. Each emits the events that OpenAI's clients wait for."""

    prefix: ClassVar[str]  # of its id

    def __init__(self) -> None:
        self.id = f"{self.prefix}_{uuid.uuid4().hex}"
        self._text = ""
        self._emit: Emit
        self._output_index = 0

    def begin(self, emit: Emit, output_index: int) -> None:
        self._emit, self._output_index = emit, output_index
        emit(
            "output_item.added", output_index=output_index, item=self._as_dict("in_progress", is_begun=False)
        )

    @abstractmethod
    def add(self, text: str, logprobs: Logprobs) -> None: ...

    def end(self, status: str) -> dict[str, Any]:
        """The whole item."""
        item = self._as_dict(status, is_begun=True)
        self._emit("output_item.done", output_index=self._output_index, item=item)
        return item

    @abstractmethod
    def _as_dict(self, status: str, *, is_begun: bool) -> dict[str, Any]:
        """The item as it is now; with `is_begun` false, before anything of it is told."""

    @property
    def _where(self) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self._output_index}


class MessageItem(OutputItem):
    prefix = "msg"

    def __init__(self) -> None:
        super().__init__()
        self._logprobs: Logprobs = []

    def begin(self, emit: Emit, output_index: int) -> None:
        super().begin(emit, output_index)
        emit("content_part.added", **self._where, content_index=0, part=self._part())

    def add(self, text: str, logprobs: Logprobs) -> None:
        self._text += text
        self._logprobs += logprobs
        self._emit("output_text.delta", **self._where, content_index=0, delta=text, logprobs=logprobs)

    def end(self, status: str) -> dict[str, Any]:
        where = {**self._where, "content_index": 0}
        self._emit("output_text.done", **where, text=self._text, logprobs=self._logprobs)
        self._emit("content_part.done", **where, part=self._part())
        return super().end(status)

    def _part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": [*self._logprobs]}

    def _as_dict(self, status: str, *, is_begun: bool) -> dict[str, Any]:
        content = [self._part()] if is_begun else []
        return {
            "id": self.id, "type": "message", "role": "assistant", "status": status, "content": content
        }  # fmt: skip


class ReasoningItem(OutputItem):
    prefix = "rs"

    def begin(self, emit: Emit, output_index: int) -> None:
        super().begin(emit, output_index)
        emit("content_part.added", **self._where, content_index=0, part=self._part())

    def add(self, text: str, logprobs: Logprobs) -> None:
        self._text += text
        self._emit("reasoning_text.delta", **self._where, content_index=0, delta=text)

    def end(self, status: str) -> dict[str, Any]:
        where = {**self._where, "content_index": 0}
        self._emit("reasoning_text.done", **where, text=self._text)
        self._emit("content_part.done", **where, part=self._part())
        return super().end(status)

    def _part(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": self._text}

    def _as_dict(self, status: str, *, is_begun: bool) -> dict[str, Any]:
        content = [self._part()] if is_begun else []
        return {"id": self.id, "type": "reasoning", "status": status, "summary": [], "content": content}


class CallItem(OutputItem):
    prefix = "fc"

    def __init__(self, name: str, call_id: str) -> None:
        super().__init__()
        self._name = name
        self._call_id = call_id

    def add(self, text: str, logprobs: Logprobs) -> None:
        self._text += text
        self._emit("function_call_arguments.delta", **self._where, delta=text)

    def end(self, status: str) -> dict[str, Any]:
        self._emit("function_call_arguments.done", **self._where, name=self._name, arguments=self._text)
        return super().end(status)

    def _as_dict(self, status: str, *, is_begun: bool) -> dict[str, Any]:
        return {
            "id": self.id, "type": "function_call", "status": status,
            "call_id": self._call_id, "name": self._name, "arguments": self._text,
        }  # fmt: skip
