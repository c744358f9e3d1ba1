"""Selectors of devices (`resource.k8s.io`): expressions over one device, compiled once and evaluated for each kind of device.

An expression sees `device`: `driver`, `attributes` and `capacity` by domain and name, and `allowMultipleAllocations`. A domain that the
device does not have is an empty map to an expression that names it, as in Kubernetes; a name that it does not have is an error, so that
expressions ask first (`"name" in device.attributes["domain"]`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from koord.apiserver.cel import library
from koord.apiserver.cel.environment import BOOL, DYN, CelError, Environment, Program

MAX_LENGTH = 10 * 1024  # characters of one selector
_INDEXED = re.compile(r"""\[\s*(?:"([^"\\]*)"|'([^'\\]*)')\s*\]""")
_ASKED = re.compile(r"""(?:"([^"\\]*)"|'([^'\\]*)')\s+in\s""")
_PLACE = r"""\bdevice\.(attributes|capacity)\[\s*(?:"([^"\\]*)"|'([^'\\]*)')\s*\]"""
_READ = re.compile(_PLACE + r"""\.\??([A-Za-z_]\w*)""")
_HAD = re.compile(r"""(?:"([^"\\]*)"|'([^'\\]*)')\s+in\s+""" + _PLACE)
_FIELDS = re.compile(r"\bdevice\s*\.\s*\??([A-Za-z_]\w*)")
_KNOWN = frozenset({"driver", "attributes", "capacity", "allowMultipleAllocations"})

__all__ = ["MAX_LENGTH", "CelError", "Selector", "compiled", "described"]


@lru_cache(maxsize=1)
def _environment() -> Environment:
    return Environment({"device": DYN}, devices=True)


Read = tuple[str, str, str]
"""("attributes" or "capacity", domain, name)"""


def _reads(expression: str) -> tuple[Read, ...] | None:
    """All that an expression can look at of attributes and capacities; None where the text does not tell."""
    found = {(part, one or other, name) for part, one, other, name in _READ.findall(expression)}
    found |= {(part, one or other, first or second) for first, second, part, one, other in _HAD.findall(expression)}
    rest = _HAD.sub(" ", _READ.sub(" ", expression))
    hidden = "attributes" in rest or "capacity" in rest or re.search(r"\bdevice\b(?!\s*\.)", rest)
    return None if hidden else tuple(sorted(found))


class Selector:
    """One compiled expression. `named` are the domains that it indexes, `reads` is all that it looks at beside the driver and whether
    several may use the device (None: anything)."""

    __slots__ = ("_program", "expression", "named", "reads")

    def __init__(self, expression: str, program: Program) -> None:
        self.expression = expression
        self._program = program
        asked = {a or b for a, b in _ASKED.findall(expression)}
        self.reads = _reads(expression)
        self.named = frozenset({a or b for a, b in _INDEXED.findall(expression)} - asked)

    def matches(self, device: Mapping[str, Any]) -> bool:
        """Whether a device (as `described` makes it) is selected. Raises CelError."""
        parts = dict(device)
        for part in ("attributes", "capacity"):
            known = parts[part]
            if not known.keys() >= self.named:
                parts[part] = {**{name: {} for name in self.named}, **known}
        return bool(self._program.evaluate(_environment().bind({"device": parts})))


@lru_cache(maxsize=4096)
def compiled(expression: str) -> Selector:
    """The selector of an expression. Raises CelError for what is none."""
    if len(expression) > MAX_LENGTH:
        raise CelError(f"expression is longer than {MAX_LENGTH} characters")
    unknown = next((name for name in _FIELDS.findall(expression) if name not in _KNOWN), "")
    if unknown:
        raise CelError(f"compilation failed: undefined field '{unknown}'")
    return Selector(expression, _environment().compile(expression, BOOL))


def _domains(driver: str, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Attributes or capacities (`[domain/]name` -> value) by domain; a name without one is the driver's."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        domain, _, ident = name.rpartition("/")
        found.setdefault(domain or driver, {})[ident] = value
    return found


def described(driver: str, attributes: Mapping[str, Mapping[str, Any]], capacity: Mapping[str, str], multiple: bool) -> dict[str, Any]:
    """A device as expressions see it; `attributes` as the API has them ({"string": …}), `capacity` are quantities. Raises ValueError."""
    values = {name: _value(attribute) for name, attribute in attributes.items()}
    amounts = {name: library.quantity(str(amount)) for name, amount in capacity.items()}
    found = {"attributes": _domains(driver, values), "capacity": _domains(driver, amounts)}
    return {"driver": driver, **found, "allowMultipleAllocations": multiple}


def _value(attribute: Mapping[str, Any]) -> Any:
    for kind, value in attribute.items():
        if value is not None:
            if kind == "version":
                return library.semver(value)
            return [library.semver(one) for one in value] if kind == "versions" else value
    return None
