"""A ledger as a table, as JSON, and as OpenCost's allocations. Pure (BEY-COST-01)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from koord.api.times import format_time
from roles.tools.cost.ledger import GIB, RESOURCES, Ledger, Row, Sums
from roles.tools.cost.prometheus import Penalty

FIELDS = ("namespace", "quota", "qos")
IDLE = "__idle__"
_NONE = "-"


@dataclass(slots=True)
class Report:
    """Costs of a time. `missing` are seconds of it of which nothing is known."""

    ledger: Ledger
    currency: str
    since: float
    until: float
    penalties: Mapping[str, Penalty] = field(default_factory=dict)
    missing: float = 0.0


def as_json(report: Report) -> dict[str, Any]:
    """All of it; amounts in money, core-hours and GiB-hours."""
    ledger = report.ledger
    return {
        "currency": report.currency,
        "from": format_time(report.since),
        "to": format_time(report.until),
        "missingHours": round(report.missing / 3600, 3),
        "nodesCost": ledger.cost,
        "idle": ledger.idle,
        "by": {name: [_row(name, key, row, report.penalties) for key, row in ledger.by(name).items()] for name in FIELDS},
        "nodes": [{"name": name, **asdict(node)} for name, node in sorted(ledger.nodes.items())],
    }


def _row(by: str, key: tuple[str, ...], row: Row, penalties: Mapping[str, Penalty]) -> dict[str, Any]:
    found = {by: key[0], "cost": row.cost, "measuredShare": row.measured / row.hours if row.hours else 0.0}
    found |= {"cpu": asdict(row.cpu), "memory": asdict(row.memory)}
    if by == "namespace" and key[0] in penalties:
        found["penalty"] = asdict(penalties[key[0]])
    return found


def opencost(report: Report, by: str) -> dict[str, Any]:
    """What OpenCost's `/allocation` answers with, aggregated by `by`."""
    window = {"start": format_time(report.since), "end": format_time(report.until)}
    hours = (report.until - report.since) / 3600
    found = {}
    for key, row in report.ledger.by(by).items():
        name = key[0] or "__unallocated__"
        properties = {by: key[0]} if by == "namespace" else {"labels": {by: key[0]}}
        found[name] = _allocation(name, properties, window, hours, row)
    spare, idle = report.ledger.total("unrequested"), report.ledger.total("idle")
    cpu, memory = (Sums(requested=spare[resource], paid=idle[resource]) for resource in RESOURCES)
    found[IDLE] = _allocation(IDLE, {}, window, hours, Row(cpu, memory))
    return {"code": 200, "status": "success", "data": [found]}


def _allocation(name: str, properties: dict[str, Any], window: dict[str, str], hours: float, row: Row) -> dict[str, Any]:
    cpu, memory = row.cpu, row.memory
    mean = 1 / hours if hours else 0.0
    return {
        "name": name, "properties": properties, "window": window, **window, "minutes": hours * 60,
        "cpuCores": cpu.requested * mean, "cpuCoreRequestAverage": cpu.requested * mean, "cpuCoreUsageAverage": cpu.used * mean,
        "cpuCoreHours": cpu.requested, "cpuCost": cpu.paid, "cpuCostAdjustment": -cpu.credit,
        "cpuEfficiency": _part(cpu.used, cpu.requested),
        "gpuCount": 0, "gpuHours": 0, "gpuCost": 0, "gpuCostAdjustment": 0,
        "networkCost": 0, "networkCostAdjustment": 0, "loadBalancerCost": 0, "pvCost": 0, "pvBytes": 0, "pvByteHours": 0,
        "ramBytes": memory.requested * GIB * mean, "ramByteRequestAverage": memory.requested * GIB * mean,
        "ramByteUsageAverage": memory.used * GIB * mean, "ramByteHours": memory.requested * GIB, "ramCost": memory.paid,
        "ramCostAdjustment": -memory.credit, "ramEfficiency": _part(memory.used, memory.requested),
        "sharedCost": 0, "externalCost": 0, "totalCost": row.cost,
        "totalEfficiency": _part(_worth(cpu.used, cpu.requested, cpu.paid) + _worth(memory.used, memory.requested, memory.paid),
            cpu.paid + memory.paid),
    }  # fmt: skip


def _part(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _worth(used: float, requested: float, paid: float) -> float:
    return paid * _part(used, requested)


def table(report: Report, by: str) -> str:
    """What a person reads: the sums, and a row for each owner."""
    ledger, hours = report.ledger, (report.until - report.since) / 3600
    total, paid = ledger.cost, sum(row.cost for row in ledger.rows.values())
    reclaimed = sum(row.cpu.reclaimed for row in ledger.rows.values())
    out = [
        f"{hours:.4g} hours to {format_time(report.until)}: nodes cost {_money(total)} {report.currency}, of which {_money(paid)} are paid "
        f"and {_money(ledger.idle)} idle; {reclaimed:.1f} core-hours ran on reclaimed CPU.",
    ]
    if report.missing:
        out.append(f"There is no data for {report.missing / 3600:.1f} hours; they are not in the sums.")
    with_penalty = by == "namespace" and bool(report.penalties)
    head = [by.upper(), "COST", "CREDIT", "REQUESTED", "USED", "IDLE", "RECLAIMED", "GIB-HOURS"]
    rows = [head + (["THROTTLED", "PSI", "P99"] if with_penalty else [])]
    for (name,), row in ledger.by(by).items():
        known = row.measured > 0
        cells = [name or _NONE, _money(row.cost), _money(row.cpu.credit + row.memory.credit), f"{row.cpu.requested:.1f}"]
        cells += [f"{value:.1f}" if known else _NONE for value in (row.cpu.used, row.cpu.idle, row.cpu.reclaimed)]
        cells.append(f"{row.memory.requested:.1f}")
        rows.append(cells + (_burden(report.penalties.get(name)) if with_penalty else []))
    spare = ledger.total("unrequested")
    rest = ["(idle)", _money(ledger.idle), _NONE, f"{spare['cpu']:.1f}", _NONE, _NONE, _NONE, f"{spare['memory']:.1f}"]
    rows.append(rest + ([_NONE] * 3 if with_penalty else []))
    widths = [max(len(line[column]) for line in rows) for column in range(len(rows[0]))]
    out.append("")
    for line in rows:
        cells = [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        out.append("  ".join(cells).rstrip())
    return "\n".join(out)


def _money(amount: float) -> str:
    return f"{amount:.2f}" if abs(amount) >= 1 or not amount else f"{amount:.4f}"


def _burden(penalty: Penalty | None) -> list[str]:
    if penalty is None:
        return [_NONE] * 3
    throttled = _NONE if penalty.throttled is None else f"{100 * penalty.throttled:.1f} %"
    psi = _NONE if penalty.psi is None else f"{penalty.psi:.1f} %"
    return [throttled, psi, _NONE if penalty.p99 is None else f"{penalty.p99:g}"]
