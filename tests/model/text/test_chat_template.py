"""Chat templates render as in transformers; what they refuse comes back in their own words."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from model.config import ModelError
from model.embedded import embedded_gguf_path
from model.source import ModelSource
from model.text.chat_template import ChatTemplate, ChatTemplateError
from model.text.chat_template_files import load_chat_template
from model.text.tokenizer import Tokenizer, load_tokenizer
from tests.support.tiny_tokenizers import BOS, EOS, byte_level_backend

CHATML = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' + (messages[0].content if messages[0].role == 'system' else '') }}
    {%- for tool in tools %}
        {{- '\\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'system' and tools %}{% continue %}{% endif %}
    {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>' + call.function.name + ' ' + (call.function.arguments | tojson) + '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

HEADERS = """\
{{- bos_token }}
{% for message in messages %}
    {% set content = '<|h|>' + message['role'] + '<|/h|>\\n\\n' + message['content'] | trim + '<|eot|>' %}
    {% generation %}
    {{- content -}}
    {% endgeneration %}
{% endfor %}
{% if add_generation_prompt %}
    {{- '<|h|>assistant<|/h|>\\n\\n' }}
{% endif %}
"""

ALTERNATING = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set turns = messages %}
{%- endif %}
{%- for message in turns %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.first and system is defined %}
            {{- '[INST] ' + system + '\\n\\n' + message['content'] + '[/INST]' }}
        {%- else %}
            {{- '[INST] ' + message['content'] + '[/INST]' }}
        {%- endif %}
    {%- else %}
        {{- ' ' + message['content'] + eos_token }}
    {%- endif %}
{%- endfor %}
"""

PARTS = """\
{%- for message in messages %}
    {{- message.role + ': ' }}
    {%- for part in message.content %}
        {%- if part.type == 'text' %}{{ '[' + part.text + ']' }}{% endif %}
    {%- endfor %}
{%- endfor %}
"""

STRINGS_OR_PARTS = """\
{%- for message in messages %}
    {%- set content = message['content'] %}
    {%- if content is string %}
        {{- '[' + content + ']' }}
    {%- else %}
        {%- for part in content %}{{ '[' + part['text'] + ']' }}{% endfor %}
    {%- endif %}
{%- endfor %}
"""

TEMPLATES = {"chatml": CHATML, "headers": HEADERS, "alternating": ALTERNATING}

USER = {"role": "user", "content": " What <b>is</b> ž? "}
ASSISTANT = {"role": "assistant", "content": "It is\n\nthis. "}
SYSTEM = {"role": "system", "content": "Be brief."}
CHATS = [[USER], [SYSTEM, USER], [USER, ASSISTANT, USER], [SYSTEM, USER, ASSISTANT]]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "x": "é <&>"}}}
TOOL_CHAT = [
    SYSTEM,
    USER,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "2"},
]

BACKEND = byte_level_backend()
TOKENIZER = Tokenizer(BACKEND, bos_token_id=1, eos_token_ids=[2])


def oracle(template: str) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=BACKEND, bos_token=BOS, eos_token=EOS)
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("mode", ["prompt", "whole", "continue"])
def test_renders_as_transformers(name: str, chat: list[dict[str, str]], mode: str) -> None:
    options = {"add_generation_prompt": mode == "prompt", "continue_final_message": mode == "continue"}
    template = ChatTemplate(TEMPLATES[name], BOS, EOS)
    text = template.render(chat, **options)
    hf = oracle(TEMPLATES[name])
    assert text == hf.apply_chat_template(chat, tokenize=False, **options)
    ids = TOKENIZER.encode_chat(text)
    assert ids == hf.apply_chat_template(chat, return_dict=False, **options)
    assert ids[:2].count(1) == (name != "chatml")


@pytest.mark.parametrize("thinking", [True, False])
def test_tools_and_template_variables_render_as_transformers(thinking: bool) -> None:
    text = ChatTemplate(CHATML, BOS, EOS).render(
        TOOL_CHAT, [TOOL], template_kwargs={"enable_thinking": thinking}
    )
    chat = json.loads(json.dumps(TOOL_CHAT))
    chat[2]["tool_calls"][0]["function"]["arguments"] = {"a": 1}
    assert text == oracle(CHATML).apply_chat_template(
        chat, tools=[TOOL], tokenize=False, add_generation_prompt=True, enable_thinking=thinking
    )
    assert '<tool_call>add {"a": 1}</tool_call>' in text and "é <&>" in text
    assert ("<think>" in text) == (not thinking)


