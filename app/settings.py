"""Settings: every option of Pagewell, declared once.

The Structs below and `engine.config.EngineConfig` are the only declarations. The command line's options and help, the
sections of serving_config.toml, the PAGEWELL_* variables and the table in the README are derived from them.

Rising precedence: default, TOML file, environment, command line.
"""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from app import paths
from app.catalog import bundled
from app.options import ENV_PREFIX, Option, did_you_mean, options_of
from engine.config import EngineConfig
from engine.errors import ConfigError

CONFIG_NAME = "serving_config.toml"
CONFIG_ENV = "PAGEWELL_CONFIG"
OTHER_ENV = frozenset({CONFIG_ENV, "PAGEWELL_HOME", "PAGEWELL_TEST_MODELS", "PAGEWELL_ISA", "PAGEWELL_NATIVE"})
"""PAGEWELL_* variables that are no settings: they say where things lie, and which native operators are built and used."""


class OrchestratorSettings(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """How the server behaves around the model."""

    env: Annotated[
        Literal["production", "development"],
        Meta(
            description="development: check the laws of the KV cache after each step, log debug messages, show details of errors."
        ),
    ] = "production"
    idle_timeout: Annotated[
        float, Meta(ge=0, description="Seconds without a request after which the model is unloaded until the next one. 0: never.")
    ] = 0.0
    switch_models: Annotated[
        bool,
        Meta(
            description="Load another model of this machine when a request names it. Where two do not fit into memory together, "
            "running answers end first, then the least recently used one leaves. Off: only the model that is served."
        ),
    ] = True
    model_aliases: Annotated[
        tuple[str, ...],
        Meta(description="Names that clients see in place of models' own: NAME=MODEL, each. Example: coder=qwen2.5-coder-7b."),
    ] = ()
    models_folders: Annotated[
        tuple[str, ...],
        Meta(
            description="Folders with more models, beside Pagewell's own, LM Studio's, Ollama's and the hub's cache. Nothing in "
            "them is changed."
        ),
    ] = ()
    permission_mode: Annotated[
        Literal["open", "key", "readonly"],
        Meta(
            description="Who may end others' requests, load, unload, download and delete models, and pin prefixes, from the "
            "page, the dashboard or the API. open: whoever may use the server; key: only who sends the API key, without which "
            "the server does not start; readonly: nobody."
        ),
    ] = "open"


class ServingSettings(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Which model is served, where, and to whom."""

    model: Annotated[
        str, Meta(min_length=1, description="A GGUF file, a folder in Hugging Face layout, a catalogue name or a hub id.")
    ] = bundled.NAME
    served_model_name: Annotated[
        Annotated[str, Meta(min_length=1)] | None, Meta(description="Name that clients see. Default: the model's own.")
    ] = None
    host: Annotated[str, Meta(min_length=1, description="Address to listen on. Any but a loopback address needs an API key.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on. 0: any free one.")] = 8000
    api_key: Annotated[
        Annotated[str, Meta(min_length=1)] | None, Meta(description="Key that clients must send. Default: none is asked for.")
    ] = None
    allowed_hosts: Annotated[
        tuple[str, ...],
        Meta(description="Host names by which clients reach the server, beside localhost and the address it listens on."),
    ] = ()
    cors_origins: Annotated[
        tuple[str, ...],
        Meta(
            description="Origins whose pages may call. Without a port: on any port; only a scheme (app://): all of it; "
            "*: all but null."
        ),
    ] = ("http://localhost", "http://127.0.0.1", "app://", "vscode-webview://")
    prefill_wait: Annotated[
        float,
        Meta(gt=0, description="Seconds that a prompt waits for a prefill server; what is missing then is computed here."),
    ] = 60.0
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least severe messages that are logged.")
    ] = "info"


_DISTRIBUTED = frozenset(
    {"tensor_parallel_size", "role", "prefill_wait", "kv_shared_space", "kv_shared_folder", "kv_lease"},
)
"""Fields of EngineConfig and ServingSettings that the TOML file has under [distributed]; the others stand under [serving]."""

OPTIONS: tuple[Option, ...] = (
    *(
        replace(o, section="distributed") if o.name in _DISTRIBUTED else o
        for o in (*options_of(ServingSettings, "serving"), *options_of(EngineConfig, "serving"))
    ),
    *options_of(OrchestratorSettings, "orchestrator"),
)
BY_NAME: dict[str, Option] = {option.name: option for option in OPTIONS}
PER_MODEL = frozenset(
    {
        *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill", "block_size", "kv_cache_dtype"),
        *("gpu_memory_utilization", "kv_cache_memory", "swap_space", "preemption_mode", "enable_prefix_caching"),
        *("enforce_eager", "dtype", "quantization", "kernel_precision"),
    }
)
"""Fields of EngineConfig that one model may have of its own, in the table [models."NAME"] of the TOML file."""
_MODELS = "models"
SECTIONS: tuple[str, ...] = tuple(dict.fromkeys(option.section for option in OPTIONS))


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one run, validated."""

    orchestrator: OrchestratorSettings
    serving: ServingSettings
    engine: EngineConfig
    config_path: Path | None = None
    """The TOML file that was read."""
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Values of single models, as the file names them."""
    given: frozenset[str] = frozenset()
    """Settings of the command line and the environment, which win over those of single models too."""

    @property
    def aliases(self) -> dict[str, str]:
        """{name that clients see: model}"""
        pairs = (alias.partition("=") for alias in self.orchestrator.model_aliases)
        return {name.strip(): model.strip() for name, _, model in pairs}

    def of_model(self, *names: str) -> dict[str, Any]:
        """What the file says of a single model, by all of its names and the aliases of any; what an alias' table says wins, then
        the name that comes first."""
        lower = [name.lower() for name in names]
        lower = [*(alias.lower() for alias, model in self.aliases.items() if model.lower() in lower), *lower]
        values: dict[str, Any] = {}
        for name in reversed(lower):
            for table, said in self.models.items():
                values |= said if table.lower() == name else {}
        return {name: value for name, value in values.items() if name not in self.given}

    def engine_for(self, *names: str) -> EngineConfig:
        """How a model of these names is loaded. Raises ConfigError where its settings do not go together."""
        values = self.of_model(*names)
        if not values:
            return self.engine
        config = msgspec.structs.replace(self.engine, **values)
        config.validate()
        return config

    @property
    def development(self) -> bool:
        return self.orchestrator.env == "development"

    @property
    def url(self) -> str:
        """Where a client on this machine reaches the server."""
        host = self.serving.host
        if host in ("0.0.0.0", "::"):
            host = "127.0.0.1"
        return f"http://[{host}]:{self.serving.port}" if ":" in host else f"http://{host}:{self.serving.port}"


def make(
    values: Mapping[str, Any] | None = None,
    *,
    config_path: Path | None = None,
    models: Mapping[str, Mapping[str, Any]] | None = None,
    given: Iterable[str] = (),
) -> Settings:
    """Settings from typed values by option name, defaults for the rest; ConfigError when they do not go together.

    models: values of single models by option name. given: names of the values that win over those.
    """
    values = dict(values or {})
    if values.get("env") == "development":
        values = {"debug_checks": True, "log_level": "debug"} | values

    def build(struct: type[msgspec.Struct]) -> Any:
        return struct(**{o.name: values[o.name] for o in OPTIONS if o.struct is struct and o.name in values})

    settings = Settings(
        orchestrator=build(OrchestratorSettings),
        serving=build(ServingSettings),
        engine=build(EngineConfig),
        config_path=config_path,
        models=dict(models or {}),
        given=frozenset(given),
    )
    _validate(settings)
    return settings


def load(
    cli: Mapping[str, Any] | None = None,
    *,
    config: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """Settings from all sources.

    cli: typed values of the options given on the command line, by name. config: the TOML file; None looks at
    PAGEWELL_CONFIG, then for serving_config.toml in the working directory, then in the person's config folder.
    Raises ConfigError that names the source, the setting, what was expected and the nearest name.
    """
    path = _find_config(config, environ)
    from_file, models = _from_toml(path) if path else ({}, {})
    given = _from_environ(environ) | dict(cli or {})
    return make(from_file | given, config_path=path, models=models, given=given)


def _find_config(config: Path | None, environ: Mapping[str, str]) -> Path | None:
    named = config or (Path(environ[CONFIG_ENV]) if environ.get(CONFIG_ENV) else None)
    if named is not None:
        if not named.is_file():
            raise ConfigError(f"There is no configuration file {named}.", "Check --config and PAGEWELL_CONFIG.")
        return named
    return next((path for path in (Path.cwd() / CONFIG_NAME, paths.config_dir() / CONFIG_NAME) if path.is_file()), None)


def _from_toml(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Values by option name, and those of single models."""
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    values: dict[str, Any] = {}
    models = _models(tables.pop(_MODELS, {}), path)
    for section, table in tables.items():
        if section not in SECTIONS or not isinstance(table, dict):
            home = BY_NAME.get(section)
            hint = f" It belongs under [{home.section}]." if home else did_you_mean(section, SECTIONS)
            raise ConfigError(f"{path}: there is no section [{section}].{hint}", f"Sections: {', '.join((*SECTIONS, _MODELS))}.")
        for name, value in table.items():
            option = BY_NAME.get(name.replace("-", "_"))
            if option is None:
                raise ConfigError(f"{path}: [{section}] has no setting {name!r}.{did_you_mean(name, BY_NAME)}", _LIST_HINT)
            if option.section != section:
                raise ConfigError(f"{path}: {name!r} stands under [{section}], but belongs under [{option.section}].")
            values[option.name] = _parse(option, value, f"{path}: [{section}] {name}")
    return values, models


def _models(tables: Any, path: Path) -> dict[str, dict[str, Any]]:
    """The tables [models."NAME"]."""
    models: dict[str, dict[str, Any]] = {}
    for model, table in tables.items() if isinstance(tables, dict) else ((_MODELS, None),):
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: [{_MODELS}] holds a table for each model.", f'Write [{_MODELS}."NAME"] above them.')
        where = f'[{_MODELS}."{model}"]'
        models[model] = {}
        for name, value in table.items():
            option = BY_NAME.get(name.replace("-", "_"))
            if option is None or option.name not in PER_MODEL:
                hint = f"These can be set for one model: {', '.join(sorted(PER_MODEL))}."
                if isinstance(value, dict):
                    hint = f'A name with a dot in it needs quotes: [{_MODELS}."{model}.{name}"].'
                raise ConfigError(f"{path}: {where} cannot have {name!r}.{did_you_mean(name, PER_MODEL)}", hint)
            models[model][option.name] = _parse(option, value, f"{path}: {where} {name}")
    return models


def _from_environ(environ: Mapping[str, str]) -> dict[str, Any]:
    by_env = {option.env: option for option in OPTIONS}
    values: dict[str, Any] = {}
    for name, text in environ.items():
        if not name.startswith(ENV_PREFIX) or name in OTHER_ENV:
            continue
        if name not in by_env:
            raise ConfigError(f"The environment has {name}, which is no setting.{did_you_mean(name, by_env)}", _LIST_HINT)
        option = by_env[name]
        values[option.name] = _parse(option, text, name)
    return values


_LIST_HINT = "`pagewell settings` lists them all."


def _parse(option: Option, value: Any, source: str) -> Any:
    try:
        return option.parse(value)
    except ValueError as error:
        raise ConfigError(f"{source}: {error}", option.description) from error


_HOST_NAME = re.compile(r"[a-z0-9_]([a-z0-9._-]*[a-z0-9_])?", re.ASCII | re.IGNORECASE)
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+(:[0-9]+)?|\[[0-9a-f:.]+\](:[0-9]+)?)?/?", re.ASCII | re.IGNORECASE)


def _validate(settings: Settings) -> None:
    serving = settings.serving
    settings.engine.validate()
    for name in settings.models:
        settings.engine_for(name)
    _validate_access(serving)
    _validate_aliases(settings.orchestrator.model_aliases)
    if serving.api_key is None and not is_loopback(serving.host):
        raise ConfigError(
            f"host is {serving.host}, which other machines can reach, but there is no API key.",
            "Set --api-key (or PAGEWELL_API_KEY), or listen on --host 127.0.0.1.",
        )
    if serving.api_key is None and settings.orchestrator.permission_mode == "key":
        raise ConfigError(
            "permission_mode key needs --api-key: without a key, nobody may end others' requests.",
            "Set --api-key (or PAGEWELL_API_KEY), or choose --permission-mode open or readonly.",
        )


def _validate_aliases(aliases: tuple[str, ...]) -> None:
    seen: set[str] = set()
    for alias in aliases:
        name, equals, model = (part.strip() for part in alias.partition("="))
        if not (name and equals and model) or name != name.split()[0]:
            raise ConfigError(f"model_aliases has {alias!r}.", "Write NAME=MODEL. Example: coder=qwen2.5-coder-7b")
        if name.lower() in seen:
            raise ConfigError(f"model_aliases has {name!r} twice.", "A name stands for one model.")
        seen.add(name.lower())


def _validate_access(serving: ServingSettings) -> None:
    """Whatever could never match a request, or would match more than it says, is refused."""
    if serving.api_key is not None and not (serving.api_key.isascii() and serving.api_key.isprintable()):
        raise ConfigError(
            "api_key has characters that HTTP headers cannot carry.", "Use letters, digits and punctuation of plain ASCII."
        )
    if serving.api_key is not None and serving.api_key != serving.api_key.strip():
        raise ConfigError("api_key begins or ends with a space, which HTTP headers cannot carry.", "Leave the space out.")
    for name in serving.allowed_hosts:
        if not _HOST_NAME.fullmatch(name) and not _is_address(name):
            raise ConfigError(
                f"allowed_hosts has {name!r}, which is no host name.",
                "Write a bare name or address: no scheme, port, path or wildcard. Example: llm.example.com",
            )
    for origin in serving.cors_origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ConfigError(
                f"cors_origins has {origin!r}, which is no origin.",
                "Write scheme://host or scheme://host:port, without path or wildcard, or a scheme alone. "
                "Examples: https://app.example.com, http://localhost:3000, app://",
            )


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`. A name other than localhost counts as reachable from outside."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
