"""The page as its reader meets it: what is shown, what is kept, and what is refused in words."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from app.catalog.disk import LocalModel
from app.chat.service import MAX_TOKENS, _title
from engine.errors import PromptTooLong
from engine.types import FinishReason
from tests.app.chat.conftest import Site, article
from tests.app.scripted import ScriptedHost, until
from tests.ui.test_markdown import ATTACKS, assert_harmless
from ui.render import STATIC


async def test_an_empty_page_names_the_model_its_window_and_three_beginnings(site: Site) -> None:
    html = await site.page()
    assert "scripted-1B" in html and "4,096 tokens" in html
    assert 'title="limited by &lt;what&gt; is free"' in html, "what limited the window"
    assert html.count('hx-post="/ui/chats" hx-target="#chat"') == 4, "three suggestions and the composer"


async def test_a_model_is_chosen_by_its_name_to_the_last_space(site: Site) -> None:
    """Browsers send an option's text with its spaces drawn together."""
    other = ScriptedHost(site.engine)
    other.name = "two  spaces"
    site.views._pool._join(other)
    assert '<option value="two  spaces">' in await site.page()


async def test_the_page_is_there_while_the_model_loads(site: Site) -> None:
    site.host.state, site.host.progress = "loading", 0.4
    html = await site.page()
    assert '<progress max="100" value="40"' in html and "You can write already." in html


async def test_a_model_that_failed_is_said_with_its_remedy(site: Site) -> None:
    site.host.state = "failed"
    site.host.error = RuntimeError()
    site.host.error.message, site.host.error.hint = "The file is damaged.", "Download it again."
    html = await site.page()
    assert "could not be loaded" in html and "The file is damaged. Download it again." in html


async def test_nothing_in_the_page_is_inline_or_from_elsewhere(site: Site) -> None:
    response = await site.client.get("/")
    policy = response.headers["content-security-policy"]
    assert "default-src 'self'" in policy and "unsafe" not in policy
    html = response.text
    assert not re.search(r"<style|\sstyle=|<script(?! defer src=)|\son\w+=|hx-on|js:|\[[^\]]*\]\"? *>", html)
    addresses = re.findall(r'(?:src|href)="([^"]+)"', html)
    assert all(address.startswith(("/", "#")) for address in addresses)
    for address in addresses:
        if address.startswith("/static/"):
            answer = await site.client.get(address)
            assert answer.status_code == 200 and "immutable" in answer.headers["cache-control"], address


@pytest.mark.parametrize("path", sorted(STATIC.glob("*.js")))
def test_scripts_evaluate_nothing(path) -> None:
    assert not re.search(r"\beval\b|new Function|innerHTML|insertAdjacentHTML|document\.write", path.read_text())


async def test_a_question_starts_a_chat_with_both_bubbles(site: Site) -> None:
    response = await site.post("/ui/chats", text="What is <b>7</b> × 6?\nPlease.")
    assert response.headers["hx-push-url"] == "/chats/1"
    html = response.text
    assert "<title>What is &lt;b&gt;7&lt;/b&gt; × 6? Please. · Pagewell</title>" in html
    assert '<div class="text" hx-ignore>What is &lt;b&gt;7&lt;/b&gt; × 6?\nPlease.</div>' in html
    assert re.search(r'id="stream" data-url="/ui/events\?chat=1&amp;" data-after="[0-9a-f]{8}\.1\.1\.0"', html)
    assert 'hx-post="/ui/generations/1/stop"' in html and 'hx-post="/ui/chats/1/messages"' in html
    assert (await site.engine.answer()).prompt == "<user>What is <b>7</b> × 6?\nPlease.<assistant>"


def on_disk(site: Site, *names: str) -> list[LocalModel]:
    """More models, each ready, which the server has not looked for yet."""
    found = [LocalModel(name, Path("/models") / f"{name}.gguf", "gguf", 1, False) for name in names]

    def make(model: LocalModel) -> ScriptedHost:
        host = ScriptedHost(site.engine)
        host.name, host.model = model.name, model
        return host

    site.pool._find, site.pool._make = lambda: found, make
    return found


def offered(html: str) -> list[tuple[str, bool]]:
    """[(model that can be chosen, whether it is)]"""
    options = re.findall(r"<option([^>]*)>([^<]*)</option>", html)
    return [(text, "selected" in attributes) for attributes, text in options]


