"""Tool calls of Qwen3-Coder: `<tool_call>` around a tag for the function and for each parameter."""

from __future__ import annotations

from server.parsers.calls.xml_call import END_FUNCTION, END_PARAMETER, FUNCTION, PARAMETER, XmlCall
from server.parsers.formats.tagged_calls import CLOSE, OPEN, TaggedCalls


class Qwen3CoderParser(TaggedCalls):
    """The model is known to leave `<tool_call>` out."""

    tags = (OPEN, CLOSE, FUNCTION, END_FUNCTION, PARAMETER, END_PARAMETER)
    call_mark = FUNCTION
    outside_marks = (OPEN, CLOSE, FUNCTION)
    call_starts = (f"{OPEN}\n{FUNCTION}", f"{OPEN}{FUNCTION}")

    def _open_call(self, prefix: str) -> XmlCall:
        return XmlCall(prefix, self._functions)
