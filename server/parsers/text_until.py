"""Finds tags in a text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class TextUntil:
    """Passes text on until a tag comes, holding back what may be the beginning of one. Reusable after a find.

    With `drops_space`, white space in front of a tag is dropped, and so held back while a tag may follow.
    """

    def __init__(self, tags: Sequence[str], *, drops_space: bool = False) -> None:
        self._tags = tags
        self._first_characters = frozenset(tag[0] for tag in tags)
        self._drops_space = drops_space
        self._held = ""

    def push(self, text: str, start: int = 0) -> tuple[str, str | None, int]:
        """(Text that comes before any tag, the tag that was found, the index in `text` that follows it).

        Of several tags the one that starts first is found. Without a find the index is the end of `text`.
        """
        buffer = self._held + text[start:]
        if self._first_characters.isdisjoint(buffer):  # most pushes: nothing here begins a tag
            return self._hold_from(buffer, len(buffer)), None, len(text)
        found = [(at, tag) for tag in self._tags if (at := buffer.find(tag)) >= 0]
        if not found:
            return self._hold_from(buffer, _growing_start(buffer, self._tags)), None, len(text)
        at, tag = min(found)
        before = buffer[:at]
        self._held = ""
        after = len(text) - (len(buffer) - at - len(tag))
        return before.rstrip() if self._drops_space else before, tag, after

    def _hold_from(self, buffer: str, end: int) -> str:
        if self._drops_space:
            end = len(buffer[:end].rstrip())
        self._held = buffer[end:]
        return buffer[:end]

    def flush(self) -> str:
        """The text ends here: what was held back."""
        text, self._held = self._held, ""
        return text


def _growing_start(text: str, tags: Sequence[str]) -> int:
    """Where the longest end of `text` starts that begins, but does not complete, one of `tags`."""
    earliest = len(text)
    for tag in tags:
        start = text.find(tag[0], max(0, len(text) - len(tag) + 1))
        while 0 <= start < earliest:
            if tag.startswith(text[start:]):
                earliest = start
            start = text.find(tag[0], start + 1)
    return earliest
