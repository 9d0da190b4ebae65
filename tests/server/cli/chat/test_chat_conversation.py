from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from server.cli.chat.conversation import Conversation, ParameterSyntaxError, split_assignments


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ("temperature=0.5 max-tokens=7", {"temperature": 0.5, "max_tokens": 7}),
        ('stop="The end"', {"stop": "The end"}),
        ("""stop='["a b", "c"]'""", {"stop": ["a b", "c"]}),
        ("ignore_eos=true", {"ignore_eos": True}),
        ("model=a=b", {"model": "a=b"}),
        ("seed=1 seed= seed=null", {}),
        ("", {}),
    ],
)
def test_parameters(text: str, parameters: dict[str, Any]) -> None:
    conversation = Conversation()
    assert conversation.set_parameters(split_assignments(text)) == []
    assert conversation.parameters == parameters


@pytest.mark.parametrize(
    "text", ["temperature", "=1", "a b=1", "stream=false", "messages=[]", "n=2", 'stop="x']
)
def test_what_is_no_parameter_changes_nothing(text: str) -> None:
    conversation = Conversation(parameters={"seed": 1})
    with pytest.raises(ParameterSyntaxError):
        conversation.set_parameters(split_assignments(f"seed=2 {text}"))
    assert conversation.parameters == {"seed": 1}


def test_unknown_names_are_told_and_kept() -> None:
    conversation = Conversation()
    assert conversation.set_parameters(["temprature=1", "seed=2"]) == ["temprature"]
    assert conversation.parameters == {"temprature": 1, "seed": 2}


def test_saved_is_what_would_be_sent(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": "Gr\u00fc\u00dfe"},
        {"role": "assistant", "content": "\U0001f642"},
    ]
    conversation = Conversation("Be kind.", {"model": "m", "seed": 1}, messages)
    path = tmp_path / "chat.json"
    conversation.save(str(path))
    assert json.loads(path.read_text()) == conversation.request() == {
        "model": "m",
        "seed": 1,
        "messages": [{"role": "system", "content": "Be kind."}, *messages],
    }  # fmt: skip
    with pytest.raises(FileExistsError):
        conversation.save(str(path))
