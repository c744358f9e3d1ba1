"""Amounts of capacities and counters, and which of them can be asked for (SCH-DRA-06, SCH-DRA-07). Exact: integers, or fractions."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache

from koord.api.objects_resource import CapacityRequestPolicy, DeviceCapacity
from koord.api.quantity import Quantity

Amount = int | Fraction
Amounts = Mapping[str, Amount]


@lru_cache(maxsize=4096)
def amount(text: str | int | float) -> Amount:
    """A quantity in base units. Raises QuantityError."""
    value = Quantity(text if isinstance(text, str) else repr(text)).as_fraction()
    return value.numerator if value.denominator == 1 else value


def text_of(value: Amount, like: str | int | float) -> str:
    """An amount as a quantity, in the suffixes of another one."""
    if value == amount(like):
        return str(Quantity(str(like)))
    binary = isinstance(like, str) and like.endswith("i")
    if binary and isinstance(value, int):
        for power, suffix in ((60, "Ei"), (50, "Pi"), (40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")):
            if value and not value % (1 << power):
                return f"{value >> power}{suffix}"
    if isinstance(value, int):
        return str(Quantity(str(value)))
    return str(Quantity(f"{round(value * 10**9)}n"))


def consumed(wanted: Amounts, capacities: Mapping[str, DeviceCapacity]) -> dict[str, Amount] | None:
    """What one allocation takes of each capacity of a device; None when the device cannot give what is wanted at all."""
    if any(name not in capacities for name in wanted):
        return None
    taken: dict[str, Amount] = {}
    for name, capacity in capacities.items():
        policy = capacity.request_policy
        if name not in wanted:
            default = policy.default if policy is not None else None
            taken[name] = amount(capacity.value if default is None else default)
            continue
        value = _rounded(wanted[name], policy)
        if _refused(value, policy):
            return None
        taken[name] = value
    return taken


def _rounded(value: Amount, policy: CapacityRequestPolicy | None) -> Amount:
    """The next amount that the policy allows."""
    if policy is None:
        return value
    if policy.valid_range is not None and policy.valid_range.min is not None:
        least = amount(policy.valid_range.min)
        if value <= least:
            return least
        if policy.valid_range.step is not None and (step := amount(policy.valid_range.step)) > 0:
            return least + -(-(value - least) // step) * step
    elif policy.valid_values:
        return min((known for known in map(amount, policy.valid_values) if known >= value), default=value)
    return value


def _refused(value: Amount, policy: CapacityRequestPolicy | None) -> bool:
    if policy is None or (policy.default is not None and value == amount(policy.default)):
        return False
    if policy.valid_range is not None:
        return policy.valid_range.max is not None and value > amount(policy.valid_range.max)
    return bool(policy.valid_values) and value not in map(amount, policy.valid_values)
