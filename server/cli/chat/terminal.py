"""The conversation at the prompt: reads a line, obeys a command or streams the answer to a message."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType

from server.cli.chat.client import AnswerStream, ChatClient, ChatError
from server.cli.chat.conversation import Conversation, ParameterSyntaxError, split_assignments

HELP = """\
  /help               this list
  /reset              forget the conversation; system prompt and parameters stay
  /system [TEXT]      set the system prompt; without text, take it away
  /set [NAME=VALUE]   set parameters, as in: /set temperature=0.7 max_tokens=200 stop="The end"
                      without a value, take one away; alone, list them
  /save FILE          write the conversation as the body of a chat request
  /quit               end, as Ctrl-D does
Ctrl-C stops an answer. A line that ends in \\ goes on in the next. A space before / makes it a message."""

# A model's text must not steer the terminal: all control characters but tab and line feed.
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


class Terminal:
    """Answers go to stdout, everything else to stderr, so that output can be piped."""

    def __init__(self, client: ChatClient, conversation: Conversation) -> None:
        self._client = client
        self._conversation = conversation
        self._is_interactive = sys.stdin.isatty()
        self._has_colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
        self._failed = False
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: self._tell(HELP),
            "/reset": self._reset,
            "/system": self._set_system,
            "/set": self._set,
            "/save": self._save,
        }

    def run(self) -> int:
        """Until the input ends or /quit. The exit code: 1 if input that was piped in met an error."""
        if self._is_interactive:
            with suppress(ImportError):  # not every Python was built with it
                import_module("readline")  # gives `input` line editing and a history of this session
            model = self._conversation.parameters["model"]
            self._tell(f"{model} at {self._client.base_url}; /help lists the commands, Ctrl-D ends")
        while True:
            try:
                line = self._read()
                if line.strip() == "/quit":
                    break
                self._take(line)
            except KeyboardInterrupt:  # at the prompt it clears the line
                self._tell("")
            except EOFError:
                self._tell("" if self._is_interactive else None)
                break
        return int(self._failed and not self._is_interactive)

    def _take(self, line: str) -> None:
        if line.startswith("/"):
            self._obey(line)
        elif line.strip():
            self._answer(line.strip())

    def _read(self) -> str:
        lines = [input("> " if self._is_interactive else "")]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(input(". " if self._is_interactive else ""))
        return "\n".join(lines)

    def _answer(self, text: str) -> None:
        """Whatever has come of an answer that was stopped or broke off becomes part of the conversation."""
        messages = self._conversation.messages
        messages.append({"role": "user", "content": text})
        stream = self._client.answer(self._conversation.request())
        pieces: list[str] = []
        note = ""
        try:
            with _noted_interrupts() as interrupts:
                self._print_pieces(stream, pieces, interrupts)
        except KeyboardInterrupt:
            note = "stopped"
        except ChatError as error:
            note = str(error)
            self._failed = True
        if pieces:
            messages.append({"role": "assistant", "content": "".join(pieces)})
            print(flush=True)
        else:
            messages.pop()
        self._tell(", ".join(filter(None, (*_figures(stream), note))))

    def _print_pieces(self, stream: AnswerStream, pieces: list[str], interrupts: list[int]) -> None:
        """Print the answer as it comes, and keep its text in `pieces`; `interrupts` end it."""
        has_thought = False
        for piece in stream:
            if interrupts:
                raise KeyboardInterrupt
            if piece.reasoning:
                self._tell(CONTROL_CHARACTERS.sub("\ufffd", piece.reasoning), end="")
                has_thought = True
            if piece.text:
                if has_thought and not pieces:
                    self._tell("\n")
                pieces.append(piece.text)
                print(CONTROL_CHARACTERS.sub("\ufffd", piece.text), end="", flush=True)

    def _obey(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        command = self._commands.get(name.strip())
        if command is None:
            self._tell(f"{name} is no command; /help lists them")
        else:
            command(argument.strip())

    def _reset(self, _: str) -> None:
        self._conversation.messages.clear()
        self._tell("the conversation is forgotten")

    def _set_system(self, text: str) -> None:
        self._conversation.system = text
        self._tell("the system prompt is set" if text else "there is no system prompt now")

    def _set(self, text: str) -> None:
        try:
            unknown = self._conversation.set_parameters(split_assignments(text))
        except ParameterSyntaxError as error:
            self._tell(str(error))
            return
        for name in unknown:
            self._tell(f"{name} is not a parameter known here; it is sent as it is")
        if not text:
            self._tell(
                "\n".join(f"  {name}={value}" for name, value in self._conversation.parameters.items())
            )

    def _save(self, path: str) -> None:
        if not path:
            self._tell("/save needs a file name")
            return
        try:
            self._conversation.save(path)
        except OSError as error:
            self._tell(f"cannot write {path}: {error.strerror}")
        else:
            self._tell(f"saved to {path}")

    def _tell(self, text: str | None, end: str = "\n") -> None:
        if text is not None:
            dim, plain = (DIM, PLAIN) if self._has_colour and text else ("", "")
            print(f"{dim}{text}{plain}", end=end, file=sys.stderr, flush=True)


def _figures(stream: AnswerStream) -> list[str]:
    if stream.time_to_first_token_s is None:
        return []
    about = "" if stream.is_counted else "about "
    figures = [f"{about}{stream.num_tokens} token{'' if stream.num_tokens == 1 else 's'}"]
    if stream.tokens_per_second is not None:
        figures.append(f"{about}{stream.tokens_per_second:.1f} tokens/s")
    figures.append(f"first after {stream.time_to_first_token_s:.2f} s")
    if stream.finish_reason == "length":
        figures.append("cut at the limit")
    return figures


@contextmanager
def _noted_interrupts() -> Iterator[list[int]]:
    """Ctrl-C raises `KeyboardInterrupt` as ever, and is noted, in case code below swallows it."""
    noted: list[int] = []

    def note(signum: int, frame: FrameType | None) -> None:
        noted.append(signum)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)
