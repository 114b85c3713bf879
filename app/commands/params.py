"""Settings as options of the command line, derived from their one declaration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from app.options import Option
from app.settings import OPTIONS, Settings, load

Command = TypeVar("Command", bound=Callable[..., Any])


class SettingType(click.ParamType):
    """Text to a setting's value, by the setting's own rules."""

    def __init__(self, option: Option) -> None:
        self.option = option
        self.name = option.metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self.option.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def config_option(command: Command) -> Command:
    """--config FILE."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        help="Settings file. Default: serving_config.toml here, then in the config folder.",
    )(command)


def setting_options(*, without: frozenset[str] = frozenset()) -> Callable[[Command], Command]:
    """Every setting as an option, and --config; the command gets them as keyword arguments, None where not given."""

    def decorate(command: Command) -> Command:
        for option in reversed(OPTIONS):
            if option.name not in without:
                command = _click_option(option)(command)
        return config_option(command)

    return decorate


def _click_option(option: Option) -> Callable[[Command], Command]:
    default = option.show(option.default)
    text = option.description + (f"  [{default}]" if default else "")
    if option.kind == "bool":
        return click.option(f"{option.flag}/{option.negative_flag}", option.name, default=None, help=text)
    return click.option(option.flag, option.name, type=SettingType(option), metavar=option.metavar, default=None, help=text)


def settings_from(config: Path | None, given: dict[str, Any], model: str | None = None) -> Settings:
    """Settings of all sources.

    given: the command's keyword arguments, None where an option was not given. model: the MODEL argument, which is
    another way to write --model.
    """
    values = {name: value for name, value in given.items() if value is not None}
    if model is not None:
        if values.get("model", model) != model:
            raise click.UsageError(f"Two models are named: {model} and --model {values['model']}.")
        values["model"] = model
    return load(values, config=config)


def server_options(command: Command) -> Command:
    """--url and --api-key of a running server, and --config to take their defaults from."""
    command = click.option("--api-key", help=KEY_HELP)(command)
    command = click.option("--url", help="Where the server runs. Default: the configured host and port.")(command)
    return config_option(command)


KEY_HELP = "The server's key. Default: the configured one, which goes to the configured host and port only."


def server_of(config: Path | None, url: str | None, api_key: str | None) -> tuple[str, str | None]:
    """(base URL without a trailing slash or /v1, API key) of the server that a command should talk to."""
    return address_of(load(config=config), url, api_key)


def address_of(settings: Settings, url: str | None, api_key: str | None) -> tuple[str, str | None]:
    """As `server_of`. The configured key is a secret of the configured server: another one gets only a key given for it."""
    base = (url or settings.url).rstrip("/").removesuffix("/v1")
    return base, api_key or (settings.serving.api_key if _place(base) == _place(settings.url) else None)


def _place(url: str) -> tuple[str, str | None, int | None]:
    """Scheme, host and port of a URL; whether the loopback is written as a name or a number is all the same."""
    try:
        parts = urlsplit(url)
        host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname
        return parts.scheme, host, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return url, None, None
