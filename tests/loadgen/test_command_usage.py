"""Wrong flags are told in one line, with the exit code for usage, which is not that of a missed objective."""

from __future__ import annotations

import argparse
from types import ModuleType

import pytest

from loadgen.cli import capacity, compare, exit_codes, load, replay, report, selftest
from loadgen.simulator import calibrate
from loadgen.simulator import cli as simulate


def outcome(command: ModuleType, arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="octavo x")
    command.add_arguments(parser)
    try:
        return int(command.run(parser.parse_args(arguments)))
    except SystemExit as end:
        return int(str(end.code))


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        (replay, [], "TRACE"),
        (replay, ["/nowhere.jsonl"], "/nowhere.jsonl"),
        (replay, ["/nowhere.jsonl", "--no-such-flag"], "--no-such-flag"),
        (load, ["--requests", "many"], "'many' is not a whole number"),
        (load, ["--requests", "0"], "not above 0"),
        (load, ["--duration", "soon"], "'soon' is not a number"),
        (load, ["--lag-limits", "1,2"], "P50,P99,MAX"),
        (load, ["--token-range", "7"], "LOW:HIGH"),
        (load, ["--token-range", "7:7"], "empty"),
        (load, ["--extra-body", "{"], "not JSON"),
        (load, ["--extra-body", "[]"], "not a JSON object"),
        (load, ["--slo", "speed=3"], "speed=3"),
        (load, ["--assert", "0.9", "--requests", "1"], "--slo"),
        (load, ["--assert", "7"], "share"),
        (load, [], "--requests"),
        (load, ["--requests", "1", "--rate", "5", "--concurrency", "2"], "--rate or --concurrency"),
        (load, ["--requests", "1", "--think-time", "2"], "--concurrency"),
        (load, ["--requests", "1", "--burstiness", "0.3"], "--arrivals"),
        (load, ["--requests", "1", "--prefix-groups", "3"], "--prefix-tokens"),
        (capacity, [], "--slo"),
        (report, [], "DIR"),
        (report, ["/nowhere"], "holds no run"),
        (compare, ["/nowhere"], "two runs"),
        (selftest, ["--rate", "0"], "not above 0"),
        (simulate, ["--no-such-flag"], "--no-such-flag"),
        (calibrate, [], "--step-log"),
    ],
)
def test_wrong_flags(
    command: ModuleType, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome(command, arguments) == exit_codes.USAGE
    told = capsys.readouterr().err
    assert words in told and told.count("\n") == 1


@pytest.mark.parametrize("command", [replay, load, capacity])
def test_help_explains_every_flag(command: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser(prog="octavo x")
    command.add_arguments(parser)
    assert [action.dest for action in parser._actions if not action.help] == []
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    shown = capsys.readouterr().out
    assert "examples:\n  octavo x " in shown and "exit code: 0" in shown
