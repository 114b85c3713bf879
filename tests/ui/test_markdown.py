"""Untrusted markdown becomes HTML that can do nothing, and that htmx does not act on."""

from __future__ import annotations

import itertools
import re
import time
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pygments.token import STANDARD_TYPES

from ui.markdown import HIGHLIGHT_LIMIT, HIGHLIGHT_S, INLINE_LIMIT, LEXERS, render, render_live

ALLOWED = {
    "a": {"href", "target", "rel", "class"},
    "ol": {"start"},
    **dict.fromkeys(("div", "span", "th", "td"), {"class"}),
    "button": {"class", "type"},
    **dict.fromkeys(("p", "br", "hr", "strong", "em", "s", "blockquote", "ul", "li", "h3", "h4", "h5", "h6"), set()),
    **dict.fromkeys(("pre", "code", "table", "thead", "tbody", "tr"), set()),
}
CLASSES = {"image", "code", "code-head", "table", "lang", "copy", "left", "center", "right", *STANDARD_TYPES.values()}

ATTACKS = [
    # CVE-2025-46719: raw frames and handlers that a chat page stored and ran.
    '<iframe src="/api/v1/files/1" onload="alert(1)"></iframe>',
    '<iframe srcdoc="<script>parent.alert(1)</script>"></iframe>',
    "<video src=x onerror=alert(1)>",
    '```html\n<iframe srcdoc="<script>alert(1)</script>">\n```',
    # CVE-2025-64496: text that pretends to be an event of the stream.
    "hello\n\nevent: execute\ndata: alert(1)\n\n",
    "hello\r\revent: end\rdata: x\r\r",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=alert(1)&gt;'>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    "<style>*{display:none}</style>",
    "<form action=/ui/chats/1 method=post><button>go</button></form>",
    "<base href=https://evil.example/>",
    "<meta http-equiv=refresh content='0;url=https://evil.example'>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](java&#x73;cript:alert(1))",
    "[x](\tjavascript:alert(1))",
    "[x](vbscript:msgbox(1))",
    "[x](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    "[x](/ui/chats/1)",
    "[x](//evil.example/)",
    "[x](https://e.example 'a\" onmouseover=\"alert(1)')",
    "<javascript:alert(1)>",
    "![x](javascript:alert(1))",
    "![x](data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9YWxlcnQoMSk+)",
    '![x" onerror="alert(1)](https://e.example/i.png)',
    "![a](https://e.example/\"onerror='alert(1)')",
    "[![x](https://e.example/i.png)](javascript:alert(1))",
    '```a" onmouseover="alert(1)\nx\n```',
    "```<img src=x onerror=alert(1)>\nx\n```",
    "`<img src=x onerror=alert(1)>`",
    "| <img src=x onerror=alert(1)> |\n|---|\n| <script>alert(1)</script> |",
    # What htmx would act on.
    '<hx-partial hx-target="body" hx-swap="innerHTML">gone</hx-partial>',
    "[x](https://e.example '<hx-partial hx-target=\"body\">')",
    "[x](https://e.example '<head><title>x</title></head>')",
    "```<hx-partial hx-target=body>\nx\n```",
    "<div hx-get=/ui/chats hx-trigger=load></div>",
    "<div data-hx-post=/ui/chats hx-on:load=alert(1)></div>",
    "<div sse-connect=https://evil.example/></div>",
    '<template hx type="partial" hx-target="body">x</template>',
    "<title>phished</title>",
]


class _Check(HTMLParser):
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ALLOWED, tag
        for name, value in attrs:
            assert name in ALLOWED[tag], (tag, name)
            assert value is not None
            if name == "href":
                assert value.startswith(("http://", "https://", "mailto:")), value
            if name == "class":
                assert set(value.split()) <= CLASSES, value
            assert "<" not in self.get_starttag_text()[1:], "htmx rewrites <hx-...> inside attributes too"


def assert_harmless(html: str) -> None:
    _Check(convert_charrefs=True).feed(html)
    assert not re.search(r"<hx-|<head|<template|<title", html, re.IGNORECASE)


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_becomes_text_or_a_harmless_link(attack: str) -> None:
    for text in (attack, f"- {attack}", f"> {attack}", f"**{attack}**", f"a\n\n{attack}\n\nb"):
        assert_harmless(render(text))
        assert_harmless(render_live(text))


@given(
    st.lists(
        st.sampled_from([*ATTACKS, "\n", "\n\n", "- ", "> ", "`", "```\n", "**", "[", "](", ")", "|", "\\", '"', "<", "&"]),
        max_size=8,
    )
)
def test_attacks_stay_harmless_when_mixed(parts: list[str]) -> None:
    assert_harmless(render("".join(parts)))


@given(st.text())
def test_any_text_can_be_rendered(text: str) -> None:
    assert_harmless(render(text))


def test_raw_html_is_shown_as_text() -> None:
    assert render("<b>x</b>") == "<p>&lt;b&gt;x&lt;/b&gt;</p>\n"


