"""A browser tab in a few lines: reads server-sent events and puts hx-partials in place, as htmx does."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape, unescape

_PARTIAL = re.compile(r'<hx-partial hx-target="([^"]+)" hx-swap="([^"]+)">(.*?)</hx-partial>', re.DOTALL)


@dataclass
class Event:
    data: str = ""
    name: str = ""
    id: str = ""


def parse(stream: bytes) -> list[Event]:
    """Events of a stream, by the rules of the HTML standard that matter here."""
    events = []
    for block in stream.decode().split("\n\n"):
        event, data = Event(), []
        for line in block.split("\n"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "data":
                data.append(value)
            elif name == "event":
                event.name = value
            elif name == "id":
                event.id = value
        event.data = "\n".join(data)
        if data or event.name:
            events.append(event)
    return events


def partials(html: str) -> list[tuple[str, str, str]]:
    """[(target, swap, content), ...]"""
    return _PARTIAL.findall(html)


@dataclass
class Answer:
    """What a tab shows of one answer. `page` is the HTML it was loaded with."""

    page: str
    closed: str = field(init=False)
    tail: str = field(init=False)
    final: str = ""
    names: list[str] = field(default_factory=list)
    """Of the events without content."""
    pushed: list[str] = field(default_factory=list)
    """HTML that came up at the end of the messages."""

    def __post_init__(self) -> None:
        (self.closed,) = re.findall(r'-closed">(.*?)</div>\n    <div class="part tail"', self.page, re.DOTALL)
        (self.tail,) = re.findall(r'aria-live="off">(.*?)</div>\n  </div>\n', self.page, re.DOTALL)
        (self.cursor,) = re.findall(r'data-after="([0-9a-f.]+)"', self.page)

    def apply(self, event: Event) -> None:
        if event.name:
            self.names.append(event.name)
            return
        for target, swap, content in partials(event.data):
            if target.endswith("-closed"):
                self.closed = content if swap == "innerHTML" else self.closed + content
            elif target.endswith("-tail"):
                assert swap == "innerMorph"
                self.tail = content
            elif target.endswith("-tail code"):
                assert self.tail.count("</code></pre></div>") == 1
                self.tail = self.tail.replace("</code>", escape(unescape(content)) + "</code>")
            elif re.fullmatch(r"#m\d+", target):
                self.final = content
            elif target == "#messages":
                self.pushed.append(content)
        if event.id:
            self.cursor = event.id
