"""An answer as text that a tired person reads, and as one page of HTML. Pure (BEY-SIM-01)."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Sequence

from koord.accounting.resources import format_value, is_bytes
from roles.tools.simulate.answer import Answer, Fate, Hour, Quota
from roles.tools.simulate.moving import Moved

SHOWN = 20  # rows of a table; the rest is counted, JSON has all


def headline(answer: Answer) -> str:
    """The verdict in one line."""
    stuck = sum(1 for fate in answer.pending if not fate.waited) + len(answer.refused)
    placed, lost = len(answer.placed), len(answer.lost)
    parts = [f"{placed} {'pod gets' if placed == 1 else 'pods get'} a node"]
    if stuck:
        parts.append(f"{stuck} {'does' if stuck == 1 else 'do'} not")
    if lost:
        parts.append(f"{lost} {'is' if lost == 1 else 'are'} lost")
    if answer.worse:
        parts.append(f"{len(answer.worse)} {'is' if len(answer.worse) == 1 else 'are'} evicted")
    waits = sum(1 for fate in answer.pending if fate.waited)
    if waits:
        parts.append(f"{waits} pending before {'stays' if waits == 1 else 'stay'} so")
    return f"{'It fits' if answer.fits else 'It does not fit'}: {', '.join(parts)}."


def text(answer: Answer) -> str:
    """Sections with what there is to say; nothing is said of what does not change."""
    out = [headline(answer)]
    for title, rows in sections(answer):
        out += ["", title, *_table(rows)]
    return "\n".join(out)


def page(answer: Answer) -> str:
    """The same as HTML without anything to load."""
    parts = [f"<h1>{html.escape(headline(answer))}</h1>"]
    for title, rows in sections(answer, most=10_000):
        cells = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        parts.append(f"<h2>{html.escape(title)}</h2><table>{cells}</table>")
    style = "body{font:14px sans-serif;margin:2em;max-width:90em}td{padding:.2em 1.5em .2em 0;vertical-align:top}h2{margin-top:1.5em}"
    return f'<!doctype html><meta charset="utf-8"><title>koord simulate</title><style>{style}</style>{"".join(parts)}\n'


def sections(answer: Answer, most: int = SHOWN) -> Iterable[tuple[str, list[Sequence[str]]]]:
    """Titles and rows."""
    stuck = [fate for fate in answer.pending if not fate.waited]
    waits = [fate for fate in answer.pending if fate.waited]
    for title, fates in (("Without a node", stuck), ("Pending as before", waits)):
        if fates:
            yield title, _grouped(fates, most)
    if answer.refused:
        yield "Refused at admission", _cut([(pod, why) for pod, why in answer.refused.items()], most)
    if answer.not_simulated:
        yield "Not simulated: it is not known which pods these make", _cut([(name,) for name in answer.not_simulated], most)
    if answer.helps:
        yield "What would help", [(line,) for line in answer.helps]
    if answer.lost:
        yield "Lost: no controller recreates these pods", _cut([(pod,) for pod in answer.lost], most)
    if answer.placed:
        nodes = Counter(fate.node for fate in answer.placed)
        yield "Where pods go", _cut([(node, f"{count} {'pod' if count == 1 else 'pods'}") for node, count in sorted(nodes.items())], most)
    if answer.hot:
        yield "Hot nodes", _cut([(node, f"{was} % -> {now} % of its CPU") for node, was, now in answer.hot], most)
    if answer.suppressed:
        squeezed = [(each.node, f"{each.wanted / 1000:g} cores wanted, {each.allowed / 1000:g} allowed") for each in answer.suppressed]
        yield "Best-effort pods are suppressed", _cut(squeezed, most)
    if answer.evicted:
        yield "koordlet evicts", _cut([(each.pod, each.node, f"{each.gate}: {each.message}") for each in answer.evicted], most)
    if answer.moved:
        yield "The descheduler moves", _cut([_move(each) for each in answer.moved], most)
        yield "Hot nodes after that", [(" ".join(answer.hot_then) or "none",)]
    if answer.hours:
        yield "With other usage", [_hour(hour) for hour in answer.hours]
    if answer.uses:
        yield "Requested of what there is", [_use(use.resource, use.requested, use.available) for use in answer.uses]
    if answer.quotas:
        rows = [(each.quota, each.resource, _change(each.resource, each.used), _bound(each)) for each in answer.quotas]
        yield "Quotas", _cut(rows, most)
    if answer.free:
        yield "Nodes without work of their own", [(" ".join(answer.free[:most]) + (" …" if len(answer.free) > most else ""),)]


def _hour(hour: Hour) -> Sequence[str]:
    fits = "fits" if hour.fits else f"{hour.pending} without a node"
    return f"x {hour.usage:g}", fits, f"{len(hour.hot)} hot", f"{len(hour.suppressed)} suppressed", f"{hour.batch / 1000:g} batch cores"


def _move(moved: Moved) -> Sequence[str]:
    return moved.pod, f"{moved.node} -> {moved.to}" if moved.to else f"stays on {moved.node}: it fits nowhere else", moved.reason


def _bound(quota: Quota) -> str:
    return "" if quota.max is None else f"of {_amount(quota.resource, quota.max)}"


def _grouped(fates: Sequence[Fate], most: int) -> list[Sequence[str]]:
    """Pods that wait for the same reason stand together."""
    by_reason: dict[str, list[str]] = {}
    for fate in fates:
        by_reason.setdefault(fate.message, []).append(fate.pod)
    rows = []
    for message, pods in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        rows.append((pods[0] if len(pods) == 1 else f"{pods[0]} and {len(pods) - 1} more", message))
    return _cut(rows, most)


def _cut(rows: Sequence[Sequence[str]], most: int) -> list[Sequence[str]]:
    return [*rows[:most], *([(f"… and {len(rows) - most} more",)] if len(rows) > most else [])]


def _use(resource: str, requested: tuple[int, int], available: tuple[int, int]) -> Sequence[str]:
    shares = " -> ".join(f"{100 * asked // there} %" if there else "-" for asked, there in zip(requested, available, strict=True))
    return resource, _change(resource, requested), f"of {_change(resource, available)}", shares


def _change(resource: str, pair: tuple[int, int]) -> str:
    before, after = (_amount(resource, value) for value in pair)
    return before if before == after else f"{before} -> {after}"


def _amount(resource: str, value: int) -> str:
    """CPU of every tier in cores, bytes in GiB."""
    if resource.endswith("cpu"):
        return f"{value / 1000:g} cores"
    return f"{value / 2**30:.1f} GiB" if is_bytes(resource) else format_value(resource, value)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    columns = max(len(row) for row in rows)
    widths = [max((len(row[column]) for row in rows if len(row) > column + 1), default=0) for column in range(columns)]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows]
