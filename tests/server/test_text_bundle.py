from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.sampling_params import SamplingParams
from model.config import ModelError
from model.source import ModelSource, resolve_model
from server.text_bundle import read_sampling_defaults


def folder_with(tmp_path: Path, content: object) -> ModelSource:
    (tmp_path / "generation_config.json").write_text(json.dumps(content))
    return ModelSource("folder", tmp_path, "tiny")


def test_sampling_fields_are_taken_and_others_left(tmp_path: Path) -> None:
    content = {"temperature": 0.6, "top_k": 20, "top_p": None, "do_sample": True, "eos_token_id": [1, 2]}
    defaults = read_sampling_defaults(folder_with(tmp_path, content))
    assert defaults == {"temperature": 0.6, "top_k": 20}
    assert SamplingParams(**defaults).top_k == 20


def test_a_model_without_the_file_has_none(tmp_path: Path) -> None:
    assert read_sampling_defaults(ModelSource("folder", tmp_path, "tiny")) == {}


def test_a_gguf_file_has_none_unless_it_is_the_embedded_model() -> None:
    assert read_sampling_defaults(resolve_model(None)) == {"temperature": 0.2, "top_p": 0.9}
    assert read_sampling_defaults(ModelSource("gguf", Path("tiny.gguf"), "tiny")) == {}


@pytest.mark.parametrize("content", [{"temperature": 5}, {"top_p": "high"}, [1], "text"])
def test_what_cannot_be_used_names_the_file(tmp_path: Path, content: object) -> None:
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        read_sampling_defaults(folder_with(tmp_path, content))