async def test_the_page_offers_all_models_of_this_machine_from_the_first_time_on(site: Site) -> None:
    on_disk(site, "other")
    assert offered(await site.page()) == [("scripted-1B", True), ("other", False)]


async def test_whatever_begins_a_chat_sends_the_chosen_model(site: Site) -> None:
    on_disk(site, "other")
    html = await site.page()
    beginnings = re.findall(r'<(button|form)([^>]* hx-post="/ui/chats"[^>]*)>', html)
    assert len(beginnings) == 4 and '<select id="model-choice" name="model" form="composer"' in html
    for tag, attributes in beginnings:
        assert 'id="composer"' in attributes if tag == "form" else 'hx-include="#model-choice"' in attributes, attributes


async def test_after_a_restart_a_chat_goes_on_with_its_model(site: Site) -> None:
    conversation_id = await site.answered()
    on_disk(site, "other")
    await site.post(f"/ui/chats/{conversation_id}/messages", text="second", model="other")
    (await site.engine.answer(1)).begin().say("Two.").end()
    await site.quiet(conversation_id)
    site.pool._hosts = {site.host.name.lower(): site.host}  # as it is after a start
    site.pool._looked_s = float("-inf")
    await site.post(f"/ui/chats/{conversation_id}/messages", text="third")
    assert site.plugin.hub.running_in(conversation_id).model == "other"
    (await site.engine.answer(2)).begin().fail("no block is free")
    await site.quiet(conversation_id)
    site.pool._hosts = {site.host.name.lower(): site.host}
    site.pool._looked_s = float("-inf")
    await site.post("/ui/messages/6/continue")
    assert site.plugin.hub.running_in(conversation_id).model == "other"


async def test_a_model_that_is_gone_is_told_and_no_other_answers_unasked(site: Site) -> None:
    conversation_id = await site.answered()
    on_disk(site, "other")
    await site.post(f"/ui/chats/{conversation_id}/messages", text="second", model="other")
    (await site.engine.answer(1)).begin().fail("no block is free")
    await site.quiet(conversation_id)
    on_disk(site)
    site.pool._hosts = {site.host.name.lower(): site.host}
    site.pool._looked_s = float("-inf")
    page = await site.page(f"/chats/{conversation_id}")
    assert offered(page) == [("other is not here any more", True), ("scripted-1B", False)]
    for path, form in ((f"/ui/chats/{conversation_id}/messages", {"text": "third"}), ("/ui/messages/4/continue", {})):
        refused = await site.post(path, **form)
        assert refused.status_code == 404 and "`other` does not exist here" in refused.text and "`scripted-1B`" in refused.text
    assert len(site.engine.answers) == 2
    await site.post(f"/ui/chats/{conversation_id}/messages", text="third", model="scripted-1B")
    assert site.plugin.hub.running_in(conversation_id).model == "scripted-1B"


async def test_an_answer_is_kept_with_its_measurements(site: Site) -> None:
    conversation_id = await site.start()
    (await site.engine.answer()).begin(n_cached=4).say("**Hi.**").end()
    await site.quiet(conversation_id)
    last = article(await site.page(f"/chats/{conversation_id}"))
    assert "<strong>Hi.</strong>" in last and 'data-state="done"' in last and "aria-busy" not in last
    assert "<b>3.0</b> tokens/s" in last and "<b>0.25 s</b> to first token" in last
    assert "<b>4</b> of 22 cached" in last


async def test_the_next_question_carries_the_conversation(site: Site) -> None:
    conversation_id = await site.answered("first", "one")
    response = await site.post(f"/ui/chats/{conversation_id}/messages", text="second")
    assert (response.status_code, response.text) == (204, ""), "the stream shows it, in every tab"
    assert (await site.engine.answer(1)).prompt == "<user>first<assistant>one<user>second<assistant>"


async def test_a_long_first_line_becomes_a_short_title(site: Site) -> None:
    await site.start("word " * 40)
    assert f"<title>{'word ' * 11}word… · Pagewell</title>" in await site.page("/chats/1")


