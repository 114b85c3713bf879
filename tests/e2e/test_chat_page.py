"""The chat page in Chromium, against a real server and a real model."""

from __future__ import annotations

import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect, sync_playwright

from tests.e2e.server import LiveServer, serve
from ui.markdown import render

ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
LONG = "Write a long story about a lighthouse keeper and a storm."
SLOW_MS = 60_000
"""The reference operators on a busy machine write a few tokens a second."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        assert path or Path(playwright.chromium.executable_path).exists(), "Chromium is not installed; `make system` tries to"
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser, server: LiveServer) -> Iterator[BrowserContext]:
    """A browser window. Errors of the page, and requests to anywhere but the server, fail the test."""
    context = browser.new_context(viewport={"width": 1200, "height": 760}, permissions=["clipboard-read", "clipboard-write"])
    context.set_default_timeout(SLOW_MS)
    trouble: list[str] = []
    context.on("console", lambda message: trouble.append(message.text) if message.type in ("error", "warning") else None)
    context.on("weberror", lambda error: trouble.append(str(error.error)))
    context.on("request", lambda request: None if request.url.startswith(server.url) else trouble.append(request.url))
    yield context
    context.close()
    assert trouble == []


def answer(page: Page) -> Locator:
    return page.locator("article.assistant").last


def text_of(page: Page) -> str:
    return answer(page).locator(".prose").inner_text().strip()


def grow(page: Page, beyond: str, by: int = 12) -> str:
    """Wait until the answer is longer; returns it. What was there must still begin it."""
    page.wait_for_function(
        "n => [...document.querySelectorAll('article.assistant .prose')].at(-1)?.innerText.trim().length > n",
        arg=len(beyond) + by,
    )
    grown = text_of(page)
    # The last word, and marks that become something else when they are complete, may still change.
    assert grown.startswith(beyond[: max(0, len(beyond) - 15)])
    return grown


def ask(page: Page, text: str) -> None:
    page.locator("#composer-text").fill(text)
    page.keyboard.press("Enter")


def test_a_conversation_from_the_first_question_to_its_deletion(context: BrowserContext, server: LiveServer) -> None:
    page = context.new_page()
    page.goto(server.url)
    expect(page.locator("#model-facts")).to_contain_text(f"{server.model} · a window of 2,048 tokens")

    # Shift+Enter breaks the line, Enter sends; the address becomes the chat's.
    page.keyboard.type("Hello.")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type(LONG)
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{server.url}/chats/1")
    expect(page.locator("article.user .text")).to_have_text(f"Hello.\n{LONG}")
    expect(page.locator("#composer-text")).to_have_value("")
    expect(answer(page)).to_have_attribute("aria-busy", "true")
    seen = grow(page, "")
    seen = grow(page, seen)

    # A reload in mid-answer shows what was there and goes on; a second tab does too.
    page.reload()
    assert text_of(page).startswith(seen[:-15])
    expect(answer(page)).to_have_attribute("aria-busy", "true")
    seen = grow(page, seen)
    other = context.new_page()
    other.goto(page.url)
    grow(other, seen)

    # Escape stops, in both tabs; what was streamed is exactly what was kept.
    page.bring_to_front()
    page.keyboard.press("Escape")
    expect(answer(page).locator(".note")).to_contain_text("Stopped.")
    other.bring_to_front()
    expect(answer(other).locator(".note")).to_contain_text("Stopped.")
    kept = httpx.get(f"{server.url}/ui/messages/2/text").text
    assert len(kept) > 30
    for tab in (page, other):
        streamed = tab.locator("#m2-closed").inner_html()
        tab.reload()
        assert tab.locator("#m2-closed").inner_html() == streamed
        assert browser_html(tab, render(kept)) == streamed
    other.close()
    page.bring_to_front()
    facts = answer(page).locator(".facts")
    for words in ("tokens/s", "to first token", "cached"):
        expect(facts).to_contain_text(words)
    answer(page).locator(".copy-message").click()
    expect(answer(page).locator(".copy-message")).to_have_class("copy-message done")
    assert page.evaluate("navigator.clipboard.readText()") == kept

    # The stopped answer goes on from where it was.
    page.get_by_role("button", name="Continue").click()
    expect(answer(page)).to_have_attribute("aria-busy", "true")
    grow(page, text_of(page))
    page.locator("#composer-action .stop").click()
    expect(answer(page).locator(".note")).to_contain_text("Stopped.")
    assert httpx.get(f"{server.url}/ui/messages/2/text").text.startswith(kept)

    # A second chat beside the first.
    page.get_by_role("link", name="New chat").click()
    ask(page, "Say hello.")
    expect(page).to_have_url(f"{server.url}/chats/2")
    chats = page.locator("#conversations li")
    expect(chats).to_have_count(2)
    grow(page, "", 1)
    chats.nth(1).get_by_role("link").click()
    expect(page).to_have_url(f"{server.url}/chats/1")
    assert text_of(page).startswith(kept[:20].strip())

    # Renamed in place, then both are deleted; the one that may still be written is stopped.
    chats.nth(1).hover()
    chats.nth(1).get_by_role("button", name="Rename").click()
    page.get_by_label("Name of the chat").fill("The keeper")
    page.keyboard.press("Enter")
    expect(page.locator("#chat-title")).to_have_text("The keeper")
    expect(page).to_have_title("The keeper · Pagewell")
    for left, chat in ((1, "#c2"), (0, "#c1")):
        page.locator(chat).hover()
        page.locator(chat).get_by_role("button", name="Delete").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(chats).to_have_count(left)
    expect(page).to_have_url(f"{server.url}/")
    server.wait_idle()


def test_eight_tabs_leave_connections_for_what_a_person_does(context: BrowserContext, server: LiveServer) -> None:
    """Browsers allow six to a server. A tab that nobody looks at holds none, and is up to date when it is shown."""
    first = context.new_page()
    first.goto(server.url)
    ask(first, LONG)
    expect(first).to_have_url(re.compile("/chats/"))
    tabs = [first]
    for _ in range(7):
        leave(tabs[-1])
        tabs.append(context.new_page())
        tabs[-1].goto(first.url)
        grow(tabs[-1], "", 1)
        assert tabs[-2].evaluate(FETCH_S) < 5
    tabs[-1].keyboard.press("Escape")
    expect(answer(tabs[-1]).locator(".note")).to_contain_text("Stopped.")
    assert first.locator("article.assistant .note").count() == 0
    leave(tabs[-1])
    come_back(first)
    expect(answer(first).locator(".note")).to_contain_text("Stopped.")
    assert first.locator("article").count() == 2
    server.wait_idle()


FETCH_S = """async () => {
    const began = performance.now();
    await fetch("/health", { cache: "no-store", signal: AbortSignal.timeout(10000) });
    return (performance.now() - began) / 1000;
}"""


def leave(page: Page) -> None:
    """As if another tab were shown: an automated browser takes every tab for the shown one."""
    page.evaluate(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange', {bubbles: true}))"
    )


def come_back(page: Page) -> None:
    page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange', {bubbles: true}))")


def browser_html(page: Page, html: str) -> str:
    """HTML as the browser writes it."""
    return page.evaluate("html => new DOMParser().parseFromString(html, 'text/html').body.innerHTML", html)


def test_the_page_fits_a_phone_and_keeps_a_draft(browser: Browser, server: LiveServer) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True, color_scheme="dark")
    page = context.new_page()
    page.goto(server.url)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    expect(page.locator("#sidebar")).to_be_hidden()
    page.get_by_role("button", name="Chats").tap()
    expect(page.get_by_role("link", name="New chat")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#sidebar")).to_be_hidden()
    page.locator("#composer-text").fill("half a thought")
    page.reload()
    expect(page.locator("#composer-text")).to_have_value("half a thought")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(23, 22, 20)"
    context.close()


def test_nothing_looks_alive_while_the_connection_is_lost(browser: Browser, tmp_path: Path) -> None:
    look = """() => [getComputedStyle(document.querySelector('.dot')).backgroundColor,
        getComputedStyle(document.querySelector('[aria-busy] .tail > p:last-child'), '::after').animationName,
        getComputedStyle(document.querySelector('[aria-busy] .tail > p:last-child'), '::after').backgroundColor]"""
    with serve(tmp_path, "--max-model-len", "512") as server:
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(SLOW_MS)
        page.goto(server.url)
        ask(page, LONG)
        page.wait_for_selector("[aria-busy] .tail > p:last-child")
        green, blinks, caret = page.evaluate(look)
        assert (blinks, caret) == ("blink", green)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        expect(page.locator("#offline")).to_contain_text("The connection to Pagewell is lost")
        grey, blinks, caret = page.evaluate(look)
        assert (blinks, caret) == ("none", grey) and grey != green
        context.close()


def test_a_killed_server_keeps_the_text_and_offers_to_go_on(tmp_path: Path) -> None:
    with serve(tmp_path, "--max-model-len", "512") as first:
        httpx.post(f"{first.url}/ui/chats", data={"text": LONG}).raise_for_status()
        while len(kept := httpx.get(f"{first.url}/ui/messages/2/text").text) < 20:
            time.sleep(0.1)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
    with serve(tmp_path, "--max-model-len", "512") as second:
        page = httpx.get(f"{second.url}/chats/1").text
        assert "Interrupted when the server stopped." in page and "/ui/messages/2/continue" in page
        assert httpx.get(f"{second.url}/ui/messages/2/text").text.startswith(kept)
        httpx.post(f"{second.url}/ui/messages/2/continue").raise_for_status()
        assert httpx.post(f"{second.url}/ui/generations/2/stop").status_code == 204
