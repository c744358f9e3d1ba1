"""One sentence for a decision, with the number that decided (pure). CPU in CPUs, memory with binary suffixes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from koord.api.quantity import format_binary
from koord.decisions.record import NOBODY_OFFERS, Number, Record, Term

LENGTH = 100
_AVAILABLE = re.compile(r"0/(\d+) nodes are available: (.+?)(?:\. |\.?$)", re.DOTALL)
_SUBTRACTED = (("cpu.margin", "kept free"), ("cpu.reserved", "reserved"), ("cpu.system", "outside pods"), ("cpu.hpUsed", "services"))
_BY_POLICY = {"hpRequest": "services request", "hpMax": "services"}


ALLOWANCE = frozenset(
    {"allowance_milli", "capacity_milli", "threshold_percent", "non_be_pods_milli", "non_be_host_apps_milli", "system_milli"}
)
"""Numbers that the headline and the terms of an allowance tell."""


def cpus(milli: Number) -> str:
    """Milli-CPU as CPUs, two digits at most: 28.8, 0.15, 2."""
    value = float(milli) / 1000
    text = f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def short(text: str, length: int = LENGTH) -> str:
    """Text of at most `length` characters, cut between words."""
    text = " ".join(text.split())
    if len(text) <= length:
        return text
    return text[: length - 1].rpartition(" ")[0].rstrip(" ,;:") + "…"


def headline(record: Record) -> str:
    """What was decided and the number that decided, without the subject; "" where the record's own words have to do."""
    for made in (_offer(record), _allowance(record), _refused(record)):
        if made:
            return made
    return ""


def _offer(record: Record) -> str:
    """What a node offers to batch pods, and what takes the rest."""
    terms = {term.name: term for term in record.terms}
    offered, total = terms.get("batch-cpu"), terms.get("cpu.total")
    if record.subject.kind != "Node" or offered is None or total is None:
        return ""
    parts = [(word, _value(terms, name)) for name, word in _parts(offered)]
    if float(offered.value) > 0:
        taken = "".join(f" − {cpus(value)} {word}" for word, value in parts if value > 0)
        return f"offers {cpus(offered.value)} batch CPUs: {cpus(total.value)}{taken}"
    word, most = max(parts, key=lambda part: part[1])
    who = {"outside pods": "processes outside pods use", "services": "services use", "services request": "services request"}.get(word)
    if who is None:
        return f"offers no batch CPU: {cpus(most)} of {cpus(total.value)} CPUs are {word}"
    return f"offers no batch CPU: {who} {cpus(most)} of {cpus(total.value)} CPUs"


def _parts(offered: Term) -> tuple[tuple[str, str], ...]:
    """The terms that the node's policy subtracts; the formula stands in the result's note."""
    for name, word in _BY_POLICY.items():
        if name in offered.note:
            return tuple((f"cpu.{name}", word) if one == "cpu.hpUsed" else (one, said) for one, said in _SUBTRACTED)
    return tuple(part for part in _SUBTRACTED if part[0] != "cpu.reserved")


def _value(terms: Mapping[str, Term], name: str) -> float:
    term = terms.get(name)
    return float(term.value) if term is not None and not isinstance(term.value, str) else 0.0


def _allowance(record: Record) -> str:
    """What best-effort pods may use, and what the others take."""
    numbers = record.numbers
    if record.role != "koordlet" or "allowance_milli" not in numbers:
        return ""
    may = max(float(numbers["allowance_milli"]), 0.0)
    terms = f"{cpus(numbers.get('capacity_milli', 0))} × {numbers.get('threshold_percent', 0)} %"
    for name, word in (
        ("non_be_pods_milli", "other pods"),
        ("non_be_host_apps_milli", "host applications"),
        ("system_milli", "outside pods"),
    ):
        if numbers.get(name):
            terms += f" − {cpus(numbers[name])} {word}"
    return f"best-effort pods may use {cpus(may)} CPUs: {terms}"


def _refused(record: Record) -> str:
    """Why no node takes a pod: the reasons by how many nodes give them."""
    if record.verdict != "Unschedulable":
        return ""
    # what a plugin adds to explain itself has a note, or counts no node
    counted = [term for term in record.terms if term.unit in ("nodes", "") and not term.note and _value({"": term}, "") > 0]
    quotas = [term for term in record.terms if term.name.startswith("quota ") and isinstance(term.value, (int, float)) and term.value < 0]
    if quotas:
        worst = min(quotas, key=lambda term: float(term.value))
        return f"{worst.name} is short of {cpus(-float(worst.value)) if worst.unit == 'milli' else _size(-float(worst.value))}"
    missing = [term.name.removesuffix(f": {NOBODY_OFFERS}") for term in record.terms if term.name.endswith(f": {NOBODY_OFFERS}")]
    if missing:
        return f"no node offers {' or '.join(missing)}, which it requests"
    if not counted:
        found = _AVAILABLE.match(record.message)
        return f"{_none(found[1])}: {found[2]}" if found else ""
    counted.sort(key=lambda term: -float(term.value))
    return f"{_none(record.numbers.get('evaluated', ''))}: " + ", ".join(f"{term.value:g} × {term.name}" for term in counted)


def _none(nodes: Number) -> str:
    return "the only node does not fit" if str(nodes) == "1" else f"none of {nodes} nodes fits"


def _size(value: float) -> str:
    return format_binary(int(value)) if value >= 1024 else f"{value:g}"