async def test_a_stopped_answer_offers_to_go_on_and_does(site: Site) -> None:
    conversation_id = await site.start()
    answer = (await site.engine.answer()).begin().say("Once ")
    live = site.plugin.hub.running_in(conversation_id)
    await until(lambda: live.text == "Once ")
    assert (await site.post(f"/ui/generations/{live.generation_id}/stop")).status_code == 204
    await site.quiet(conversation_id)
    assert answer.aborted
    last = article(await site.page("/chats/1"))
    assert "Stopped." in last and f'hx-post="/ui/messages/{live.message_id}/continue"' in last

    assert (await site.post(f"/ui/messages/{live.message_id}/continue")).status_code == 204
    assert '<div class="part tail" id="m2-tail" aria-live="off"><p>Once</p>\n</div>' in await site.page("/chats/1")
    second = await site.engine.answer(1)
    assert second.prompt == "<user>hello<assistant>Once "
    second.begin().say("more.").end()
    await site.quiet(conversation_id)
    assert "<p>Once more.</p>" in article(await site.page("/chats/1"))


async def test_an_answer_that_failed_says_why_and_tries_again(site: Site) -> None:
    conversation_id = await site.start()
    (await site.engine.answer()).begin().fail("no block is free")
    await site.quiet(conversation_id)
    last = article(await site.page("/chats/1"))
    assert 'role="alert"' in last and "no block is free" in last and "Try again" in last
    await site.post("/ui/messages/2/continue")
    assert (await site.engine.answer(1)).prompt == "<user>hello<assistant>"


async def test_a_full_window_is_said(site: Site) -> None:
    conversation_id = await site.start()
    (await site.engine.answer()).begin().say("long").end(FinishReason.LENGTH)
    await site.quiet(conversation_id)
    last = article(await site.page("/chats/1"))
    assert "window is full" in last and "/continue" not in last
    assert (await site.post("/ui/messages/2/continue")).status_code == 422


async def test_an_answer_that_never_ends_pauses_and_goes_on_when_asked(site: Site) -> None:
    conversation_id = await site.start()
    answer = (await site.engine.answer()).begin()
    assert answer.params.max_tokens == MAX_TOKENS
    answer.say("x" * MAX_TOKENS).end(FinishReason.LENGTH)
    await site.quiet(conversation_id)
    last = article(await site.page("/chats/1"))
    assert "Paused after 2,048 tokens" in last and 'hx-post="/ui/messages/2/continue"' in last and "window" not in last
    assert (await site.post("/ui/messages/2/continue")).status_code == 204
    assert (await site.engine.answer(1)).prompt == "<user>hello<assistant>" + "x" * MAX_TOKENS


async def test_a_question_that_is_too_long_is_not_tried_again_and_a_shorter_one_is_answered(site: Site) -> None:
    site.engine._refusal = PromptTooLong(5000, 4096)
    conversation_id = await site.start("far too long")
    await site.quiet(conversation_id)
    last = article(await site.page("/chats/1"))
    assert "Shorten your message, or start a new chat." in last
    assert "/continue" not in last and "max-model-len" not in last
    assert (await site.post("/ui/messages/2/continue")).status_code == 422
    site.engine._refusal = None
    assert (await site.post("/ui/chats/1/messages", text="short")).status_code == 204
    assert (await site.engine.answer()).prompt == "<user>short<assistant>"


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("```python\ndef f():\n    return 1\n```", "def f(): return 1"),
        ("# Heading\n- a **bold** `word`", "Heading a bold word"),
        ("> said\n~~~\ncode\n~~~", "said code"),
        ("a * b, __init__ and C#", "a * b, __init__ and C#"),
        ("```", "```"),
    ],
)
def test_a_title_has_no_marks_of_markdown(text: str, title: str) -> None:
    assert _title(text) == title


async def test_chats_are_listed_renamed_and_deleted(site: Site) -> None:
    await site.answered("apples")
    await site.start("pears")
    listed = (await site.page("/chats/1")).partition("<nav")[2]
    assert listed.index("pears") < listed.index("apples"), "the last used first"
    assert 'class="busy"' in listed

    form = await site.page("/ui/chats/2/title?current=1")
    assert 'value="pears"' in form and "hx-morph-skip" in form
    renamed = await site.client.put("/ui/chats/2/title?current=2", data={"title": "  ripe\n pears "})
    assert '<li id="c2" class="here">' in renamed.text and "ripe pears" in renamed.text and "#chat-title" in renamed.text

    answer = await site.engine.answer(1)
    deleted = await site.client.delete("/ui/chats/2?current=1")
    assert deleted.status_code == 200 and "hx-redirect" not in deleted.headers
    assert answer.aborted, "what is written in a deleted chat stops"
    assert "does not exist" in await site.page("/chats/2", status=404)
    assert "pears" not in await site.page("/")
    assert (await site.client.delete("/ui/chats/1?current=1")).headers["hx-redirect"] == "/"
    assert "Your chats will be kept here" in await site.page("/")


