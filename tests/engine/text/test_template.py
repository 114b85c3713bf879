"""Chat templates: the sandbox, the real models' templates against transformers, prefill, and the default format."""

from __future__ import annotations

import datetime
import time
import tracemalloc

import pytest

from engine.errors import InvalidRequest, TemplateError
from engine.text import limits
from engine.text.template import ChatTemplate, is_prefill
from tests import models
from tests.engine.text import oracle

HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a “place” <now>",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
TALK = [
    {"role": "system", "content": "Be brief & <kind>."},
    {"role": "user", "content": "Weather in Köln?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": {"place": "Köln"}}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "12 °C"},
    {"role": "assistant", "content": "12 °C."},
    {"role": "user", "content": "Thanks 🙂"},
]


def of(gguf) -> ChatTemplate:
    return ChatTemplate.from_gguf(oracle.metadata(gguf), oracle.ours(gguf))


def by_transformers(template: ChatTemplate, messages, **options) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    texts, _ = render_jinja_template([messages], chat_template=template.source, **options)
    return texts[0]


@pytest.mark.parametrize(
    ("path_of", "talk"),
    [
        (models.smollm2, [m for m in TALK if m["role"] != "tool" and "tool_calls" not in m]),
        pytest.param(models.qwen_05b, TALK, marks=pytest.mark.models),
    ],
    ids=["smollm2", "qwen"],
)
def test_real_templates_render_as_transformers_renders_them(path_of, talk):
    template = of(path_of())
    for messages in (talk, talk[1:], HELLO):
        for tools in (None, [TOOL]):
            assert template.render(messages, tools=tools) == by_transformers(
                template, messages, tools=tools, add_generation_prompt=True
            )
    prefill = [*HELLO, {"role": "assistant", "content": "Well, "}]
    assert template.render(prefill, continue_final=True) == by_transformers(template, prefill, continue_final_message=True)


def test_smollm2_prompt_to_the_letter():
    assert of(models.smollm2()).render(HELLO) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


def test_variables_reach_the_template():
    template = ChatTemplate("{{ bos_token }}{% if enable_thinking %}think{% endif %}{{ documents | length }}", bos_token="<s>")
    assert template.render(HELLO, enable_thinking=True, documents=[1, 2]) == "<s>think2"
    assert template.render(HELLO, bos_token="evil", messages_count=3, documents=[]) == "<s>0"


def test_tools_are_written_as_json_for_a_model_not_for_html():
    template = ChatTemplate("{% for t in tools %}{{ t.function | tojson }}\n{{ t.function.name | tojson(indent=2) }}{% endfor %}")
    text = template.render(HELLO, tools=[TOOL])
    assert "“place” <now>" in text
    assert ChatTemplate("{{ tools is none }}").render(HELLO, tools=[]) == "True"


def test_blocks_loop_controls_dates_and_generation_marks_work_as_in_transformers():
    source = """\
{% for message in messages %}
    {% if loop.index0 == 2 %}
        {% break %}
    {% endif %}
    {% generation %}
{{ message.content }}
    {% endgeneration %}
{% endfor %}
{{ strftime_now("%Y") }}"""
    assert (
        ChatTemplate(source).render([*HELLO, {"role": "assistant", "content": "Hello"}, *HELLO])
        == f"Hello\nHello\n{datetime.datetime.now().year}"
    )


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__.keys() }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{{ 1 // 0 }}",
        "{{ messages[0].content + 1 }}",
        "{{ missing.attribute.of_nothing }}",
    ],
)
def test_a_template_that_misbehaves_is_a_template_error(source):
    with pytest.raises(TemplateError) as caught:
        print(ChatTemplate(source).render(HELLO))
    assert isinstance(caught.value, InvalidRequest)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source", ["{{ '{0.__class__.__mro__}' | attr('format')(1) }}", "{{ ('{0.__class__}' | attr('format_map'))([1]) }}"]
)
def test_the_attr_filter_leads_to_no_unguarded_format(source):
    with pytest.raises(TemplateError):
        print(ChatTemplate(source).render(HELLO))