def test_code_is_coloured_and_keeps_its_text() -> None:
    code = 'def f(x):\n\n    return "<a & b>"  # ok\n'
    html = render(f"```python\n{code}```")
    assert '<span class="k">def</span>' in html
    assert _text(re.search(r"<pre><code>(.*)</code></pre>", html, re.DOTALL)[1]) == code


@pytest.mark.parametrize("info", ["", "nosuchlanguage", "python"])
def test_code_without_a_known_language_or_too_long_is_plain(info: str) -> None:
    code = "x = 1\n" * (HIGHLIGHT_LIMIT // 6 + 1) if info == "python" else "x = 1\n"
    html = render(f"```{info}\n{code}```")
    assert f"<pre><code>{code}</code></pre>" in html
    assert f'<span class="lang">{info}</span>' in html


HOSTILE = ["\n", " ", "a\n", "a ", "/", "$", '"\\', " \n", "=", "<!--", "(", "a.", "\r", "a::"]
"""Repeated, each of these takes some lexer time that grows with the square of their number."""


def seconds(text: str) -> float:
    """Processor time of rendering, the least of three."""
    return min(_once(text) for _ in range(3))


def _once(text: str) -> float:
    began = time.thread_time()
    render_live(text)
    return time.thread_time() - began


@pytest.mark.parametrize("language", sorted(LEXERS))
def test_no_code_keeps_its_lexer_busy_beyond_the_bound(language: str) -> None:
    for unit in HOSTILE:
        code = (unit * HIGHLIGHT_LIMIT)[: HIGHLIGHT_LIMIT - 1] + "\n"
        took = []
        while min(took, default=9) > 2 * HIGHLIGHT_S and len(took) < 3:
            began = time.thread_time()
            render.__globals__["_colours"](code, language)
            took.append(time.thread_time() - began)
        assert min(took) <= 2 * HIGHLIGHT_S, unit


def test_code_that_takes_its_lexer_too_long_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = itertools.count()
    monkeypatch.setattr("ui.markdown.time.thread_time", lambda: next(readings) * HIGHLIGHT_S / 10)
    assert '<span class="mi">' in render("```python\n1\n```")
    assert f"<code>{'1 ' * 20}\n</code>" in render(f"```python\n{'1 ' * 20}\n```")


@pytest.mark.parametrize("language", ["ini", "matlab", "agda"])
def test_languages_whose_lexers_were_not_tried_are_plain(language: str) -> None:
    assert "<code>a = 1\n</code>" in render(f"```{language}\na = 1\n```")


@pytest.mark.parametrize("unit", ["http://a", "://", "a://", "<http://"])
def test_work_grows_with_the_text_and_not_with_its_square(unit: str) -> None:
    few = unit * (INLINE_LIMIT // 8 // len(unit))
    assert seconds(few * 8) < 24 * seconds(few), "eight times the text would take 64 times as long"
    paragraph = f"{few * 8}\n\n"
    assert seconds(paragraph * 4) < 10 * seconds(paragraph)


def test_a_paragraph_beyond_the_bound_is_shown_as_written() -> None:
    text = "[" * INLINE_LIMIT + "**x**"
    assert render(text) == f"<p>{text}</p>\n"


def test_an_endless_run_of_characters_is_no_address() -> None:
    assert "href=" in render(f"see https://e.example/{'a' * 300}_b_c_d")
    assert "href=" not in render(f"see https://e.example/{'a' * 3000}")


def test_long_texts_are_not_kept_in_memory() -> None:
    kept = render.__globals__["_render_kept"]
    kept.cache_clear()
    render("short")
    render("word " * 10_000)
    assert kept.cache_info().currsize == 1


def test_growing_code_has_no_colours() -> None:
    assert "<pre><code>x = 1\n</code></pre>" in render_live("```python\nx = 1\n")


def test_an_image_is_a_link_and_never_loads_by_itself() -> None:
    html = render("![a cat](https://e.example/cat.png)")
    assert "<img" not in html
    assert 'class="image" href="https://e.example/cat.png"' in html
    assert ">a cat</a>" in html


def test_an_image_in_a_link_gives_its_text_to_the_link() -> None:
    assert render("[![badge](https://e.example/b.svg)](https://e.example)").count("<a ") == 1


def test_addresses_become_links_and_file_names_do_not() -> None:
    html = render("see https://e.example/x and main.py, me@e.example")
    assert html.count("<a ") == 1
    assert 'rel="noopener noreferrer nofollow"' in html and 'target="_blank"' in html


def test_headings_go_below_those_of_the_page() -> None:
    assert render("# a\n## b\n###### c") == "<h3>a</h3>\n<h4>b</h4>\n<h6>c</h6>\n"


def test_dashes_under_text_are_a_rule() -> None:
    assert render("text\n---") == "<p>text</p>\n<hr>\n"


def test_columns_of_a_table_are_aligned_by_class() -> None:
    assert '<td class="right">1</td>' in render("| a |\n|--:|\n| 1 |")


def _text(html: str) -> str:
    parts: list[str] = []
    parser = HTMLParser(convert_charrefs=True)
    parser.handle_data = parts.append  # type: ignore[method-assign]
    parser.feed(html)
    parser.close()
    return "".join(parts)
