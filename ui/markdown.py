"""Markdown of a model, as HTML that is safe to put into the page.

A model's output is untrusted. Raw HTML is escaped by the parser, and what the renderer made passes an allow-list that
has no hx-* or on* attribute, no id, no style, no relative link. Two rules of CommonMark are left out on purpose: setext
headings (a line of dashes under text is a rule, as models mean it, and streamed text must not jump to a heading) and link
references, so that each top-level block renders alike alone and in its document; `ui.markdown_stream` builds on that.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from html import escape

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.token import STANDARD_TYPES
from pygments.util import ClassNotFound

HIGHLIGHT_LIMIT = 50_000
"""Characters of one code block above which it is shown without colours."""
HEADING_SHIFT = 2
"""The page itself has h1 and h2."""

_ALIGNMENTS = {f"text-align:{side}": side for side in ("left", "center", "right")}
_FORMATTER = HtmlFormatter(nowrap=True)
_CLEANER = nh3.Cleaner(
    tags={
        *("p", "br", "hr", "strong", "em", "s", "a", "blockquote", "ul", "ol", "li", "h3", "h4", "h5", "h6"),
        *("pre", "code", "div", "span", "button", "table", "thead", "tbody", "tr", "th", "td"),
    },
    # "*" is emptied by name: its default lets titles and languages through.
    attributes={"*": set(), "a": {"href"}, "ol": {"start"}},
    allowed_classes={
        "a": {"image"},
        "div": {"code", "code-head", "table"},
        "span": {"lang", *filter(None, STANDARD_TYPES.values())},
        "button": {"copy"},
        "th": set(_ALIGNMENTS.values()),
        "td": set(_ALIGNMENTS.values()),
    },
    set_tag_attribute_values={"a": {"target": "_blank"}, "button": {"type": "button"}},
    url_schemes={"http", "https", "mailto"},
    url_relative="deny",
    link_rel="noopener noreferrer nofollow",
)


@lru_cache(maxsize=4096)
def render(text: str) -> str:
    """HTML of a whole text, or of whole top-level blocks."""
    return _CLEANER.clean(_PARSER.render(text))


def render_live(text: str) -> str:
    """HTML of blocks that are still growing: like `render`, but code has no colours yet."""
    return _CLEANER.clean(_PARSER.render(text, {"live": True}))


def code_block(escaped: str, language: str) -> str:
    """A code block with its head. `escaped` is HTML, `language` is text."""
    label = escape(language[:32])
    return (
        f'<div class="code"><div class="code-head"><span class="lang">{label}</span>'
        f'<button type="button" class="copy">Copy</button></div><pre><code>{escaped}</code></pre></div>\n'
    )


def language_of(info: str) -> str:
    """The first word of a fence's info string."""
    return info.split(maxsplit=1)[0] if info.strip() else ""


def top_level_blocks(text: str) -> list[Token]:
    """The opening token of each top-level block; `token.map` holds its first line and the line after its last."""
    tokens: list[Token] = []
    _PARSER.block.parse(text, _PARSER, {}, tokens)
    return [token for token in tokens if token.level == 0 and token.nesting >= 0]


def _colours(code: str, language: str) -> str:
    if not language or len(code) > HIGHLIGHT_LIMIT:
        return escape(code)
    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return escape(code)
    return highlight(code, lexer, _FORMATTER)


class _Renderer(RendererHTML):
    """The parser's own renderer with the page's code blocks, tables, headings and images."""

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        token = tokens[idx]
        language = language_of(token.info)
        return code_block(escape(token.content) if env.get("live") else _colours(token.content, language), language)

    def code_block(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return code_block(escape(tokens[idx].content), "")

    def heading_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return f"<h{_shifted(tokens[idx])}>"

    def heading_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return f"</h{_shifted(tokens[idx])}>\n"

    def table_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return '<div class="table"><table>\n'

    def table_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return "</table></div>\n"

    def th_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        side = _ALIGNMENTS.get(str(tokens[idx].attrs.get("style", "")))
        return f'<{tokens[idx].tag} class="{side}">' if side else f"<{tokens[idx].tag}>"

    td_open = th_open

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """Nothing leaves the machine by itself: an image is a link that the person may follow."""
        token = tokens[idx]
        label = escape(self.renderInlineAsText(token.children, options, env) or "image")
        source = str(token.attrs.get("src", ""))
        inside_link = sum(other.nesting for other in tokens[:idx] if other.tag == "a")
        if inside_link or not source.startswith(("http://", "https://")):
            return label
        return f'<a class="image" href="{escape(source)}">{label}</a>'


def _shifted(token: Token) -> int:
    return min(6, int(token.tag[1]) + HEADING_SHIFT)


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "linkify": True}, renderer_cls=_Renderer)
    parser.enable(["table", "strikethrough", "linkify"]).disable(["reference", "lheading"])
    # Only what is written as an address becomes a link: main.py is a file, not a host in Paraguay.
    parser.linkify.set({"fuzzy_link": False, "fuzzy_email": False, "fuzzy_ip": False})
    return parser


_PARSER = _parser()
