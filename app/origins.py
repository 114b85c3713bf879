"""Which names this server answers to, and whose pages may call it. Pure string matching, no I/O."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from app.settings import ServingSettings, is_loopback

_LOCAL_NAMES = frozenset({"localhost", "host.docker.internal", "host.containers.internal"})
"""Names that no outsider can register and point here. Containers reach their host by the last two."""


class Hosts:
    """The Host headers that are taken. A page whose own name resolves here (DNS rebinding) sends another one."""

    def __init__(self, serving: ServingSettings) -> None:
        self._configured = {name.lower() for name in serving.allowed_hosts}
        self._names = _LOCAL_NAMES | self._configured | {serving.host.lower()}
        self._from_outside = not is_loopback(serving.host)
        if self._from_outside:
            own = socket.gethostname().lower()
            self._names |= {own, f"{own.split('.')[0]}.local"}

    def allow(self, header: str) -> bool:
        """`header` is a Host header: a name or address, perhaps with a port."""
        name = _without_port(header.strip().lower()).rstrip(".")
        if name in self._names or name.endswith(".localhost"):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self._from_outside or address.is_loopback  # an address cannot be rebound

    def own_page(self, origin: str, header: str) -> bool:
        """Whether `origin` is a page of this very server: of the name asked for, or of a configured one, since a proxy may
        send another Host. The scheme is left out: a proxy may add TLS."""
        try:
            netloc = urlsplit(origin.lower()).netloc
        except ValueError:
            return False
        return netloc != "" and (netloc == header.strip().lower() or _without_port(netloc) in self._configured)


class Origins:
    """The Origin headers that may call from a browser, as the setting `cors_origins` describes them.

    An origin without a scheme, `null` above all, never may: every sandboxed page of every site sends it.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._any = False
        self._exact: set[str] = set()
        self._any_port: set[tuple[str, str]] = set()
        self._schemes: set[str] = set()
        for pattern in patterns:
            parts = urlsplit(pattern)
            if pattern == "*":
                self._any = True
            elif not parts.netloc:
                self._schemes.add(parts.scheme)
            elif ":" in parts.netloc.rpartition("]")[2]:
                self._exact.add(f"{parts.scheme}://{parts.netloc.lower()}")
            else:
                self._any_port.add((parts.scheme, parts.netloc.lower()))

    def allow(self, origin: str) -> bool:
        try:
            parts = urlsplit(origin.lower())
        except ValueError:
            return False
        if not parts.scheme:
            return False
        if self._any or parts.scheme in self._schemes or f"{parts.scheme}://{parts.netloc}" in self._exact:
            return True
        return (parts.scheme, _without_port(parts.netloc, keep_brackets=True)) in self._any_port


def _without_port(netloc: str, *, keep_brackets: bool = False) -> str:
    if netloc.startswith("["):
        name = netloc.partition("]")[0]
        return f"{name}]" if keep_brackets else name[1:]
    return netloc.partition(":")[0] if netloc.count(":") <= 1 else netloc
