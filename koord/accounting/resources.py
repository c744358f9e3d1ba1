"""Resource vectors: ResourceLists as integers in base units, and the arithmetic on them (API-AMP-01).

A ``ResourceVector`` maps a resource name to an integer: ``cpu`` in milli-cores, everything else as its whole value (memory,
ephemeral-storage and hugepages in bytes; batch-cpu and mid-cpu, which already count milli-cores, and devices as they are). A name that
is missing means zero wherever two vectors meet. No function changes its arguments unless its name says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from koord.api import names
from koord.api.quantity import INT64_MAX, format_binary, format_decimal, format_milli, parse_milli, parse_value

ResourceVector = dict[str, int]

BYTE_RESOURCES = frozenset(
    {
        names.RESOURCE_MEMORY,
        names.RESOURCE_EPHEMERAL_STORAGE,
        names.RESOURCE_STORAGE,
        names.RESOURCE_BATCH_MEMORY,
        names.RESOURCE_MID_MEMORY,
        names.RESOURCE_GPU_MEMORY,
    }
)


def is_bytes(name: str) -> bool:
    """Whether a resource counts bytes and is therefore written with binary suffixes."""
    return name in BYTE_RESOURCES or name.startswith(names.RESOURCE_HUGEPAGES_PREFIX)


def is_extended(name: str) -> bool:
    """Whether a resource is an extended one, as Kubernetes uses the word: it has a domain, and that is not one of Kubernetes' own."""
    domain, slash, rest = name.partition("/")
    own = domain.endswith("kubernetes.io")  # also of a longer word: Kubernetes only looks for "kubernetes.io/"
    return bool(slash and domain and rest) and "/" not in rest and not own and not name.startswith("requests.")


def parse_quantity(name: str, quantity: str | int | float) -> int:
    """The base-unit integer of one quantity of a resource. Raises QuantityError."""
    return parse_milli(quantity) if name == "cpu" else parse_value(quantity)


def parse(resource_list: Mapping[str, str | int | float] | None) -> ResourceVector:
    """A vector of a ResourceList (None is empty). Zero entries stay. Raises QuantityError."""
    if not resource_list:
        return {}
    return {name: parse_milli(quantity) if name == "cpu" else parse_value(quantity) for name, quantity in resource_list.items()}


def format_value(name: str, value: int) -> str:
    """Canonical text of a base-unit integer: cpu from milli, bytes with binary suffixes, the rest decimal."""
    if name == "cpu":
        return format_milli(value)
    return format_binary(value) if is_bytes(name) else format_decimal(value)


def format(vector: Mapping[str, int]) -> dict[str, str]:
    """A ResourceList with canonical quantities."""
    return {name: format_value(name, value) for name, value in vector.items()}


def add(left: Mapping[str, int], right: Mapping[str, int]) -> ResourceVector:
    """Sum over the union of names."""
    total = dict(left)
    add_into(total, right)
    return total


def add_into(total: ResourceVector, more: Mapping[str, int]) -> None:
    """Add ``more`` to ``total`` in place."""
    for name, value in more.items():
        total[name] = total.get(name, 0) + value


def sub(left: Mapping[str, int], right: Mapping[str, int]) -> ResourceVector:
    """Difference over the union of names; may be negative."""
    rest = dict(left)
    sub_into(rest, right)
    return rest


def sub_into(rest: ResourceVector, less: Mapping[str, int]) -> None:
    """Subtract ``less`` from ``rest`` in place; may be negative."""
    for name, value in less.items():
        rest[name] = rest.get(name, 0) - value


def sum_(vectors: Iterable[Mapping[str, int]]) -> ResourceVector:
    """Sum of many."""
    total: ResourceVector = {}
    for vector in vectors:
        add_into(total, vector)
    return total


def max_(left: Mapping[str, int], right: Mapping[str, int]) -> ResourceVector:
    """The larger value of each name of the union; a name that only one side has keeps that side's value."""
    larger = dict(left)
    for name, value in right.items():
        if name not in larger or value > larger[name]:
            larger[name] = value
    return larger


def non_negative(vector: Mapping[str, int]) -> ResourceVector:
    """Negative values become zero."""
    return {name: value if value > 0 else 0 for name, value in vector.items()}


def equal(left: Mapping[str, int], right: Mapping[str, int]) -> bool:
    """Equal where a missing name is zero."""
    return all(left.get(name, 0) == right.get(name, 0) for name in left.keys() | right.keys())


def only(vector: Mapping[str, int], wanted: Iterable[str]) -> ResourceVector:
    """The entries of those names that are there."""
    return {name: vector[name] for name in wanted if name in vector}


def fits(request: Mapping[str, int], free: Mapping[str, int]) -> list[str]:
    """Names, in order, of which ``free`` has less than is requested; empty means it fits. Zero and negative requests always fit."""
    return sorted(name for name, wanted in request.items() if wanted > 0 and wanted > free.get(name, 0))


def amplify_value(value: int, ratio: float) -> int:
    """Amplify(v, r): v for r ≤ 1 (or NaN), else ceil(v × r) as IEEE doubles on the base unit."""
    if not ratio > 1:
        return value
    product = float(value) * ratio
    return INT64_MAX if product >= float(INT64_MAX) else math.ceil(product)


def amplify(vector: Mapping[str, int], ratios: Mapping[str, float]) -> ResourceVector:
    """Each value amplified by the ratio of its name; names without a ratio stay."""
    return {name: amplify_value(value, ratios[name]) if name in ratios else value for name, value in vector.items()}
