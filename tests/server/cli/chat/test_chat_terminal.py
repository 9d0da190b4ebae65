"""`octavo chat` as its user sees it: in this process with scripted lines, and once in a real terminal."""

from __future__ import annotations

import builtins
import json
import os
import pty
import re
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from server.cli.main import main
from tests.support.byte_text import byte_tokenizer
from tests.support.process import wait_until

# The machine may starve both sides for a second; what fails three times in a row is wrong.
pytestmark = pytest.mark.flaky(reruns=2)


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """`talk(url, lines, *flags)`: the exit code, and what came on stdout and stderr."""

    def run(url: str, lines: list[str], *flags: str) -> tuple[int, str, str]:
        waiting = iter(lines)

        def read(prompt: str = "") -> str:
            try:
                return next(waiting)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setattr(builtins, "input", read)
        code = main(["chat", "--url", url, *flags])
        return code, *capsys.readouterr()

    return run


def prompts_of(served: Any) -> list[str]:
    tokenizer = byte_tokenizer()
    return [tokenizer.decode(request.prompt_token_ids.tolist()) for request in served.engine.submitted]


def test_a_conversation(talk: Any, serve: Any, tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    lines = [
        "one",
        "",
        "two\\",
        "lines",
        "/reset",
        " /three",
        "/system Be brief.",
        "/set seed=4",
        "four",
        f"/save {saved}",
    ]
    with serve() as served:
        code, out, err = talk(
            served.url, lines, "--system", "Be kind.", "--temperature", "0.5", "--set", "top_k=3"
        )
        assert code == 0 and out == "one\ntwo\nlines\n/three\nfour\n"
        assert prompts_of(served) == [
            "[system]Be kind.[user]one[assistant]",
            "[system]Be kind.[user]one[assistant]one[user]two\nlines[assistant]",
            "[system]Be kind.[user]/three[assistant]",
            "[system]Be brief.[user]/three[assistant]/three[user]four[assistant]",
        ]
        params = [request.params for request in served.engine.submitted]
        assert {(p.temperature, p.top_k) for p in params} == {(0.5, 3)}
        assert [p.seed for p in params] == [None, None, None, 4]
    figures = r"^\d+ tokens, ([\d.]+ tokens/s, )?first after \d\.\d\d s$"
    assert len(re.findall(figures, err, re.MULTILINE)) == 4
    assert json.loads(saved.read_text())["messages"][-1] == {"role": "assistant", "content": "four"}


def test_commands_explain_themselves(talk: Any, served: Any) -> None:
    lines = [
        "/help",
        "/nope",
        "/set temperature",
        "/set temprature=1",
        "/set",
        "/save",
        "/save /nope/x",
        "/quit",
        "never",
    ]
    code, out, err = talk(served.url, lines)
    assert (code, out) == (0, "")
    for told in (
        *("/reset", "/nope is no command", "temperature: expected name=value"),
        *("temprature is not a parameter known", "  temprature=1", "  model=test-model"),
        *("needs a file name", "cannot write /nope/x: No such file"),
    ):
        assert told in err
    assert served.engine.num_running == 0


def test_an_error_loses_nothing_and_the_next_message_works(talk: Any, serve: Any) -> None:
    with serve() as served:
        code, out, err = talk(served.url, ["one", "x" * 600, "two"])
        assert code == 1 and out == "one\ntwo\n"
        assert "context" in err
        assert prompts_of(served)[-1] == "[user]one[assistant]one[user]two[assistant]"


def test_a_models_text_does_not_steer_the_terminal(talk: Any, served: Any) -> None:
    _, out, _ = talk(served.url, ["a\x1b[2Jb\x9bc\rd\te"])
    assert out == "a\ufffd[2Jb\ufffdc\ufffdd\te\n"


@pytest.mark.parametrize(
    ("flags", "code", "told"),
    [
        (
            ["--url", "http://127.0.0.1:1"],
            1,
            "no server answers at http://127.0.0.1:1/v1 (Connection refused)",
        ),
        (["--url", "gopher://x"], 1, "is no address"),
        (["--set", "n=2"], 2, "n is set by the chat itself"),
    ],
)
def test_a_start_that_fails_says_why_in_one_line(
    capsys: pytest.CaptureFixture[str], flags: list[str], code: int, told: str
) -> None:
    assert main(["chat", *flags]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("octavo chat: ") and told in line


class TerminalProcess:
    """A command in a terminal of its own."""

    def __init__(self, *command: str) -> None:
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.execv(command[0], command)
        self.seen = ""

    def send(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def expect(self, text: str) -> None:
        """Wait for it, and forget all up to it."""
        deadline = time.monotonic() + 20
        while text not in self.seen:
            assert time.monotonic() < deadline, f"no {text!r} in {self.seen!r}"
            if select.select([self._fd], [], [], 0.1)[0]:
                self.seen += os.read(self._fd, 4096).decode()
        self.seen = self.seen.partition(text)[2]

    def exit_code(self) -> int:
        """Once it has ended by itself."""
        with suppress(OSError):  # how Linux tells the end
            while os.read(self._fd, 4096):
                pass
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def hang_up(self) -> None:
        os.close(self._fd)


@pytest.fixture
def in_terminal() -> Iterator[Callable[..., TerminalProcess]]:
    """`in_terminal(*command)` starts it; what still runs after the test is hung up."""
    terminals: list[TerminalProcess] = []

    def start(*command: str) -> TerminalProcess:
        terminals.append(TerminalProcess(*command))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.hang_up()


def test_control_c_stops_the_answer_and_control_d_ends(serve: Any, in_terminal: Any) -> None:
    answer = byte_tokenizer().encode("endless ", add_special_tokens=False)
    with serve(lambda request, index: answer, engine={"step_s": 0.03}) as served:
        terminal = in_terminal(sys.executable, "-m", "server.cli.main", "chat", "--url", served.url)
        terminal.expect("> ")
        terminal.send("question\r")
        terminal.expect("endless")
        terminal.send("\x03")
        terminal.expect("stopped")
        wait_until(lambda: served.engine.num_running == 0, 10)
        terminal.expect("> ")
        terminal.send("half a line")
        terminal.expect("half a line")
        terminal.send("\x03")  # at the prompt it clears the line
        terminal.expect("> ")
        terminal.send("/set max_tokens=3\r")
        terminal.expect("> ")
        terminal.send("another\r")
        terminal.expect("\nend")
        terminal.expect("3 tokens, ")
        terminal.expect("> ")
        terminal.send("\x04")
        assert terminal.exit_code() == 0
