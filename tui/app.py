"""The way in: `pagewell top` calls `run`."""

from __future__ import annotations

import sys

from rich.console import Console

from tui.feed.client import FeedClient, FeedError
from tui.once import parse, print_frame, snapshot
from tui.terminal import has_light_background
from tui.text import lines

_ESCAPED = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
"""Control characters that JSON may hold as they are, in the form that no terminal obeys."""


def run(url: str, api_key: str | None = None, *, readonly: bool = False, once: bool = False, as_json: bool = False) -> int:
    """Show the dashboard of the server at `url` until the person quits; returns the exit status.

    once: print one snapshot and return. as_json: print it as the server's JSON (means once).
    """
    try:
        client = FeedClient(url, api_key)
        if once or as_json:
            _print_once(client, as_json)
            return 0
    except FeedError as error:
        print(lines(str(error)), file=sys.stderr)
        return 1
    from tui.dashboard import Dashboard  # Textual takes a moment that scripts need not wait for

    app = Dashboard(client, readonly=readonly, light=has_light_background())
    app.run()
    return app.return_code or 0


def _print_once(client: FeedClient, as_json: bool) -> None:
    data = snapshot(client)
    frame = parse(data)
    if as_json:
        sys.stdout.write(data.decode().translate(_ESCAPED) + "\n")
    else:
        print_frame(frame, Console(highlight=False))
