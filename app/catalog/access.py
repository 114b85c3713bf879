"""The hub's address, and the person's token for it: where huggingface_hub keeps it, readable by nobody else, never shown or
logged."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from app import paths
from engine.errors import PagewellError


class TokenRefused(PagewellError):
    """The hub does not take a token."""


def endpoint() -> str:
    """The hub's address: HF_ENDPOINT, where the person has a mirror."""
    from huggingface_hub import constants

    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or str(constants.ENDPOINT)


def token_path() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_TOKEN_PATH)


def log_in(token: str) -> str:
    """Keep a token once the hub has taken it; whose it is. Raises TokenRefused."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError

    token = token.strip()
    if not (token and token.isascii() and token.isprintable()):
        raise TokenRefused("This is no token.", "Make one at the hub, under Settings, Access Tokens; read access is enough.")
    try:
        name = str(HfApi(endpoint=endpoint()).whoami(token=token).get("name") or "?")
    except HTTPError as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            raise TokenRefused("The hub does not know this token.", "Make a new one under Settings, Access Tokens.") from None
        raise TokenRefused("The hub could not be asked whose token this is.", "Check the network, then try again.") from None
    path = token_path()
    paths.create(path.parent)
    # Never readable by others, not even for a moment, and never half written.
    handle, part = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(token)
    os.replace(part, path)
    return name


def log_out() -> bool:
    """Forget the token; False where there was none."""
    try:
        token_path().unlink()
    except FileNotFoundError:
        return False
    return True


def tighten() -> bool:
    """Take from others what they may do with the token's file; True where they could read or write it."""
    path = token_path()
    try:
        mode = path.stat().st_mode
        if os.name != "posix" or not mode & 0o077:
            return False
        path.chmod(0o600)
    except OSError:
        return False
    return True
