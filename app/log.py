"""Logging: one line for each event on standard error, readable on a terminal, JSON where a program reads it."""

from __future__ import annotations

import logging
import sys

import structlog

NOISY = ("httpx", "httpcore", "uvicorn.error", "huggingface_hub", "urllib3", "asyncio", "aiosqlite", "markdown_it", "alembic")
"""Libraries whose info and debug messages help nobody who runs a server."""


def configure(level: str) -> None:
    """Send the log of this process to standard error. level: debug, info, warning or error."""
    terminal = sys.stderr.isatty()
    shared = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if terminal else "iso", utc=not terminal),
    ]
    if terminal:
        # Plain tracebacks: those that structlog prints by default show local variables, so keys and prompts.
        plain = structlog.dev.plain_traceback
        render = [structlog.dev.ConsoleRenderer(colors=True, pad_event_to=0, pad_level=False, exception_formatter=plain)]
    else:
        render = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render]
        )
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