LONG = "{% for i in range(99999) %}"
HEAP = "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
"""A list that would be written out with 2**60 ones."""


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 300000000 }}",
        "{{ 300000000 * 'a' }}",
        "{{ [1] * 300000000 }}",
        LONG * 2 + "x" * 1000 + "{% endfor %}" * 2,
        "{% set t %}" + LONG * 2 + "x" * 1000 + "{% endfor %}" * 2 + "{% endset %}",
        "{% set n = namespace(x='a') %}" + LONG + "{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='a') %}" + LONG + "{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set x = 'a' * 1000000 %}{% set t %}" + LONG + "{{ x[1:] }}{% endfor %}{% endset %}",
        "{{ 'x' | center(300000000) }}",
        "{{ 'x'.center(300000000) }}",
        "{{ ['x'] | map('center', 300000000) | list }}",
        "{{ '%300000000d' % 1 }}",
        "{{ '%*d' % (300000000, 1) }}",
        "{{ '%300000000d' | format(1) }}",
        "{{ '{:300000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 300000000) }}",
        "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
        "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
        "{{ ('a' * 1000000) | join('b' * 1000000) }}",
        "{{ ('b' * 1000000).join('a' * 1000000) }}",
        "{{ ('a' * 10000).translate({97: 'b' * 100000}) }}",
        "{{ ('\\n' * 100000) | indent(100000) }}",
        "{{ ('\\t' * 100000).expandtabs(100000) }}",
        "{{ range(99999) | list | tojson(indent=100000) }}",
        "{{ [1] | batch(1000000000, 0) | list }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ lipsum(n=100000) }}",
    ],
)
def test_a_template_that_makes_huge_values_is_stopped_before_it_has_them(source, monkeypatch):
    monkeypatch.setattr(limits, "MAX_CPU_S", 0.5)
    tracemalloc.start()
    try:
        with pytest.raises(TemplateError):
            print(len(ChatTemplate(source).render(HELLO)))
        assert tracemalloc.get_traced_memory()[1] < 200e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "source",
    [
        LONG * 3 + "{% endfor %}" * 3,
        "{% for i in [1] recursive %}{% if loop.depth < 60 %}{{ loop([1, 2]) }}{% endif %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        LONG + "{% set x = range(99999) | sum %}{% endfor %}",
        HEAP + "{{ n.x }}",
        HEAP + "{{ n.x | tojson }}",
        HEAP + "{{ n.x | string }}",
        HEAP + "{{ '' ~ n.x }}",
        HEAP + "{{ '%s' % (n.x,) }}",
        HEAP + "{{ '{}'.format(n.x) }}",
    ],
)
def test_a_template_without_end_is_stopped(source, monkeypatch):
    monkeypatch.setattr(limits, "MAX_CPU_S", 0.1)
    began = time.thread_time()
    with pytest.raises(TemplateError, match="computes for more than 0.1 s|intermediate text"):
        ChatTemplate(source).render(HELLO)
    assert time.thread_time() - began < 2, "the attempts to find out its abilities share one limit"


def test_a_long_conversation_is_within_the_limits():
    talk = [{"role": role, "content": "word " * 200} for _ in range(2000) for role in ("user", "assistant")]
    began = time.thread_time()
    assert len(ChatTemplate(CHATML).render(talk)) > 4_000_000
    assert time.thread_time() - began < limits.MAX_CPU_S / 2


def test_loops_know_their_length_and_neighbours():
    source = (
        "{% for m in [3, 4, 5] %}{{ loop.length }}{{ loop.last }}{{ loop.previtem }}{{ loop.revindex }} {% else %}-{% endfor %}"
    )
    assert ChatTemplate(source).render(HELLO) == "3False3 3False32 3True41 "
    assert ChatTemplate("{% for m in missing %}x{% else %}-{% endfor %}").render(HELLO) == "-"
    assert ChatTemplate("{{ messages | map(attribute='role') | join(', ') }} {{ 'abc'[1:] ~ 7 }}").render(HELLO) == "user bc7"


def test_what_a_template_raises_reaches_the_person():
    with pytest.raises(TemplateError, match="only on Tuesdays"):
        ChatTemplate("{{ raise_exception('only on Tuesdays') }}").render(HELLO)


def test_a_source_that_is_no_template_is_refused_at_once():
    with pytest.raises(TemplateError, match="not a valid Jinja template"):
        ChatTemplate("{% if %}")
    with pytest.raises(TemplateError, match="not a valid Jinja template"):
        ChatTemplate("{{ " + "(" * 10_000 + ")" * 10_000 + " }}")


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("content", ["Sure: ", "", "a\n\n", [{"type": "text", "text": "Sure: "}], ["Sure: "], None, []])
def test_a_last_assistant_message_is_continued_just_where_it_ends(content):
    text = ChatTemplate(CHATML).render([*HELLO, {"role": "assistant", "content": content}], continue_final=True)
    written = content if isinstance(content, str) else "Sure: " if content else ""
    assert text == f"<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n{written}"


def test_only_an_assistant_message_can_be_continued():
    with pytest.raises(TemplateError, match="continued"):
        ChatTemplate(CHATML).render(HELLO, continue_final=True)
    with pytest.raises(TemplateError, match="leaves out"):
        ChatTemplate("{{ messages[0].content }}").render([*HELLO, {"role": "assistant", "content": "x"}], continue_final=True)


def test_prefill_is_recognised():
    assert is_prefill([*HELLO, {"role": "assistant", "content": "x"}])
    assert not is_prefill([*HELLO, {"role": "assistant", "tool_calls": [{}]}])
    assert not is_prefill(HELLO)
    assert not is_prefill([])


def test_a_model_without_a_template_gets_a_transcript():
    template = ChatTemplate(None)
    assert template.is_default
    assert template.stop == ("\n\nUser:",)
    talk = [{"role": "system", "content": "Be brief."}, *HELLO, {"role": "assistant", "content": "Hi."}, *HELLO]
    assert template.render(talk) == "Be brief.\n\nUser: Hello\n\nAssistant: Hi.\n\nUser: Hello\n\nAssistant:"
    assert template.render(talk[:3], continue_final=True) == "Be brief.\n\nUser: Hello\n\nAssistant: Hi."
    assert not ChatTemplate(CHATML).is_default


@pytest.mark.models
def test_the_gemma_base_model_has_no_template_but_its_transcript_begins_with_bos():
    template = of(models.gemma())
    assert template.is_default
    assert template.render(HELLO) == "<bos>User: Hello\n\nAssistant:"


def test_a_transcript_has_no_bos_where_the_vocabulary_wants_none():
    smollm2 = oracle.ours(models.smollm2())
    assert ChatTemplate.from_gguf({}, smollm2).render(HELLO) == "User: Hello\n\nAssistant:"