@pytest.mark.parametrize(
    ("path", "data", "status", "words"),
    [
        ("/ui/chats", {"text": " \n "}, 422, "empty"),
        ("/ui/chats", {}, 400, ""),
        ("/ui/chats/99/messages", {"text": "x"}, 404, "does not exist"),
        ("/ui/chats/1/messages", {"text": "x"}, 409, "stop it first"),
        ("/ui/messages/1/continue", {}, 422, "cannot be continued"),
        ("/ui/messages/2/continue", {}, 422, "cannot be continued"),
        ("/ui/messages/99/continue", {}, 404, "does not exist"),
    ],
)
async def test_a_refusal_is_a_sentence(site: Site, path: str, data: dict[str, str], status: int, words: str) -> None:
    await site.start()
    response = await site.post(path, **data)
    assert response.status_code == status
    assert response.headers["content-type"].startswith("text/plain") and words in response.text
    assert len(site.plugin.hub.busy_conversations()) == 1


async def test_only_the_last_answer_of_a_chat_is_continued(site: Site) -> None:
    await site.start()
    (await site.engine.answer()).begin().fail("no block is free")
    await site.quiet(1)
    await site.post("/ui/chats/1/messages", text="second")
    (await site.engine.answer(1)).begin().say("An answer to what was said.").end()
    await site.quiet(1)
    refused = await site.post("/ui/messages/2/continue")
    assert refused.status_code == 422 and "cannot be continued" in refused.text


@pytest.mark.parametrize("number", ["9" * 20, "9" * 5000])
async def test_a_number_that_is_too_large_for_any_chat_is_not_found(site: Site, number: str) -> None:
    for path in (f"/chats/{number}", f"/ui/chats/{number}/item", f"/ui/messages/{number}/text"):
        assert (await site.client.get(path)).status_code == 404, path
    assert (await site.post(f"/ui/messages/{number}/continue")).status_code == 404


async def test_a_chat_that_is_deleted_holds_up_no_page_while_its_answer_stops(site: Site, monkeypatch) -> None:
    await site.start()
    answer = (await site.engine.answer()).begin()
    monkeypatch.setattr(answer.stream, "abort", lambda: None)  # the engine is in the middle of a long step
    deleting = asyncio.create_task(site.client.delete("/ui/chats/1"))
    await until(lambda: site.plugin.hub._stopped)
    async with asyncio.timeout(3):
        assert "hello" in await site.page("/chats/1")
    assert not deleting.done()
    answer.end()
    assert (await deleting).status_code == 200
    await site.page("/chats/1", status=404)


async def test_two_questions_at_once_are_one_answer(site: Site) -> None:
    conversation_id = await site.answered()
    path = f"/ui/chats/{conversation_id}/messages"
    responses = await asyncio.gather(*(site.post(path, text="x") for _ in range(4)))
    assert sorted(response.status_code for response in responses) == [204, 409, 409, 409]


async def test_what_the_model_or_the_person_writes_is_never_markup(site: Site) -> None:
    attack = "\n\n".join(ATTACKS)
    conversation_id = await site.answered(attack, attack)
    html = await site.page(f"/chats/{conversation_id}")
    question, answer = article(html, 0), article(html, 1)
    assert (
        re.sub(r"<[^<>]*>", "", question.split("hx-ignore>")[1]).strip() and "<img" not in question and "<script" not in question
    )
    body = re.search(r'-closed">(.*)</div>\n  </div>', answer, re.DOTALL)[1]
    assert_harmless(body)
    assert "<iframe" not in html and "<hx-partial" not in html
    raw = await site.client.get("/ui/messages/2/text")
    assert raw.text == attack and raw.headers["content-type"].startswith("text/plain")
