"""JsonBody: how a request's JSON becomes a msgspec Struct.

Strict about types (a number in quotes is not a number), liberal about everything else: unknown fields are ignored, a
byte order mark and halves of surrogate pairs (editors cut text in mid-emoji) are repaired.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from functools import cache
from typing import Any

import msgspec
from litestar.dto import AbstractDTO, DTOFieldDefinition
from litestar.dto.config import DTOConfig
from litestar.openapi.spec import Reference, Schema
from litestar.typing import FieldDefinition

from engine.errors import InvalidRequest

_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_ALARMING = "max_tokens"
"""The field whose name makes clients cut their history when a message holds it; `param` alone names it."""


class JsonBody(AbstractDTO[Any]):
    """Decodes the body with msgspec into the type that the handler's `data` is annotated with."""

    config = DTOConfig()
    model_type = object

    def decode_bytes(self, value: bytes) -> Any:
        handler: Any = self.asgi_connection.route_handler
        return decode(value, handler.parsed_data_field.annotation)

    @classmethod
    def create_for_field_definition(cls, field_definition: FieldDefinition, handler_id: str, backend_cls: Any = None) -> None:
        """Nothing to prepare: there is no transfer model."""

    @classmethod
    def create_openapi_schema(cls, field_definition: FieldDefinition, handler_id: str, schema_creator: Any) -> Reference | Schema:
        return schema_creator.for_field_definition(field_definition)

    @classmethod
    def generate_field_definitions(cls, model_type: type[Any]) -> Generator[DTOFieldDefinition, None, None]:
        yield from ()

    @classmethod
    def detect_nested_field(cls, field_definition: FieldDefinition) -> bool:
        return False


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def decode(body: bytes, kind: Any) -> Any:
    """`body` as `kind`; InvalidRequest that names the field where it does not fit."""
    try:
        try:
            return _decoder(kind).decode(body)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            return msgspec.convert(_lenient(body), kind)
    except msgspec.ValidationError as error:
        raise field_error(error) from error
    except RecursionError as error:
        raise InvalidRequest("", "The body is nested too deeply.") from error


def _lenient(body: bytes) -> Any:
    """Python's own parser, which also takes NaN (so that the range check can name its field) and lone surrogates."""
    try:
        text = json.dumps(json.loads(body.decode("utf-8-sig")), ensure_ascii=False)
        return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    except ValueError as error:
        where = f": {error}" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else ""
        raise InvalidRequest("", f"The body is not valid JSON{where}.") from error


def field_error(error: msgspec.ValidationError) -> InvalidRequest:
    """msgspec's message and path as the error of one field."""
    text = str(error)
    found = _PATH.search(text)
    message = _PATH.sub("", text)
    param = found["path"] if found else ""
    if not param and "`" in message and message.startswith("Object missing required field"):
        param = message.split("`")[1]
        return InvalidRequest(param, f"`{param}` is missing.")
    if param.split(".")[-1] == _ALARMING:
        return InvalidRequest(param, f"The most tokens to produce: {message}.")
    return InvalidRequest(param, f"`{param}`: {message}." if param else f"{message}.")
