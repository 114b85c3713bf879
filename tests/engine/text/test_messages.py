"""Messages as clients send them, over templates that differ in what they take."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import TemplateError
from engine.text.template import ChatTemplate

CHATML = ChatTemplate(
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}"
    "{% for c in m.tool_calls or [] %} CALL {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}{{ '\n' }}"
    "{% endfor %}"
)
ALTERNATING = ChatTemplate(
    "{% if messages[0].role == 'system' %}{{ '<sys>' + messages[0].content + '</sys>\n' }}"
    "{% set messages = messages[1:] %}{% endif %}"
    "{% set ns = namespace(user=true) %}"
    "{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('system only first') }}{% endif %}"
    "{% if m.role == 'tool' or m.tool_calls %}"
    "{% set id = m.tool_call_id or m.tool_calls[0].id %}"
    "{% if id | length != 9 %}{{ raise_exception('ids have length 9') }}{% endif %}"
    "{{ '[' + m.role + ' ' + id + '] ' + m.content + (m.tool_calls | tojson if m.tool_calls else '') + '\n' }}"
    "{% else %}"
    "{% if (m.role == 'user') != ns.user %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set ns.user = not ns.user %}{{ '[' + m.role + '] ' + m.content + '\n' }}"
    "{% endif %}{% endfor %}"
)
NO_SYSTEM = ChatTemplate(
    "{% for m in messages %}"
    "{% if m.role not in ('user', 'assistant') or (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('no') }}{% endif %}"
    "[{{ m.role }}] {{ m.content }}{{ '\n' }}{% endfor %}"
)
HOISTING = ChatTemplate(
    "{% for m in messages if m.role == 'system' %}<sys>{{ m.content }}</sys>{{ '\n' }}{% endfor %}"
    "{% for m in messages if m.role != 'system' %}[{{ m.role }}] {{ m.content }}{{ '\n' }}{% endfor %}"
)
PARTS_ONLY = ChatTemplate(
    "{% for m in messages %}[{{ m.role }}]{% for p in m.content %} {{ p.text }}{% endfor %}{{ '\n' }}{% endfor %}"
)
STRING_ARGUMENTS = ChatTemplate(
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ ' CALL ' + c.function.name + ' ' + c.function.arguments }}{% endfor %}"
    "{{ '\n' }}{% endfor %}"
)
PARAMETERS = ChatTemplate(
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% for c in m.tool_calls or [] %} CALL {{ c.function.name }}"
    "{% for k, v in c.function.arguments | items %} {{ k }}={{ v }}{% endfor %}{% endfor %}{{ '\n' }}{% endfor %}"
)
ONE_SYSTEM = ChatTemplate(
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('one') }}{% endif %}"
    "[{{ m.role }}] {{ m.content }}{{ '\n' }}{% endfor %}"
)
KNOWS_DEVELOPER = ChatTemplate(
    "{# system, developer, user #}{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ '\n' }}{% endfor %}"
)
BARE_CALLS = ChatTemplate(
    "{% for m in messages %}[{{ m.role }}]{% if m.content is none %}"
    "{% for c in m.tool_calls %}{{ ' CALL ' + c.function.name + ' ' + c.function.arguments }}{% endfor %}"
    "{% else %} {{ m.content }}{% endif %}{{ '\n' }}{% endfor %}"
)
EVERY = [
    CHATML, ALTERNATING, NO_SYSTEM, HOISTING, PARTS_ONLY, STRING_ARGUMENTS, PARAMETERS, ONE_SYSTEM, KNOWS_DEVELOPER, BARE_CALLS,
    ChatTemplate(None),
]  # fmt: skip


def say(role: str, content=None, **more) -> dict:
    return {"role": role, "content": content, **more}


def lines(template: ChatTemplate, *messages: dict) -> list[str]:
    return template.render(messages, add_generation_prompt=False).splitlines()


def call(arguments, name: str = "f", call_id: str = "call_abcdefghijkl") -> dict:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("hi", "hi"),
        (None, ""),
        ("", ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}], "a\nb"),
        (["a", {"type": "input_text", "text": "b"}, None], "a\nb\n"),
        ([{"text": "a"}], "a"),
        ([{"type": "text", "text": None}], ""),
        ([{"type": "refusal", "refusal": "no"}], "no"),
        ({"type": "text", "text": "a"}, "a"),
    ],
)
@pytest.mark.parametrize("template", [CHATML, PARTS_ONLY], ids=["strings", "parts"])
def test_content_of_any_shape_is_text(template, content, text):
    for role in ("user", "tool"):
        assert template.render([say("user", "x"), say(role, content)]) == f"[user] x\n[{role}] {text}\n"


def test_every_role_of_clients_is_taken():
    for role in ("system", "developer", "user", "assistant", "tool", "function"):
        for content in ({}, {"content": None}, {"content": ""}, {"content": "x"}):
            assert CHATML.render([{"role": role, **content}])


def test_content_may_be_missing():
    assert lines(CHATML, {"role": "user"}) == ["[user] "]
    assert lines(CHATML, {"role": "assistant", "tool_calls": None, "name": None}) == ["[assistant] "]


@pytest.mark.parametrize(
    ("messages", "param", "words"),
    [
        ([], "messages", "no messages"),
        (["hi"], "messages[0]", "str, not an object"),
        ([{"content": "x"}], "messages[0].role", "no role"),
        ([{"role": 3, "content": "x"}], "messages[0].role", "no role"),
        ([say("user", "x"), say("alien", "x")], "messages[1].role", "not known"),
        ([say("User", "x")], "messages[0].role", "not known"),
        ([say("user", 3)], "messages[0].content", "int"),
        ([say("user", [3])], "messages[0].content[0]", "int"),
        (
            [say("user", "a"), say("user", ["a", {"type": "image_url", "image_url": "http://x/y.png"}])],
            "messages[1].content[1]",
            "image_url, but this model reads text only",
        ),
        ([say("user", [{"type": "input_audio", "input_audio": {}}])], "messages[0].content[0]", "input_audio"),
        ([say("user", [{"type": ["x"]}])], "messages[0].content[0]", "reads text only"),
        ([say("user", [{"type": "text", "text": 3}])], "messages[0].content[0].text", "int"),
        ([say("assistant", tool_calls="f()")], "messages[0].tool_calls", "str"),
        ([say("assistant", tool_calls=["f"])], "messages[0].tool_calls", "str"),
    ],
)
def test_what_cannot_be_used_is_named(messages, param, words):
    with pytest.raises(TemplateError) as caught:
        CHATML.render(messages)
    assert caught.value.param == param
    assert words in caught.value.message


def test_late_system_messages_stay_where_they_are():
    talk = [say("system", "S"), say("user", "A"), say("assistant", "B"), say("developer", "late"), say("user", "C")]
    assert lines(CHATML, *talk) == ["[system] S", "[user] A", "[assistant] B", "[system] late", "[user] C"]
    assert lines(KNOWS_DEVELOPER, say("developer", "D"), *talk[1:])[::3] == ["[developer] D", "[system] late"]
    as_user = ["<sys>S</sys>", "[user] A", "[assistant] B", "[user] <system>", "late", "</system>"]
    assert lines(HOISTING, *talk) == [*as_user, "[user] C"]
    assert lines(ALTERNATING, *talk) == [*as_user, "", "C"]
    assert lines(ONE_SYSTEM, *talk)[3:6] == ["[user] <system>", "late", "</system>"]


def test_several_first_system_messages_are_joined_only_where_they_must_be():
    talk = [say("system", "S1"), say("developer", "S2"), say("user", "A")]
    assert lines(CHATML, *talk) == ["[system] S1", "[system] S2", "[user] A"]
    assert lines(ONE_SYSTEM, *talk) == ["[system] S1", "", "S2", "[user] A"]
    assert lines(ALTERNATING, *talk) == ["<sys>S1", "", "S2</sys>", "[user] A"]


def test_a_template_without_system_gets_it_in_the_first_user_message():
    assert lines(NO_SYSTEM, say("system", "S"), say("user", "A")) == ["[user] S", "", "A"]


def test_neighbours_of_one_role_merge_only_where_the_template_demands_it():
    talk = [say("user", "A"), say("user", "B"), say("assistant", "C"), say("assistant", "D"), say("user", "E")]
    assert lines(CHATML, *talk) == ["[user] A", "[user] B", "[assistant] C", "[assistant] D", "[user] E"]
    assert lines(ALTERNATING, *talk) == ["[user] A", "", "B", "[assistant] C", "", "D", "[user] E"]


def test_a_greeting_comes_first_where_the_template_allows():
    talk = [say("assistant", "Welcome"), say("user", "A")]
    assert lines(CHATML, *talk) == ["[assistant] Welcome", "[user] A"]
    assert lines(NO_SYSTEM, *talk) == ["[user] ", "[assistant] Welcome", "[user] A"]
    assert lines(ALTERNATING, say("system", "S"), *talk) == ["<sys>S</sys>", "[user] ", "[assistant] Welcome", "[user] A"]


@pytest.mark.parametrize("template", EVERY)
def test_a_late_system_message_leaves_the_prefix_before_it_as_it_was(template):
    talk = [say("system", "S"), say("user", "A"), say("assistant", "B")]
    before = template.render(talk, add_generation_prompt=False)
    for late in ([say("system", "late"), say("user", "C")], [say("user", "C"), say("system", "late")]):
        after = template.render([*talk, *late], add_generation_prompt=False)
        assert after.startswith(before)
        assert "late" in after[len(before) :]


def test_arguments_become_what_the_template_wants():
    said = say("assistant", tool_calls=[call('{"a": "ü", "b": [1]}')])
    assert lines(CHATML, said) == ['[assistant]  CALL f {"a": "ü", "b": [1]}']
    assert lines(STRING_ARGUMENTS, said) == ['[assistant]  CALL f {"a": "ü", "b": [1]}']
    assert lines(PARAMETERS, said) == ["[assistant]  CALL f a=ü b=[1]"]
    assert lines(STRING_ARGUMENTS, say("assistant", tool_calls=[call({"a": "ü"})])) == ['[assistant]  CALL f {"a": "ü"}']


@pytest.mark.parametrize("arguments", ["", None, "null", "{}", " "])
def test_no_arguments_are_an_empty_object(arguments):
    said = say("assistant", tool_calls=[call(arguments)])
    assert lines(CHATML, said) == ["[assistant]  CALL f {}"]
    assert lines(PARAMETERS, said) == ["[assistant]  CALL f"]


@pytest.mark.parametrize("template", EVERY)
@pytest.mark.parametrize("arguments", ['{"a": ', "not json", "[1, 2]", '"text"', "3", "[" * 5000, [1], 3, {"a": None}])
def test_broken_arguments_never_crash(template, arguments):
    talk = [say("user", "A"), say("assistant", tool_calls=[call(arguments)]), say("tool", "R", tool_call_id="call_abcdefghijkl")]
    text = template.render(talk)
    assert "R" in text
    if isinstance(arguments, str) and template not in (HOISTING, PARTS_ONLY):
        assert arguments in text or json.dumps(arguments) in text


@pytest.mark.parametrize("template", EVERY)
def test_calls_and_results_are_never_lost(template):
    talk = [
        say("user", "A"),
        say("assistant", tool_calls=[call('{"key": "value"}', name="search")]),
        say("tool", [{"type": "text", "text": "first"}, {"type": "text", "text": "second"}], tool_call_id="call_abcdefghijkl"),
        say("tool", [], tool_call_id="other"),
    ]
    text = template.render(talk)
    for word in ("A", "search", "key", "value", "first", "second"):
        assert word in text
        text = text[text.index(word) + len(word) :]


def test_calls_stand_alone_where_the_template_looks_for_null_content():
    said = say("assistant", "Let me see.", tool_calls=[call('{"a": 1}')])
    assert lines(BARE_CALLS, said) == ["[assistant] Let me see.", '[assistant] CALL f {"a": 1}']
    assert lines(CHATML, said) == ['[assistant] Let me see. CALL f {"a": 1}']


def test_ids_are_shortened_where_the_template_insists_and_still_match():
    talk = [say("user", "A"), say("assistant", tool_calls=[call("{}")]), say("tool", "R", tool_call_id="call_abcdefghijkl")]
    _, calling, result = lines(ALTERNATING, *talk)
    assert calling.split("]")[0].split()[1] == result.split("]")[0].split()[1]
    assert ALTERNATING.abilities.short_call_ids
    assert not CHATML.abilities.short_call_ids


def test_the_single_function_call_of_older_clients_is_a_tool_call():
    talk = [say("assistant", function_call={"name": "f", "arguments": '{"a": 1}'}), say("function", "R", name="f")]
    assert lines(CHATML, *talk) == ['[assistant]  CALL f {"a": 1}', "[tool] R"]


def test_fields_that_a_template_may_read_stay():
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{{ m.reasoning_content }}{{ m.name }}{% endfor %}")
    assert template.render([say("assistant", "x", reasoning_content="why", name=None)]) == "xwhy"


def test_the_clients_messages_are_left_as_they_were():
    talk = [say("user", ["a"]), say("assistant", tool_calls=[call('{"a": 1}')]), say("assistant", "pre")]
    before = json.dumps(talk)
    for template in EVERY:
        template.render(talk, continue_final=True)
    assert json.dumps(talk) == before


_TEXT = st.text(max_size=5)
_PART = st.one_of(_TEXT, st.fixed_dictionaries({"type": st.just("text"), "text": _TEXT}))
_PARTS = st.one_of(st.none(), _TEXT, st.lists(_PART, max_size=3))
_CALLS = st.lists(st.builds(call, st.one_of(st.none(), st.text(max_size=8), st.just('{"a": 1}'))), max_size=2)
_MESSAGES = st.lists(
    st.one_of(
        st.builds(say, st.sampled_from(["system", "developer", "user", "assistant"]), _PARTS),
        st.builds(lambda content, calls: say("assistant", content, tool_calls=calls), _PARTS, _CALLS),
        st.builds(lambda content: say("tool", content, tool_call_id="call_abcdefghijkl"), _PARTS),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=200, deadline=None)
@given(_MESSAGES, st.sampled_from([t for t in EVERY if t not in (ALTERNATING, NO_SYSTEM)]))
def test_no_history_makes_a_liberal_template_fail(messages, template):
    template.render(messages)


@settings(max_examples=200, deadline=None)
@given(_MESSAGES, st.sampled_from([ALTERNATING, NO_SYSTEM]), st.sampled_from([[], [say("assistant", "Welcome")]]))
def test_histories_are_made_to_alternate_for_strict_templates(messages, template, start):
    if template is ALTERNATING:  # it counts user and plain assistant turns only, so calls without an answer break its rule
        messages = [m for m in messages if m["role"] != "tool" and "tool_calls" not in m]
    template.render([*start, *messages, say("user", "A")])
