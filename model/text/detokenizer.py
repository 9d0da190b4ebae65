"""Token ids to text, one token at a time: the front end's hottest path.

Most tokens are whole UTF-8 characters, so their text is looked up. Bytes of an incomplete character are
held until the next tokens complete or break it. The text of all pushes and the flush joined is what
`Tokenizer.decode` gives, with two deliberate differences for SentencePiece-like tokenizers, both as in
SentencePiece itself. Where byte tokens in a row hold both valid and invalid UTF-8, `decode` turns all of
them into U+FFFD, though the valid characters were sent long ago; here those stay, and each invalid byte
becomes one U+FFFD. And U+2581 spelled in byte tokens is that character here; a Metaspace decoder, which
sees it joined, takes it for the mark of a space, and at the beginning of a text for nothing.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from model.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_MAX_CHARACTER_BYTES = 4
_MAX_TAIL_TOKENS = 64  # of a prompt's end, those without text included; no broken character is longer


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return _REPLACEMENT * (error.end - error.start), error.end


codecs.register_error("octavo_replace_each_byte", _replace_each_byte)


class IncrementalDetokenizer:
    """Turns the tokens that follow a prompt into text, as `decode(prompt + output)[len(decode(prompt)):]`
    would.

    The prompt's own text is never returned. It matters in two ways: the first token of a text may lose
    its leading space (only after an empty prompt), and a prompt may end inside a character, whose
    replacement mark then counts as the prompt's.
    """

    __slots__ = (
        "_errors",
        "_is_plain",
        "_pending",
        "_prompt_marks",
        "_raw",
        "_starts_text",
        "_texts",
        "_tokenizer",
    )

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), *, skip_special_tokens: bool = True
    ) -> None:
        table = tokenizer.table
        self._tokenizer = tokenizer
        self._texts = tokenizer.token_texts(skip_special_tokens=skip_special_tokens)
        self._raw = table.raw
        self._errors = "replace" if table.byte_level else "octavo_replace_each_byte"
        self._pending = self._incomplete_tail(prompt_ids)
        self._prompt_marks = codecs.utf_8_decode(self._pending, self._errors, True)[0]
        self._starts_text = table.trims_start and not any(self._has_text(token_id) for token_id in prompt_ids)
        self._is_plain = not (self._pending or self._starts_text)

    def push(self, token_id: int) -> str:
        """The text that this token completes; "" while a character is incomplete or the token has no text.

        `token_id` is not negative. Ids beyond the vocabulary (rows that pad a model's embedding) have no
        text.
        """
        try:
            text = self._texts[token_id]
        except IndexError:
            return ""
        if self._is_plain and text is not None:
            return text
        return self._push_beside_incomplete(token_id, text)

    def flush(self) -> str:
        """What an incomplete character at the end of the output becomes; "" if there is none."""
        text = self._end_pending()
        self._is_plain = not self._starts_text
        return text

    def _push_beside_incomplete(self, token_id: int, text: str | None) -> str:
        if text == "":
            return ""  # a skipped special token: the bytes around it still join
        if text is None:
            data = self._pending + self._raw[token_id]
            decoded, length = codecs.utf_8_decode(data, self._errors, False)
            self._pending = data[length:]
            text = self._without_prompt_marks(decoded)
        elif self._pending:
            text = self._end_pending() + text
        elif self._starts_text:
            text = self._tokenizer.first_text(token_id)
        self._starts_text = False
        self._is_plain = not self._pending
        return text

    def _end_pending(self) -> str:
        """Give up on the incomplete character."""
        decoded, _ = codecs.utf_8_decode(self._pending, self._errors, True)
        self._pending = b""
        return self._without_prompt_marks(decoded)

    def _without_prompt_marks(self, text: str) -> str:
        """`text` without the character that the prompt began; only the first non-empty text can hold it."""
        if not self._prompt_marks or not text:
            return text
        marks, self._prompt_marks = self._prompt_marks, ""
        return text.removeprefix(marks) if text.startswith(marks) else text[1:]

    def _incomplete_tail(self, prompt_ids: Sequence[int]) -> bytes:
        """The bytes at the end of the prompt that begin a character and do not end it."""
        tail = b""
        for token_id in reversed(prompt_ids[-_MAX_TAIL_TOKENS:]):
            if len(tail) >= _MAX_CHARACTER_BYTES or (
                self._has_text(token_id) and self._texts[token_id] is not None
            ):
                break
            if self._has_text(token_id):
                tail = self._raw[token_id] + tail
        _, length = codecs.utf_8_decode(tail, self._errors, False)
        return tail[length:]

    def _has_text(self, token_id: int) -> bool:
        return 0 <= token_id < len(self._texts) and self._texts[token_id] != ""