def test_messages_are_not_changed() -> None:
    before = json.dumps(TOOL_CHAT)
    ChatTemplate(CHATML).render(TOOL_CHAT, [TOOL])
    ChatTemplate(PARTS).render([USER], add_generation_prompt=False, continue_final_message=True)
    assert json.dumps(TOOL_CHAT) == before


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [('{"a": "é"}', '{"a": "é"}'), ("", "{}"), ("{broken", '"{broken"'), ("[1]", '"[1]"')],
)
def test_tool_call_arguments_become_objects_where_they_are_json(arguments: str, shown: str) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    text = ChatTemplate(CHATML).render([{"role": "assistant", "tool_calls": [call]}])
    assert f"<tool_call>f {shown}</tool_call>" in text


@pytest.mark.parametrize(
    ("template", "content", "expected"),
    [
        (
            CHATML,
            [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            "<|im_start|>user\nab<|im_end|>\n",
        ),
        (CHATML, [], "<|im_start|>user\n<|im_end|>\n"),
        (PARTS, [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "user: [a][b]"),
        (PARTS, "ab", "user: [ab]"),
        (STRINGS_OR_PARTS, "ab", "[ab]"),
        (STRINGS_OR_PARTS, [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "[a][b]"),
    ],
)
def test_content_takes_the_form_that_the_template_reads(template: str, content: Any, expected: str) -> None:
    chat = [{"role": "user", "content": content}]
    assert ChatTemplate(template).render(chat, add_generation_prompt=False) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([{"type": "image_url", "image_url": {}}], r"messages\[0\].content\[0\]: parts of type 'image_url'"),
        ([{"type": "text"}], r"messages\[0\].content\[0\].text must be a string"),
        (5, r"messages\[0\].content must be a string or a list"),
    ],
)
def test_content_that_is_no_text_is_named(content: Any, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        ChatTemplate(CHATML).render([{"role": "user", "content": content}])


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for m in messages %}{{ m.role + m['content'] }}{% endfor %}", "assistant"),
        ("{% for m in messages %}{{ 'none' if m['content'] is none else m['content'] }}{% endfor %}", "none"),
        ("{% for m in messages %}{{ m.content }}{{ m.tool_calls[0].function.name }}{% endfor %}", "f"),
    ],
)
def test_calls_without_content_are_no_fault_of_the_message(template: str, expected: str) -> None:
    """Whether the template shows no calls, tests for content, or asks for neither."""
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    for content in ({}, {"content": None}):
        message = {"role": "assistant", **content, "tool_calls": [call]}
        assert ChatTemplate(template).render([message], add_generation_prompt=False) == expected


def test_developer_is_system_unless_the_template_knows_it() -> None:
    chat = [{"role": "developer", "content": "x"}]
    assert ChatTemplate(CHATML).render(chat).startswith("<|im_start|>system")
    knowing = CHATML + "{# developer #}"
    assert ChatTemplate(knowing).render(chat).startswith("<|im_start|>developer")


def test_reasoning_is_passed_under_the_name_that_templates_read() -> None:
    template = ChatTemplate("{{ messages[0].reasoning_content }}")
    assert template.render([{"role": "assistant", "content": "", "reasoning": "hm"}]) == "hm"


@pytest.mark.parametrize("chat", [[USER, USER], [ASSISTANT], [SYSTEM, ASSISTANT]])
def test_refusals_are_in_the_words_of_the_template(chat: list[dict[str, str]]) -> None:
    with pytest.raises(ChatTemplateError) as error:
        ChatTemplate(ALTERNATING, BOS, EOS).render(chat)
    assert str(error.value) == "Roles must alternate user/assistant/user/assistant/..."


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ messages[0].nothing.more }}", "no attribute 'nothing'"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{% set _ = messages.append(1) %}", "unsafe"),
    ],
)
def test_failures_of_the_template_are_reported(template: str, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        ChatTemplate(template).render([USER])


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "messages", "tools", "add_generation_prompt"])
def test_reserved_template_variables_are_refused(name: str) -> None:
    with pytest.raises(ChatTemplateError, match=f"'{name}' cannot be set"):
        ChatTemplate(CHATML).render([USER], template_kwargs={"fine": 1, name: True})


def test_odd_template_variables_do_no_harm() -> None:
    odd = {"self": 1, "loop": 2, "namespace": None, "raise_exception": 3, "": 4}
    assert ChatTemplate(CHATML).render([USER], template_kwargs=odd) == ChatTemplate(CHATML).render([USER])


