"""Finds tags in a text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class TextUntil:
    """Passes text on until a tag comes, holding back what may be the beginning of one. Reusable after a find.

    With `drops_space`, white space in front of a tag is dropped, and so held back while a tag may follow; no
    tag begins with it then. However much is held, a push looks at what is new only.
    """

    def __init__(self, tags: Sequence[str], *, drops_space: bool = False) -> None:
        self._tags = tags
        self._first_characters = frozenset(tag[0] for tag in tags)
        self._drops_space = drops_space
        self._spaces: list[str] = []  # held white space
        self._held = ""  # what may be the beginning of a tag, after it

    def push(self, text: str, start: int = 0) -> tuple[str, str | None, int]:
        """(Text that comes before any tag, the tag that was found, the index in `text` that follows it).

        Of several tags the one that starts first is found. Without a find the index is the end of `text`.
        """
        buffer = self._held + text[start:]
        if self._first_characters.isdisjoint(buffer):  # most pushes: nothing here begins a tag
            self._held = ""
            return self._pass_on(buffer), None, len(text)
        found = [(at, tag) for tag in self._tags if (at := buffer.find(tag)) >= 0]
        if not found:
            end = _growing_start(buffer, self._tags)
            self._held = buffer[end:]
            return self._pass_on(buffer[:end]), None, len(text)
        at, tag = min(found)
        before = self._pass_on(buffer[:at])
        self._spaces.clear()
        self._held = ""
        return before, tag, len(text) - (len(buffer) - at - len(tag))

    def _pass_on(self, text: str) -> str:
        """`text` after the white space that was held, but for the white space at its end, which is now."""
        if not self._drops_space:
            return text
        words = text.rstrip()
        if not words:
            self._spaces.append(text)
            return ""
        passed = words
        if self._spaces:
            passed = "".join((*self._spaces, words))
            self._spaces.clear()
        if len(words) < len(text):
            self._spaces.append(text[len(words) :])
        return passed

    def flush(self) -> str:
        """The text ends here: what was held back."""
        text = "".join((*self._spaces, self._held))
        self._spaces, self._held = [], ""
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
