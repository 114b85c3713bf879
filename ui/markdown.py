"""Markdown of a model, as HTML that is safe to put into the page.

A model's output is untrusted. Raw HTML is escaped by the parser, and what the renderer made passes an allow-list that
has no hx-* or on* attribute, no id, no style, no relative link. Two rules of CommonMark are left out on purpose: setext
headings (a line of dashes under text is a rule, as models mean it, and streamed text must not jump to a heading) and link
references, so that each top-level block renders alike alone and in its document; `ui.markdown_stream` builds on that.

Nor may it hold up the server, whose event loop renders it: most lexers, the search for addresses and unclosed brackets
take time that grows with the square of the text, so each has a bound, beyond which text is shown plain.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from io import StringIO

import nh3
from linkify_it import LinkifyIt
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_all_lexers, get_lexer_by_name
from pygments.token import STANDARD_TYPES

HIGHLIGHT_LIMIT = 8_000
"""Characters of one code block above which it is shown without colours."""
HIGHLIGHT_S = 0.05
"""Processor time after which a block is shown without colours: a usual one of 8,000 characters takes a fifth of this."""
INLINE_LIMIT = 8_000
"""Characters of one paragraph, item or cell above which its marks are shown as they are written."""
ADDRESS_LIMIT = 500
"""Characters without a space above which nothing is an address; written as [text](address) it is one at any length."""
CACHE_LIMIT = 16_000
"""Characters of a text above which its HTML is not kept."""
LEXERS = frozenset(
    {
        *("bash", "c", "cpp", "csharp", "css", "dart", "diff", "docker", "elixir", "go", "graphql", "haskell", "html", "java"),
        *("javascript", "json", "jsx", "julia", "kotlin", "lua", "markdown", "nginx", "objective-c", "ocaml", "perl", "php"),
        *("powershell", "python", "r", "ruby", "rust", "scala", "sql", "swift", "toml", "tsx", "typescript", "vim", "xml"),
        *("yaml", "zig"),
    }
)
"""Languages that are coloured. Each lexer works in short steps whatever it reads, so that HIGHLIGHT_S can end it: those of
ini files, matlab and consoles, for example, spend seconds in one regular expression."""
HEADING_SHIFT = 2
"""The page itself has h1 and h2."""

_LEXER_OF = {
    alias: aliases[0] for _, aliases, _, _ in get_all_lexers(plugins=False) if LEXERS & set(aliases[:1]) for alias in aliases
}
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


def render(text: str) -> str:
    """HTML of a whole text, or of whole top-level blocks."""
    return _render_kept(text) if len(text) <= CACHE_LIMIT else _CLEANER.clean(_PARSER.render(text))


@lru_cache(maxsize=512)
def _render_kept(text: str) -> str:
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
    name = _LEXER_OF.get(language.lower())
    if name is None or len(code) > HIGHLIGHT_LIMIT:
        return escape(code)
    # Markdown's lexer would otherwise take any lexer there is for the code blocks in it.
    lexer = get_lexer_by_name(name, stripnl=False, ensurenl=False, handlecodeblocks=False)
    tokens, deadline_s = [], time.thread_time() + HIGHLIGHT_S
    for token in lexer.get_tokens(code):
        tokens.append(token)
        if time.thread_time() > deadline_s:
            return escape(code)
    coloured = StringIO()
    _FORMATTER.format(tokens, coloured)
    return coloured.getvalue()


class _Linkify(LinkifyIt):
    """Looks for addresses only where no run of characters is so long that looking takes the square of its length."""

    def pretest(self, text: str) -> bool:
        return super().pretest(text) and max(map(len, text.split()), default=0) <= ADDRESS_LIMIT


def _parse_inline(state: StateCore) -> None:
    """The parser's own rule, with a bound: unclosed brackets take the square of their number."""
    for token in state.tokens:
        if token.type == "inline":
            token.children = []
            if len(token.content) > INLINE_LIMIT:
                token.children.append(Token("text", "", 0, content=token.content))
            else:
                state.md.inline.parse(token.content, state.md, state.env, token.children)


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
    parser.core.ruler.at("inline", _parse_inline)
    # It searches all text before each "://"; the rule that looks through the finished text finds the same addresses.
    parser.inline.ruler.disable("linkify")
    parser.linkify = _Linkify()
    # Only what is written as an address becomes a link: main.py is a file, not a host in Paraguay.
    parser.linkify.set({"fuzzy_link": False, "fuzzy_email": False, "fuzzy_ip": False})
    return parser


_PARSER = _parser()
