"""Option: one setting as the outside sees it, derived from a field of a settings Struct.

Text forms (command line, environment) and TOML values go through the same `Option.parse`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import inspect

ENV_PREFIX = "PAGEWELL_"
_BOOLS = {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True)
class Option:
    """One setting: its name, where it is set, what it accepts, what it means."""

    name: str
    section: str
    """Table of serving_config.toml."""
    struct: type[msgspec.Struct]
    type: Any
    """What msgspec validates: the field's annotation."""
    default: Any
    description: str
    kind: str
    """bool, int, float, str, choice, list or bytes."""
    choices: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    """That a number can be given as instead."""
    nullable: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def negative_flag(self) -> str:
        """The flag that turns a boolean off."""
        return "--no-" + self.name.replace("_", "-")

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()

    @property
    def metavar(self) -> str:
        named = {"choice": "|".join(self.choices), "bytes": "SIZE", "list": "A,B,...", "str": "TEXT"}
        return "|".join((named.get(self.kind, self.kind.upper()), *self.words))

    def parse(self, value: Any) -> Any:
        """The typed value of a text or TOML value; ValueError says what was expected."""
        given = value
        if isinstance(value, str):
            text = value.strip()
            if self.nullable and text.lower() in ("", "none", "null"):
                return None
            if self.kind == "bytes":
                value = parse_bytes(text)
            elif self.kind == "list":
                value = [part.strip() for part in text.split(",") if part.strip()]
            elif self.kind == "bool":
                value = _BOOLS.get(text.lower(), text)
        try:
            return msgspec.convert(value, self.type, strict=not isinstance(value, str))
        except msgspec.ValidationError as error:
            if self.choices:
                hint = did_you_mean(str(given), self.choices)
                raise ValueError(f"{given!r} is none of {', '.join(self.choices)}.{hint}") from error
            if self.words and isinstance(value, str) and not re.fullmatch(r"[+-]?\d+", value.strip()):
                raise ValueError(f"{given!r} is neither a number nor {' or '.join(self.words)}.") from error
            reason = re.sub(r"`|(?<=\w) \| null", "", str(error)).replace("Expected", "expected")
            raise ValueError(f"{given!r} cannot be used: {reason}.") from error

    def show(self, value: Any) -> str:
        """A value as a person would write it."""
        if value is None:
            return ""
        if isinstance(value, bool):
            return "on" if value else "off"
        if self.kind == "list":
            return ",".join(value)
        if self.kind == "bytes":
            return format_bytes(value)
        return f"{value:g}" if isinstance(value, float) else str(value)


def options_of(struct: type[msgspec.Struct], section: str) -> tuple[Option, ...]:
    """The options that a settings Struct declares, in its order."""
    infos = inspect.type_info(struct).fields
    return tuple(
        _option(struct, section, field, info.type) for field, info in zip(msgspec.structs.fields(struct), infos, strict=True)
    )


def _option(struct: type[msgspec.Struct], section: str, field: msgspec.structs.FieldInfo, meta: inspect.Metadata) -> Option:
    inner = meta.type
    members = inner.types if isinstance(inner, inspect.UnionType) else (inner,)
    value_type, *others = (member for member in members if not isinstance(member, inspect.NoneType))
    if isinstance(value_type, inspect.Metadata):
        value_type = value_type.type
    kinds = {
        inspect.BoolType: "bool",
        inspect.IntType: "int",
        inspect.FloatType: "float",
        inspect.StrType: "str",
        inspect.LiteralType: "choice",
        inspect.VarTupleType: "list",
    }
    kind = (meta.extra or {}).get("unit") or kinds[type(value_type)]
    return Option(
        name=field.name,
        section=section,
        struct=struct,
        type=field.type,
        default=field.default,
        description=(meta.extra_json_schema or {})["description"],
        kind=kind,
        choices=tuple(value_type.values) if isinstance(value_type, inspect.LiteralType) else (),
        words=tuple(word for literal in others for word in literal.values),
        nullable=any(isinstance(member, inspect.NoneType) for member in members),
    )


def parse_bytes(text: str) -> int:
    """'512MiB', '2 GB', '1.5g' or plain digits as bytes; units are powers of 1024. ValueError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is not a size: write bytes, or a number with KiB, MiB or GiB, such as 512MiB.")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def format_bytes(n_bytes: int) -> str:
    """The shortest text that `parse_bytes` reads back as nearly the same number: '0', '93.8MiB', '2GiB'."""
    for unit in ("T", "G", "M", "K"):
        if n_bytes >= _UNITS[unit]:
            return f"{n_bytes / _UNITS[unit]:.4g}{unit}iB"
    return str(n_bytes)


def near(name: str, known: Iterable[str]) -> list[str]:
    """Known names that begin so or are spelt nearly so, the nearest first."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    begun = [candidate for candidate in by_lower if len(name) > 2 and candidate.startswith(name.lower())]
    return [by_lower[found] for found in begun or difflib.get_close_matches(name.lower(), by_lower, cutoff=0.6)]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """' Did you mean X?' for the known name that is nearest; '' when none is near."""
    found = near(name, known)
    return f" Did you mean {found[0]!r}?" if found else ""
