"""CEL expressions: compiled once, evaluated often."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from cel_expr_python import cel

from koord.apiserver.cel import growth, library
from koord.apiserver.errors import Cause, invalid_value, required
from koord.apiserver.store import Obj

Type = Any  # of cel_expr_python
Bound = Any  # values of an environment
Allows = Callable[[Obj], tuple[bool, str]]
"""Answers a question to the authorizer: whether it is allowed, and why."""

BOOL, STRING, NULL, DYN = "BOOL", "STRING", "NULL", cel.Type.DYN
MAX_LENGTH = 16 * 1024  # characters of one expression
_STATUS = re.compile(r"^(?:[A-Za-z]*Error: )?(?:[A-Z_]+: )?| \[[A-Z_]+\]$")
# a range takes memory for as many numbers as it is told; nothing here counts what an expression costs
_RANGE = re.compile(r"\blists(?:\s|//[^\n]*\n)*\.(?:\s|//[^\n]*\n)*range\b")
_BOUNDED_RANGE = re.compile(r"\blists\.range\(\s*(?:\d{1,3}|[\w.]+\.size\(\)|size\([\w.]+\))\s*\)")
_NO_KEY = re.compile(r'Key not found in map : "?(.*?)"?$')


if sys.version_info < (3, 12):
    # The library gives references to None away that it never took, which ends the process once they are used up. From Python 3.12 on
    # None cannot die; here it gets references for more than a lifetime.
    ctypes.c_ssize_t.from_address(id(None)).value += 1 << 48


class CelError(Exception):
    """An expression that cannot be compiled or evaluated; the text says why."""


class Environment:
    """The variables (by name, with their types) and functions that expressions may use. `sizes`: how large those variables can be of
    which that is known; `devices`: with what selectors of devices have beyond that."""

    def __init__(
        self,
        variables: Mapping[str, Type],
        *,
        sizes: Mapping[str, growth.Size] | None = None,
        pool: Any = None,
        allows: Allows | None = None,
        devices: bool = False,
    ) -> None:
        config = library.config("bindings") if devices else library.config()
        self._sizes = sizes or {}
        functions = library.extensions(allows, semver=devices)
        self._env = cel.NewEnv(pool or library.pool(), config, variables=dict(variables), extensions=functions)

    def compile(self, expression: str, *results: str) -> Program:
        """Raises CelError for what is no expression here, or can be of none of the types `results`."""
        if len(expression) > MAX_LENGTH:
            raise CelError(f"expression is longer than {MAX_LENGTH} characters")
        if _RANGE.search(_BOUNDED_RANGE.sub("", expression)):
            raise CelError("compilation failed: lists.range takes a number below 1000, or the size of something, here")
        try:
            compiled = self._env.compile(expression)
        except Exception as error:
            raise CelError(f"compilation failed: {_told(error)}") from None
        checked = compiled.serialize()
        if b"cel.@mapInsert" in checked:  # the library compiles it, and has no function for it
            raise CelError("compilation failed: transformMap and transformMapEntry cannot be evaluated here")
        try:
            size = growth.check(checked, self._sizes)
        except growth.TooLargeError as error:
            raise CelError(f"compilation failed: {error}") from None
        except RecursionError:
            raise CelError("compilation failed: the expression is nested too deeply") from None
        program = Program(compiled, expression, results, size)
        if results and program.type.name() not in (*results, "DYN"):
            raise CelError(f"must evaluate to {' or '.join(results).lower()}")
        return program

    def bind(self, values: Mapping[str, Any]) -> Bound:
        """Values for programs of this environment: each is converted once, when the first expression asks for it."""
        return self._env.Activation(values)


class Program:
    """One compiled expression."""

    __slots__ = ("_compiled", "_results", "expression", "size", "type")

    def __init__(self, compiled: Any, expression: str, results: tuple[str, ...], size: growth.Size) -> None:
        self._compiled = compiled
        self._results = results
        self.expression = expression
        self.size = size
        self.type: Type = compiled.return_type()

    def evaluate(self, values: Bound) -> Any:
        """The result as a plain Python value; `values` are of its environment. Raises CelError."""
        try:
            found = self._compiled.eval(values)
            kind = found.type().name()
            result = None if kind == NULL else found.plain_value()
        except Exception as error:
            raise CelError(_told(error)) from None
        if kind == "ERROR":
            raise CelError(_told(result))
        if self._results and kind not in self._results:
            raise CelError(f"must evaluate to {' or '.join(self._results).lower()}")
        return result


def told(program: Program | None, values: Bound) -> str:
    """The message that an expression makes; "" for none, for one that fails and for several lines."""
    try:
        text = str(program.evaluate(values)).strip() if program is not None else ""
    except CelError:
        text = ""
    return "" if "\n" in text else text


def check_message(message: str, expression: str, path: str, what: str, causes: list[Cause]) -> None:
    """A message is one line, and an expression of several lines has one."""
    if "\n" in message.strip():
        causes.append(invalid_value(f"{path}.message", message, "message must not contain line breaks"))
    elif not message and "\n" in expression.strip():
        causes.append(required(f"{path}.message", f"message must be specified if {what} contains line breaks"))


def readable(value: Any) -> Any:
    """JSON as expressions may see it. The library ends a text at its first NUL, so that another character stands for that."""
    return _without_nul(value) if b"\\u0000" in orjson.dumps(value) else value


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, dict):
        return {_without_nul(key): _without_nul(inner) for key, inner in value.items()}
    return [_without_nul(inner) for inner in value] if isinstance(value, list) else value


def _told(error: object) -> str:
    return _NO_KEY.sub(r"no such key: \1", _STATUS.sub("", str(error)))
