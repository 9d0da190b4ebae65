from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import loadgen
from loadgen.record import files, read_run
from loadgen.simulator.profile import write_profile
from server.cli.main import main
from tests.support.simulation import make_profile

TRACES = Path(loadgen.__file__).parent / "traces" / "samples"
BANNED = {"torch", "transformers", "fastapi", "uvicorn", "pydantic", "server", "model", "kernels"}


@pytest.fixture
def profile(tmp_path: Path) -> str:
    path = tmp_path / "profile.json"
    write_profile(make_profile(num_blocks=4096, max_model_len=8192), path)
    return str(path)


def test_a_simulated_run_reads_like_a_live_one_and_repeats_byte_by_byte(
    profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(TRACES / "azure_conv_120s.csv")
    command = ["simulate", trace, "--profile", profile, "--duration", "20", "--slo", "ttft=500"]
    assert main([*command, "--output", str(tmp_path / "a")]) == 0
    assert main([*command, "--output", str(tmp_path / "b")]) == 0
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name
    run = read_run(tmp_path / "a")
    summary = json.loads((tmp_path / "a" / files.SUMMARY).read_bytes())
    assert summary["verdict"]["valid"] and summary["requests"]["succeeded"] == len(run.results) > 20
    assert summary["goodput"]["attainment"] > 0
    page, table = tmp_path / "a.html", tmp_path / "a.md"
    assert main(["report", str(tmp_path / "a"), "-o", str(page), "-o", str(table)]) == 0
    assert "in virtual time" in page.read_text() and "in virtual time" in table.read_text()
    assert "times real time" in capsys.readouterr().out


def test_a_run_is_simulated_from_its_own_directory_and_compared_with_it(
    profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(TRACES / "mooncake_conversation_300s_short.jsonl")
    command = ["simulate", trace, "--profile", profile, "--duration", "20", "--seed", "3"]
    assert main([*command, "--output", str(tmp_path / "a")]) == 0
    again = ["simulate", str(tmp_path / "a"), "--profile", profile, "--seed", "3"]
    assert main([*again, "--output", str(tmp_path / "b")]) == 0
    for name in ("events.jsonl", "chunks.bin", "schedule.jsonl"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    told = capsys.readouterr().out
    assert "paired, request by request" in told and "LOADS DIFFER" not in told


def test_what_if_and_plan(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(TRACES / "mooncake_conversation_300s_short.jsonl")
    command = ["simulate", trace, "--profile", profile, "--duration", "20", "--max-output-tokens", "200"]
    changed = ["--replicas", "2", "--routing", "prefix-affinity", "--num-kv-blocks", "1024"]
    assert main([*command, *changed, "--itl-target-ms", "20", "--admission-ttft-ms", "4000"]) == 0
    capsys.readouterr()
    assert main([*command, "--slo", "ttft=3000", "--plan", "1,4"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    replicas = [int(row.split()[1]) for row in rows]
    assert "replicas" in header and len(rows) == 2 and 1 <= replicas[0] <= replicas[1]
    assert main([*command, "--slo", "ttft=3000", "--replicas", "3", "--tally"]) == 0
    header, row, requests = capsys.readouterr().out.splitlines()
    assert "replicas" in header and row.split()[1] == "3" and "requests in" in requests


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["missing.csv"],
        [str(TRACES)],
        [str(TRACES / "azure_conv_120s.csv"), "--plan", "1"],
        [str(TRACES / "azure_conv_120s.csv"), "--tally"],
        [str(TRACES / "azure_conv_120s.csv"), "--num-kv-blocks", "1"],
    ],
)
def test_bad_input_is_told_in_a_line(
    arguments: list[str], profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *arguments, "--profile", profile]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_neither_a_model_nor_a_server_is_imported() -> None:
    modules = "loadgen.simulator.cli, loadgen.simulator.calibrate"
    code = f"import sys, json, {modules}; print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {name.partition(".")[0] for name in json.loads(out)} & BANNED
