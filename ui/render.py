"""Templates of the page, and the addresses of its static files."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

_HERE = Path(__file__).parent
STATIC = _HERE / "static"


def render(template: str, **values: Any) -> str:
    """HTML of a template in ui/templates. Values are escaped unless they are Markup."""
    return _ENVIRONMENT.get_template(template).render(values)


@cache
def asset(name: str) -> str:
    """Address of a static file, with its content's hash: browsers may keep it for ever."""
    path = STATIC / name
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing. Installing Pagewell (pip install .) puts the page's scripts there.")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.globals["asset"] = asset