def test_a_message_cannot_be_both_continued_and_answered() -> None:
    with pytest.raises(ChatTemplateError, match="cannot both be true"):
        ChatTemplate(CHATML).render([USER], continue_final_message=True)


@pytest.mark.parametrize("chat", [[], [{"role": "assistant"}]])
def test_there_must_be_something_to_continue(chat: list[dict[str, Any]]) -> None:
    with pytest.raises(ChatTemplateError, match="needs a last message with content"):
        ChatTemplate(CHATML).render(chat, add_generation_prompt=False, continue_final_message=True)


def test_a_template_that_drops_the_final_message_cannot_continue_it() -> None:
    with pytest.raises(ChatTemplateError, match="drops part of the message"):
        ChatTemplate("{{ messages[0].role }}").render(
            [ASSISTANT], add_generation_prompt=False, continue_final_message=True
        )


def test_parts_can_be_continued() -> None:
    chat = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b "}]}]
    text = ChatTemplate(PARTS).render(chat, add_generation_prompt=False, continue_final_message=True)
    assert text == "user: [a][b "


def test_a_broken_template_is_refused_when_it_is_read() -> None:
    with pytest.raises(ModelError, match="chat template, line 2: "):
        ChatTemplate("ok\n{% if %}")


def test_without_a_template_rendering_says_so() -> None:
    template = ChatTemplate(None)
    assert not template and ChatTemplate(CHATML)
    with pytest.raises(ChatTemplateError, match="no chat template"):
        template.render([USER])


def test_threads_render_what_one_thread_does() -> None:
    template = ChatTemplate(CHATML)
    chats = [[{"role": "user", "content": f"{i} " * 50}] for i in range(8)]
    results: dict[int, str] = {}

    def render(i: int) -> None:
        for _ in range(20):
            results[i] = template.render(chats[i])

    threads = [threading.Thread(target=render, args=(i,)) for i in range(len(chats))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: template.render(chat) for i, chat in enumerate(chats)}


def load(folder: Path, override: str | None = None) -> ChatTemplate:
    return load_chat_template(ModelSource("folder", folder, "tiny"), TOKENIZER, override)


TOOL_FILES: list[dict[str, Any]] = [
    {"tokenizer_config.json": {"chat_template": "plain {{ bos_token }}"}},
    {"chat_template.json": {"chat_template": "plain {{ bos_token }}"}},
    {"chat_template.jinja": "plain {{ bos_token }}", "tokenizer_config.json": {"chat_template": "other"}},
]


@pytest.mark.parametrize("files", TOOL_FILES)
def test_finds_the_template_of_a_folder(tmp_path: Path, files: dict[str, Any]) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    assert load(tmp_path).render([USER]) == "plain <s>"
    assert load(tmp_path).render([USER], [TOOL]) == "plain <s>"


@pytest.mark.parametrize("as_files", [True, False])
def test_a_template_of_its_own_may_serve_tools(tmp_path: Path, as_files: bool) -> None:
    if as_files:
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
        (tmp_path / "chat_template.jinja").write_text("plain")
    else:
        named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    template = load(tmp_path)
    assert [template.render([USER]), template.render([USER], [TOOL])] == ["plain", "with tools"]
    assert template.render([USER], []) == "plain"


def test_the_operator_may_give_a_file_or_the_template_itself(tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("mine {{ eos_token }}", encoding="utf-8")
    assert load(tmp_path, str(file)).render([USER], [TOOL]) == "mine </s>"
    assert load(tmp_path, "inline {{ bos_token }}").render([USER]) == "inline <s>"
    with pytest.raises(ModelError, match=r"chat template .*none.jinja: No such file"):
        load(tmp_path, str(tmp_path / "none.jinja"))


def test_a_folder_without_a_template_still_loads(tmp_path: Path) -> None:
    assert not load(tmp_path)


@pytest.mark.parametrize("value", [5, [{"name": "x"}], ["x"]])
def test_a_template_entry_of_another_shape_is_refused(tmp_path: Path, value: Any) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
    with pytest.raises(ModelError, match="neither a text nor a list"):
        load(tmp_path)


def test_embedded_model_brings_its_template() -> None:
    source = ModelSource("gguf", embedded_gguf_path(), "embedded")
    tokenizer = load_tokenizer(source)
    template = load_chat_template(source, tokenizer)
    text = template.render([{"role": "user", "content": "What is the capital of France?"}])
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert len(tokenizer.encode_chat(text)) == 37
