from __future__ import annotations

import argparse
import re
import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import configs
from engine.config import ConfigError, EngineConfig
from server.cli.flags import CONFIG_CLASSES, add_config_arguments, build_configs, settings_of
from server.cli.main import main
from server.config import ServerConfig
from tests.support.examples import examples


def parse(*argv: str) -> tuple[EngineConfig, ServerConfig]:
    parser = argparse.ArgumentParser()
    add_config_arguments(parser)
    return build_configs(parser.parse_args(argv))


@pytest.fixture(autouse=True)
def _no_key_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCTAVO_API_KEY", raising=False)


def write_config(tmp_path: Path, text: str) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return str(path)


def test_every_field_is_a_flag_that_help_explains(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # nothing is wrapped
    with pytest.raises(SystemExit) as exit_info:
        main(["serve", "--help"])
    assert exit_info.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    for config_class in CONFIG_CLASSES:
        for field in fields(config_class):
            name = field.name.replace("_", "-")
            start = next(i for i, line in enumerate(lines) if re.match(rf"  --{name}[ ,]", line))
            entry = " ".join(
                " ".join(lines[start : start + 2]).split()
            )  # a long flag's help has its own line
            assert f"{field.metadata['help']}" in entry and "(default: " in entry, name


def test_no_field_stands_in_two_classes() -> None:
    assert len(set(ALL_NAMES)) == len(ALL_NAMES)


def test_no_flags_give_the_defaults() -> None:
    assert parse() == (EngineConfig(), ServerConfig())


def test_flags_of_every_kind() -> None:
    engine, server = parse(
        *("--model", "m", "--max-num-seqs", "7", "--gpu-memory-utilization", "0.5"),
        *("--no-enable-prefix-caching", "--enforce-eager", "--api-key", "a", "--api-key", "b", "--port", "0"),
        *("-tp", "2"),
    )
    assert engine.tensor_parallel_size == 2
    assert (engine.model, engine.max_num_seqs, engine.gpu_memory_utilization) == ("m", 7, 0.5)
    assert (engine.enable_prefix_caching, engine.enforce_eager) == (False, True)
    assert (server.api_key, server.port) == (("a", "b"), 0)


def values_of(name: str) -> st.SearchStrategy[Any]:
    (setting,) = (s for config_class in CONFIG_CLASSES for s in settings_of(config_class) if s.name == name)
    value: st.SearchStrategy[Any] = {
        bool: st.booleans(),
        int: st.integers(1, 2),
        float: st.floats(0.25, 1),
        str: st.sampled_from(setting.choices or ("/a", "b: c # d")),
    }[setting.value_type]
    if name in ("root_path", "metrics_prefix"):
        value = st.just({"root_path": "/p", "metrics_prefix": "vllm"}[name])
    if name == "ssl_keyfile":  # needs a certificate
        value = st.nothing()
    bounded = {"tensor_parallel_size": 1, "max_model_len": 2, "max_num_batched_tokens": 2}
    if name in bounded:
        value = st.just(bounded[name])
    if setting.is_tuple:
        value = st.lists(value, max_size=2)
    return value | st.none() if setting.is_optional else value


ALL_NAMES = [field.name for config_class in CONFIG_CLASSES for field in fields(config_class)]


@examples(15)
@given(st.fixed_dictionaries({}, optional={name: values_of(name) for name in ALL_NAMES}))
def test_yaml_round_trip(tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]) -> None:
    path = write_config(tmp_path_factory.mktemp("yaml"), yaml.safe_dump(values))
    engine, server = parse("--config", path)
    built = asdict(engine) | asdict(server)
    defaults = asdict(EngineConfig()) | asdict(ServerConfig())
    expected = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    assert built == defaults | expected


def test_a_flag_beats_the_file_and_the_file_beats_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", "from-environment")
    path = write_config(tmp_path, "max-num-seqs: 3\nport: 5\napi_key: from-file\n")
    engine, server = parse("--config", path, "--port", "6")
    assert (engine.max_num_seqs, server.port, server.api_key) == (3, 6, ("from-file",))
    assert parse()[1].api_key == ("from-environment",)
    assert parse("--api-key", "x", "--config", path)[1].api_key == ("x",)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("max_num_seq: 3", "max_num_seq"),
        ("port: eight", "port"),
        ("port: true", "port"),
        ("port: 1.5", "port"),
        ("port:", "port"),
        ("port: [1]", "port"),
        ("dtype: float8", "dtype"),
        ("enforce_eager: 1", "enforce_eager"),
        ("served_model_name: [a, 3]", "served_model_name"),
        ("- port", "key: value"),
        ("port: [", "not YAML"),
    ],
)
def test_a_bad_file_gives_one_line_that_names_key_and_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, named: str
) -> None:
    path = write_config(tmp_path, text)
    assert main(["serve", "--config", path]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line and path in line


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--config", "no-such-preset"], "no-such-preset"),
        (["--port", "70000"], "--port"),
        (["--max-model-len", "1"], "--max-model-len"),
        (["--event-log", "/no/such/folder/events.jsonl"], "/no/such/folder/events.jsonl"),
        (["--gpu-memory-utilization", "nan"], "--gpu-memory-utilization"),
        (["--shutdown-timeout", "nan"], "--shutdown-timeout"),
        (["--api-key", ""], "--api-key"),
        (["--metrics-prefix", "a-b"], "--metrics-prefix"),
        (["--max-num-seqs", "64", "--max-num-batched-tokens", "32"], "--max-num-batched-tokens"),
    ],
)
def test_a_bad_value_gives_one_line_that_names_the_flag(
    capsys: pytest.CaptureFixture[str], argv: list[str], named: str
) -> None:
    assert main(["serve", *argv]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line


def test_a_context_beyond_the_models_is_refused_before_torch_is_loaded() -> None:
    script = (
        "import sys; from server.cli.main import main; code = main(['serve', *sys.argv[1:]]);"
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    command = [sys.executable, "-c", script, "--port", "0", "--max-model-len", "100000"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.splitlines() == [
        "octavo: finding the model ...",
        "octavo: --max-model-len of 100000 is more than the model's 8192 positions",
    ]


@pytest.mark.parametrize("argv", [["serve", "--port", "x"], ["serve", "--max-num"], ["nonsense"], []])
def test_bad_usage_exits_with_2(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(argv)
    assert exit_info.value.code == 2
    assert "usage: octavo" in capsys.readouterr().err


@pytest.mark.parametrize("name", configs.preset_names())
def test_every_preset_builds(name: str) -> None:
    engine, _ = parse("--config", name)
    assert engine != EngineConfig()


def test_presets_exist() -> None:
    assert {"smollm2-cpu", "qwen3-0.6b-h200", "qwen3-8b-h200"} <= set(configs.preset_names())


def test_config_errors_of_the_class_itself_name_the_flag() -> None:
    with pytest.raises(ConfigError, match="--max-n "):
        ServerConfig(max_n=0)


@pytest.mark.parametrize(
    "argv",
    ["--help", "--version", "serve --help", "replay --help", "report --help", "trace --help", "chat --help"],
)
def test_help_imports_nothing_heavy(argv: str) -> None:
    script = f"""
import sys
from server.cli.main import main
try:
    main({argv.split()!r})
except SystemExit as end:
    assert end.code == 0
heavy = {{"torch", "fastapi", "transformers", "tokenizers", "uvicorn", "pydantic"}} & sys.modules.keys()
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)
