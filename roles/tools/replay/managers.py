"""The manager's decisions made again, and which rule makes the difference with another slo-controller-config (BEY-REPLAY-01)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic.alias_generators import to_camel

from koord import seams
from koord.accounting.resources import format_value
from koord.api import names
from koord.config.slo import SLOConfig
from roles.manager.noderesource.plan import Plan
from roles.manager.replaying import Decoder, Turn, rules, same
from roles.tools.replay.files import readable, taken
from roles.tools.replay.found import Difference, Each, Found

_TERMS = 3  # terms of a formula that the numbers name
_RULES = {
    "cpu_reclaim_percent": "cpuReclaimThresholdPercent",
    "memory_reclaim_percent": "memoryReclaimThresholdPercent",
    "cpu_policy": "cpuCalculatePolicy",
    "memory_policy": "memoryCalculatePolicy",
    "mid_cpu_threshold_percent": "midCPUThresholdPercent",
    "batch_cpu_threshold_percent": "batchCPUThresholdPercent",
    "mid_static_cpu_reserved_percent": "midStaticCPUReservedPercent",
    "normalization": "cpu-normalization-config",
    "amplification": "resource-amplification-config",
}
"""Rules that are not called in slo-controller-config as their fields are here."""


def run(files: list[Path], config: SLOConfig | None = None, each: Each | None = None) -> Found:
    """All decisions of the log. Raises ConfigurationError."""
    found, decoder, began = Found("manager", config=config is not None), Decoder(), seams.current().cpu_time()
    for file, turn in taken(files, "manager", decoder.take):
        with readable(file):
            if turn is None:
                found.versions[decoder.version] += 1
            else:
                _turn(turn, decoder, found, config, each)
    return found.ended(files, seams.current().cpu_time() - began)


def _turn(turn: Turn, decoder: Decoder, found: Found, config: SLOConfig | None, each: Each | None) -> None:
    then = decoder.decide(turn)
    repeated = same(turn, then)
    plan = decoder.decide(turn, config) if config is not None else then
    alike = (_answer(plan) == _answer(then)) if config is not None else repeated
    found.count(turn.inputs.now, repeated=repeated, same=alike)
    if not alike:
        found.differences.append(_difference(turn, then, plan, decoder, config))
    if each is not None:
        told = {key: ", ".join(f"{name} {_told(name, amounts[name])}" for name in sorted(amounts)) or "nothing"
                for key, amounts in (("node", plan.resources), ("then", turn.then[0]))}  # fmt: skip
        each({"pod": turn.node, "time": turn.inputs.now, "rule": "noderesource", "same": alike, **told})


def _answer(plan: Plan) -> tuple[Any, ...]:
    """What a node is told, without the words and without what stands on it already."""
    return plan.enabled, plan.resources, plan.removed, [answer[3:] for answer in plan.answers], plan.errors


def _difference(turn: Turn, then: Plan, plan: Plan, decoder: Decoder, config: SLOConfig | None) -> Difference:
    name = next((each for each in _order(then, plan) if _amount(then, each) != _amount(plan, each)), "")
    before, after = (_told(name, _amount(each, name)) for each in (then, plan)) if name else ("as it was", "otherwise")
    if config is None:  # the log says something else than this koord
        logged = turn.then[0].get(name) if name else None
        moved = next((each for each in turn.then[0] if turn.then[0][each] != plan.resources.get(each)), "")
        before, after = (_told(moved, turn.then[0][moved]), _told(moved, plan.resources.get(moved))) if moved else (before, after)
        return Difference(turn.node, turn.inputs.now, _what(moved, turn.then[0].get(moved), plan.resources.get(moved)), "this version",
                          before, after, "" if logged is None else f"{logged}")  # fmt: skip
    cause, value = _cause(turn, then, name, decoder, config)
    plugin = next((item.plugin for item in plan.contributions if name in item.resources or name in item.removed), "")
    numbers = "; ".join(filter(None, (value, _terms(then, plan, name))))
    what = _what(name, _amount(then, name), _amount(plan, name))
    return Difference(turn.node, turn.inputs.now, what, ", ".join(filter(None, (plugin, cause))) or "unknown", before, after, numbers)


def _order(then: Plan, plan: Plan) -> list[str]:
    batch = [names.RESOURCE_BATCH_CPU, names.RESOURCE_BATCH_MEMORY]
    return [*batch, *sorted({*then.resources, *plan.resources, *then.removed, *plan.removed} - {*batch})]


def _amount(plan: Plan, name: str) -> int | None:
    """None where the resource is taken away or not spoken of."""
    return plan.resources.get(name)


def _told(name: str, amount: int | None) -> str:
    return "nothing" if amount is None else format_value(name, amount)


def _what(name: str, before: int | None, after: int | None) -> str:
    if not name:
        return "other labels, annotations or zones"
    if after is None or before is None:
        return f"no {name} any more" if after is None else f"{name} where there was none"
    return f"more {name}" if after > before else f"less {name}"


def _cause(turn: Turn, then: Plan, name: str, decoder: Decoder, config: SLOConfig) -> tuple[str, str]:
    """The rule whose new value, alone, moves the amount most, and its values."""
    best: tuple[float, str, str] = (0.0, "", "")
    for rule, before, after, plan in rules(turn, config, decoder):
        if name:
            moved = float(abs((_amount(plan, name) or 0) - (_amount(then, name) or 0)))
            moved += 0.5 * ((_amount(plan, name) is None) != (_amount(then, name) is None))
        else:
            moved = float(_answer(plan) != _answer(then))
        if moved > best[0]:
            named = _RULES.get(rule) or to_camel(rule)
            best = moved, named, f"{named} {_value(before)} -> {_value(after)}"
    return best[1] or "several rules together", best[2]


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "another" if value else "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return "unset" if value is None else str(value)


def _terms(then: Plan, plan: Plan, name: str) -> str:
    """The terms of an amount's formula that are others now."""
    before = {term.name: term.value for term in then.terms}
    about = f"{name.rpartition('-')[2]}."
    return ", ".join(
        [
            f"{term.name} {before[term.name]} -> {term.value}"
            for term in plan.terms
            if term.name.startswith(about) and before.get(term.name, term.value) != term.value
        ][:_TERMS]
    )
