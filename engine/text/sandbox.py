"""The Jinja sandbox that chat templates run in: code from a model file, which may look at the messages and nothing else."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.visitor import NodeTransformer

from engine.text import limits


class _Generation(Extension):
    """`{% generation %} ... {% endgeneration %}` marks what a model wrote, for training; here it is only its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Metering(NodeTransformer):
    """Puts the meter around loops, and around operators that jinja lets nobody intercept."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "a step each")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        node.nodes = [part if isinstance(part, nodes.Const) else _filtered(part, "as text") for part in node.nodes]
        return _filtered(node, "made")

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        return _filtered(node, "made") if isinstance(node.arg, nodes.Slice) else node


def _filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Formatter(SandboxedFormatter):
    """str.format of templates."""

    def convert_field(self, value: Any, conversion: Any) -> Any:
        return limits.made(super().convert_field(limits.as_text(value), conversion))

    def format_field(self, value: Any, format_spec: str) -> str:
        limits.check_spec(format_spec)
        return limits.made(super().format_field(limits.as_text(value), format_spec))


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox keeps templates from what they should not reach; this one also from endless work."""

    intercepted_binops = frozenset(["+", "*", "%", "**"])
    concat = staticmethod(limits.joined)

    def _generate(self, source: nodes.Template, *args: Any, **options: Any) -> str:
        """Jinja's hook for what happens between parsing and code."""
        _Metering().visit(source)
        source.set_environment(self)
        return super()._generate(source, *args, **options)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            limits.check_product(left, right)
        elif operator == "**":
            limits.check_power(left, right)
        elif operator == "%":
            limits.check_percent(left, right)
        return limits.made(super().call_binop(context, operator, left, right))

    def call(self, context: Context, called: Any, /, *args: Any, **named: Any) -> Any:
        limits.look()
        owner = getattr(called, "__self__", None)
        if isinstance(owner, (str, bytes)):
            if called.__name__ == "join" and len(args) == 1:
                args = (list(args[0]),)
                limits.check_growth("join", args[0], [owner])
            elif called.__name__ == "translate":
                limits.check_growth("translate", owner, args[0].values())
            else:
                limits.check_growth(called.__name__, owner, [*args, *named.values()])
        return limits.made(super().call(context, called, *args, **named))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None
        text, formatter = value.__self__, _Formatter(self)
        if value.__name__ == "format_map":
            return lambda mapping: formatter.vformat(text, (), mapping)
        return lambda *args, **named: formatter.vformat(text, args, named)


_STRUCTURAL = frozenset(
    {
        *("abs", "attr", "batch", "count", "d", "default", "dictsort", "first", "float", "groupby", "int", "items", "last"),
        *("length", "list", "map", "max", "min", "random", "reject", "rejectattr", "reverse", "round", "select"),
        *("selectattr", "slice", "sort", "unique"),
    }
)
"""Filters that hand on what is in a list or an object without writing it out."""


def _limited(name: str, apply: Callable[..., Any]) -> Callable[..., Any]:
    """A filter with its cost; where jinja passes it a context or an environment, that comes before the value."""
    at = 1 if hasattr(apply, "jinja_pass_arg") else 0

    @wraps(apply)
    def filter_(*args: Any, **named: Any) -> Any:
        limits.look()
        before, value, rest = args[:at], args[at], args[at + 1 :]
        if isinstance(value, Iterator):
            value = limits.made(list(limits.steps(value)))
        if name not in _STRUCTURAL:
            limits.as_text(value)
        if name == "format":
            limits.check_percent(value, [*rest, *named.values()])
        limits.check_growth(name, value, [*rest, *named.values()])
        return limits.made(apply(*before, value, *rest, **named))

    return filter_


def environment() -> ImmutableSandboxedEnvironment:
    """The environment that templates are written for: as transformers' apply_chat_template defines it.

    Compiling and rendering need `limits.metered()` around them.
    """
    env = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
        autoescape=False,
        finalize=limits.as_text,
    )
    env.filters["tojson"] = _tojson
    env.filters = {name: _limited(name, apply) for name, apply in env.filters.items()}
    env.filters |= {"a step each": limits.steps, "made": limits.made, "as text": limits.as_text}
    del env.globals["lipsum"]  # writes any amount of text
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = _strftime_now
    return env


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON for a model to read: jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)
