"""Chat templates render as transformers renders them, and cannot do harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from outrider.errors import InvalidRequest, ModelError
from outrider.models.checkpoints.chat_template import ChatTemplate
from outrider.models.checkpoints.checkpoint import Checkpoint

CHAT = [
    {"role": "system", "content": "Be brief & <kind>."},
    {"role": "user", "content": "Hi\n  there"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "Why?"},
]
TEMPLATES = [
    "{{ bos_token }}{% for m in messages %}\n    {% if m['role'] == 'user' %}[I] {{ m['content'] | trim }}\n"
    "    {% else %}{{ m.content }}{{ eos_token }}{% endif %}\n{% endfor %}",
    "{% for m in messages %}{% if loop.index0 > 2 %}{% break %}{% endif %}{{ m | tojson }}{% endfor %}",
    "{%- set ns = namespace(n=0) -%}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"
    "{% if tools %}T{% endif %}{% if add_generation_prompt %}A:{% endif %}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}|{% endfor %}",
    "{{ strftime_now('%Y') | length }} {{ messages | tojson(indent=2) }}{{ missing }}",
]


@pytest.fixture(scope="module")
def reference(default_model_dir: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(str(default_model_dir))


@pytest.mark.parametrize("source", TEMPLATES)
@pytest.mark.parametrize("prompt", [True, False])
def test_renders_as_transformers_does(source: str, prompt: bool, reference: Any) -> None:
    expected = reference.apply_chat_template(CHAT, chat_template=source, add_generation_prompt=prompt, tokenize=False)
    ours = ChatTemplate(source, {"bos_token": reference.bos_token, "eos_token": reference.eos_token})
    assert ours.render(CHAT, prompt) == expected


@pytest.mark.parametrize("chat", [CHAT, CHAT[1:], CHAT[1:2]])
def test_default_model_chats_as_transformers_does(
    chat: list[dict[str, str]], default_checkpoint: Checkpoint, reference: Any
) -> None:
    tokenizer = default_checkpoint.tokenizer
    for prompt in (True, False):
        expected = reference.apply_chat_template(chat, add_generation_prompt=prompt, return_dict=False)
        assert tokenizer.apply_chat_template(chat, prompt) == expected
    assert tokenizer.render_chat(chat).endswith("<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "at least one"),
        ([{"role": "user"}], r"messages\[0\]"),
        ([*CHAT, {"role": "user", "content": None}], r"messages\[4\]"),
        ([{"role": "robot", "content": "x"}], "only humans"),
    ],
)
def test_messages_that_cannot_be_rendered(messages: list[Any], message: str) -> None:
    template = ChatTemplate("{% if messages[0].role == 'robot' %}{{ raise_exception('only humans') }}{% endif %}", {})
    with pytest.raises(InvalidRequest, match=message):
        template.render(messages)


@pytest.mark.parametrize("source", ["{% for m in messages %}", "{{ messages[99].content.x }}", "{{ 1 / 0 }}"])
def test_broken_template_is_one_clear_error(source: str) -> None:
    with pytest.raises((ModelError, InvalidRequest), match="chat template"):
        ChatTemplate(source, {}).render(CHAT)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__ }}",
    ],
)
def test_template_stays_in_its_sandbox(source: str) -> None:
    try:
        seen = ChatTemplate(source, {}).render(CHAT)
    except (ModelError, InvalidRequest):
        return
    assert seen == ""
