"""From records and the live object to an explanation in plain words; pure (the time is an argument)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from koord.accounting.resources import is_bytes
from koord.api.names import LABEL_QUOTA_PARENT
from koord.api.quantity import QuantityError, format_binary, parse_milli, parse_value
from koord.decisions.record import Number, Record, Term
from roles.tools import quota
from roles.tools.facts import Gathered, Live, event_time, gang_of, uids_of
from roles.tools.headline import ALLOWANCE, LENGTH, cpus, headline, short
from roles.tools.nearest import Nearest, nearest_node

_MILLI = ("/batch-cpu", "/mid-cpu")  # resources whose whole numbers are thousandths of a CPU
_OF_QUOTA = {"pod": "Pod asks", "used": "Used", "runtime": "May use", "min": "Min", "max": "Max"}
"""Part of the note of a quota's term: its column."""
_QUOTAS = ("quota_us", "old_quota_us")
LONG = 40  # characters: a sentence as long is told once
SUBJECT = 44  # characters that the name of the subject may take of the first line
MOST_WAITING = 3  # pods that wait for a quota are named
MAX_FILES = 6  # control group files of a pod that are shown; the newest writes


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under headings."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Section:
    """One answer: who says it and when, sentences, and the numbers behind them."""

    title: str
    lines: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(slots=True)
class Explanation:
    """What `koord why` says."""

    subject: str
    summary: str
    reason: str = ""
    """The verdict of the decision that the summary tells: a stable code (see `_PLAIN`); "" where nobody has decided."""
    sections: list[Section] = field(default_factory=list)


# -- words ---------------------------------------------------------------------------------------------------------


def ago(seconds: float) -> str:
    """`5s ago`, `3m ago`, `2h ago`, `4d ago`."""
    seconds = max(0.0, seconds)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit} ago"
    return f"{int(seconds)}s ago"


def amount(name: str, value: Number, unit: str = "") -> str:
    """A number as people read it: milli-CPU as CPUs, bytes with a binary suffix, percentages with their sign."""
    if isinstance(value, (str, bool)):
        return str(value)
    if unit in ("percent", "%"):
        return f"{value:g}%"
    lowered = name.lower()
    plain = lowered in _FILES or any(word in lowered for word in ("percent", "ratio", "count", "pods"))
    if unit == "milli" or (not unit and not plain and "cpu" in lowered and float(value).is_integer()):
        return cpus(value)
    if unit == "bytes" or (not unit and not plain and "memory" in lowered and float(value).is_integer()):
        return _bytes(int(value))
    text = f"{value:.4g}" if isinstance(value, float) and not value.is_integer() else str(int(value))
    if unit.endswith("s") and text == "1":
        unit = unit[:-1]
    return f"{text} {unit}" if unit else text


def _bytes(value: int) -> str:
    """With the largest binary suffix that fits; exact, or rounded to two digits."""
    for size, suffix in ((2**40, "Ti"), (2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki")):
        if abs(value) >= size:
            return f"{value / size:.2f}".rstrip("0").rstrip(".") + suffix
    return format_binary(value)


def _count(number: Number, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# -- records -------------------------------------------------------------------------------------------------------


def _terms(record: Record, headings: tuple[str, str]) -> tuple[Table, ...]:
    if not record.terms:
        return ()
    noted = any(term.note for term in record.terms)
    rows = tuple((term.name, _term(term), *((_note(term.note),) if noted else ())) for term in record.terms)
    return (Table((*headings, "Note") if noted else headings, rows),)


def _term(term: Term) -> str:
    """A term's amount; the sign of one that is subtracted stands in its name."""
    value = -term.value if term.name.startswith("−") and isinstance(term.value, (int, float)) else term.value
    return amount(term.name, value, term.unit)


def _note(text: str) -> str:
    """A note with its amounts in the units of everything else: CPUs, and bytes with the largest suffix that fits."""
    text = re.sub(r"\b(\d+)m\b", lambda found: cpus(int(found.group(1))), text)
    return re.sub(r"\b(?:\d{7,}|\d{4,}[KMG]i)\b", lambda found: _bytes(parse_value(found.group())), text)


def _numbers(record: Record, *, without: frozenset[str] = frozenset()) -> tuple[Table, ...]:
    """The numbers that no term tells already."""
    told = {term.name for term in record.terms}
    rows = tuple(
        _number(name, value)
        for name, value in record.numbers.items()
        if name not in without and name.rpartition("/")[2] not in told and value != ""
    )
    return (Table(("Number", "Value"), rows),) if rows else ()


def _number(name: str, value: Number) -> tuple[str, str]:
    """A number with the unit of everything else here in place of the one that its name ends with."""
    bare, _, unit = name.rpartition("_")
    if not bare or not isinstance(value, (int, float)):
        return name, amount(name, value)
    if name in _QUOTAS:  # microseconds of each 100 ms; below 0: none is set
        return f"{bare} (CPUs)", "none" if value < 0 else cpus(value / 100)
    if unit in ("milli", "bytes", "percent"):
        return f"{bare} (CPUs)" if unit == "milli" else bare, amount(bare, value, unit)
    return name, amount(name, value)


def _scheduled(record: Record) -> Section:
    numbers = record.numbers
    lines = [f"{record.message[:1].upper()}{record.message[1:]}."]
    if "evaluated" in numbers:
        line = f"Of {_count(numbers['evaluated'], 'node')} looked at, {numbers.get('feasible', '?')} fitted"
        if "score" in numbers:
            line += f"; this one won with {amount('', numbers['score'])} points"
            ties = numbers.get("ties")
            others = ties - 1 if isinstance(ties, int) else 0  # the winner is one of its equals
            line += f" (equal to {others} {'other' if others == 1 else 'others'})" if others > 0 else ""
        lines.append(line + ".")
    shown = frozenset({"evaluated", "feasible", "score", "ties", "node"})
    scores = tuple(sorted(record.terms, key=lambda term: -term.value if isinstance(term.value, (int, float)) else 0))
    rows = tuple((term.name, amount("", term.value)) for term in scores)
    return Section("", tuple(lines), ((Table(("Score of", "Points"), rows),) if rows else ()) + _numbers(record, without=shown))


def _unschedulable(record: Record) -> Section:
    numbers = record.numbers
    lines = []
    if "evaluated" in numbers:
        lines.append(f"{_count(numbers['evaluated'], 'node')} looked at, {numbers.get('feasible', 0)} fit.")
    if not record.terms:  # they say the same with their counts
        lines.append(record.message.rstrip(".") + "." if record.message else "No node fits.")
    if numbers.get("nominated"):
        lines.append(f"Waits for room on {numbers['nominated']}: {_count(numbers.get('victims', 0), 'pod')} must leave first.")
    shown = frozenset({"evaluated", "feasible", "nominated", "victims"})
    rest, quotas = _quotas(record)
    return Section("", tuple(lines), _terms(rest, ("Reason", "Nodes")) + quotas + _numbers(record, without=shown))


def _quotas(record: Record) -> tuple[Record, tuple[Table, ...]]:
    """The record without its terms of quotas, and those as a table: the ones that are exceeded, or all where none is."""
    terms = [term for term in record.terms if term.name.startswith("quota ") and all("=" in part for part in term.note.split())]
    terms = [term for term in terms if isinstance(term.value, (int, float))]
    short = [term for term in terms if float(term.value) < 0] or terms
    rows = []
    for term in short:
        quota, _, resource = term.name.removeprefix("quota ").rpartition(": ")
        said = dict(part.partition("=")[::2] for part in _note(term.note).split())
        lacking = amount(resource, max(-float(term.value), 0), term.unit) if term.unit else f"{-float(term.value):g}"
        rows.append((quota, resource, lacking, *(said.get(key, "") for key in _OF_QUOTA)))
    headings = ("Quota", "Resource", "Short of", *(_OF_QUOTA.values()))
    others = tuple(term for term in record.terms if term not in terms)
    return msgspec.structs.replace(record, terms=others), (Table(headings, tuple(rows)),) if rows else ()


def _formula(record: Record) -> Section:
    """A result and the terms that made it."""
    said = headline(record) or record.message
    told = ALLOWANCE if record.terms and "allowance_milli" in record.numbers else frozenset[str]()
    return Section("", (said,) if said else (), _terms(record, ("Term", "Value")) + _numbers(record, without=told))


_BY_VERDICT: dict[str, Callable[[Record], Section]] = {
    "Scheduled": _scheduled,
    "Unschedulable": _unschedulable,
    "Error": _unschedulable,
}

_PLAIN = {
    "Scheduled": "was placed",
    "Unschedulable": "is pending: no node fits",
    "Error": "is pending: scheduling failed",
    "Suppressed": "was suppressed",
    "Evicted": "was evicted",
    "WouldEvict": "would be evicted (dry run)",
    "WouldSuppress": "would be suppressed (observe mode)",
    "Allocatable": "offers these co-location resources",
    "Reset": "offers no co-location resources",
    "Classified": "was classified",
    "Skipped": "was left out",
    "Relieved": "was hot",
    "Measured": "was looked at after pods had left",
    "Preempted": "was preempted",
    "Released": "came about",
    "Written": "was written",
    "WouldWrite": "would be written (observe mode)",
    "Answered": "was given values by a hook",
    "WouldAnswer": "would be given values by a hook (observe mode)",
}
_ON_THE_WAY = frozenset({"Answered", "WouldAnswer", "Mutated"})
_BEFORE_THE_END = _ON_THE_WAY | {"Scheduled", "Unschedulable", "Error"}
_ENDED = ("Succeeded", "Failed")
#: Numbers of cgroup files, in the kernel's own units.
_FILES = frozenset({"cpu_shares", "cpu_quota", "cpu_period"})


def section_of(record: Record, now: float, repeated: int = 1, *, former: bool = False) -> Section:
    """The section of one record; `repeated` says how many equal ones there were, `former` whether it is of an object that is gone."""
    body = _BY_VERDICT.get(record.verdict, _formula)(record)
    by = f" by {record.rule}" if record.rule and record.verdict not in ("Scheduled", "Unschedulable") else ""
    times = f", {repeated} times" if repeated > 1 else ""
    who = f" {record.subject.name}" if record.subject.kind == "CgroupFile" else ""
    who += f" a former {record.subject.kind} of this name:" if former else ""
    return Section(f"{record.role}:{who} {record.verdict}{by} ({ago(now - record.time)}{times})", body.lines, body.tables)


def _latest(records: Iterable[Record]) -> list[tuple[Record, int]]:
    """The newest record of each role, rule, verdict and subject, with the number of such records; newest first.

    Of one role's Scheduled and Unschedulable only the newest counts: an earlier failure explains nothing once the pod is placed.
    """
    newest: dict[tuple[str, ...], tuple[Record, int]] = {}
    for record in records:
        topic = "placement" if record.verdict in ("Scheduled", "Unschedulable", "Error") else f"{record.rule}/{record.verdict}"
        key = (record.role, topic, record.subject.kind, record.subject.name, record.subject.uid)
        before = newest.get(key)
        same = before is not None and before[0].verdict == record.verdict
        newest[key] = (record, before[1] + 1 if before is not None and same else 1)
    ordered = sorted(newest.values(), key=lambda item: -item[0].time)
    files = [item for item in ordered if item[0].subject.kind == "CgroupFile"]
    return [item for item in ordered if item[0].subject.kind != "CgroupFile"] + files[:MAX_FILES]


# -- live objects --------------------------------------------------------------------------------------------------


_HEALTHY = frozenset({("MemoryPressure", "False"), ("DiskPressure", "False"), ("PIDPressure", "False"), ("NetworkUnavailable", "False")})


def _conditions(obj: dict[str, Any], now: float, usual: frozenset[tuple[str, str]] = frozenset()) -> tuple[Table, ...]:
    rows = []
    for condition in (obj.get("status") or {}).get("conditions") or ():
        if (condition.get("type"), condition.get("status")) in usual:
            continue
        kind, status, reason, message = (str(condition.get(key, "")) for key in ("type", "status", "reason", "message"))
        rows.append((kind, status, reason, _age(condition.get("lastTransitionTime"), now), message))
    return (Table(("Condition", "Status", "Reason", "Since", "Message"), tuple(rows)),) if rows else ()


def _events(events: list[dict[str, Any]], now: float, limit: int = 8) -> tuple[Table, ...]:
    rows = []
    for event in events[-limit:]:
        count = (event.get("series") or {}).get("count") or event.get("deprecatedCount") or 1
        who = event.get("reportingController") or (event.get("deprecatedSource") or {}).get("component") or ""
        note = event.get("note") or event.get("message") or ""
        rows.append(
            (
                _age(event_time(event), now),
                str(event.get("type", "")),
                str(event.get("reason", "")),
                str(who),
                f"{note} (×{count})" if count > 1 else str(note),
            )
        )
    return (Table(("Event", "Type", "Reason", "From", "Message"), tuple(rows)),) if rows else ()


def _age(text: Any, now: float) -> str:
    try:
        return ago(now - datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp())
    except ValueError:
        return ""


def _near(near: Nearest) -> tuple[str, ...]:
    if not near.shortages:
        return (f"By resources alone {near.node} has room: something else keeps the pod from it.",)
    lines = [f"No node offers {' or '.join(near.nowhere)}, which it requests."] if near.nowhere else []
    lines.append(f"Nearest by resources is {near.node}; it is short of:")
    for one in near.shortages:
        lacking = one.requested - one.free
        unit = (one.resource, lacking)
        lines.append(
            f"  {one.resource}: {_resource(*unit)} (the pod requests {_resource(one.resource, one.requested)}, "
            f"{_resource(one.resource, one.free)} of {_resource(one.resource, one.allocatable)} is free)"
        )
    return tuple(lines)


def _resource(name: str, value: int) -> str:
    if name == "cpu" or name.endswith(_MILLI):
        return cpus(value)
    return _bytes(value) if is_bytes(name) or name.endswith("-memory") else str(value)


def _pod_section(live: Live, obj: dict[str, Any], now: float) -> Section:
    meta, spec, status = obj.get("metadata") or {}, obj.get("spec") or {}, obj.get("status") or {}
    labels = meta.get("labels") or {}
    qos = labels.get("koordinator.sh/qosClass") or status.get("qosClass") or "unknown"
    node = spec.get("nodeName")
    where = f" on {node}" if node else ", not bound to a node"
    lines = [f"{status.get('phase') or 'Pending'}{where}; QoS {qos}, priority {spec.get('priority', 0)}."]
    if meta.get("deletionTimestamp"):
        lines.append(f"It is being deleted (asked {_age(meta['deletionTimestamp'], now)}).")
    if status.get("phase") in _ENDED:
        if why := _failure(status):
            lines.append(f"It failed: {why.rstrip('.')}.")
        return Section("API server", tuple(lines), _conditions(obj, now) + _events(live.events, now))
    if not node and (gang := gang_of(obj)):
        lines.append(f"It is scheduled with its gang: koord why podgroup {meta.get('namespace', '')}/{gang}")
    if not node:
        lines += _untouched(spec, status)
    if not node and live.nodes:
        try:
            near = nearest_node(obj, live.nodes, live.pods)
        except (ValueError, QuantityError) as error:  # an object that no role can read either
            lines.append(f"The nearest node cannot be told: {error}.")
        else:
            lines += _near(near) if near is not None else ("There is no node that takes pods.",)
    return Section("API server", tuple(lines), _conditions(obj, now) + _events(live.events, now))


def _failure(status: dict[str, Any]) -> str:
    """Why a pod failed, as far as its status tells: what ended it as a whole, or a container; "" where it did not, or nothing is told."""
    if status.get("phase") != "Failed":
        return ""
    told = ": ".join(str(status[key]) for key in ("reason", "message") if status.get(key))
    if told:
        return told
    for one in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        ended = (one.get("state") or {}).get("terminated") or {}
        if code := ended.get("exitCode"):
            return f"container {one.get('name', '')} ended with status {code}" + (f" ({ended['reason']})" if ended.get("reason") else "")
    return ""


def _untouched(spec: dict[str, Any], status: dict[str, Any]) -> list[str]:
    """Why no scheduler has said anything about a pod that is not bound."""
    if gates := [str(gate.get("name", "")) for gate in spec.get("schedulingGates") or ()]:
        return [f"Held back by its scheduling gates: {', '.join(gates)}."]
    if any(condition.get("type") == "PodScheduled" for condition in status.get("conditions") or ()):
        return []
    name = spec.get("schedulerName") or "default-scheduler"
    return [f"No scheduler has taken it up: spec.schedulerName is {name!r}; does a running scheduler have a profile of that name?"]


def _node_section(live: Live, obj: dict[str, Any], now: float) -> Section:
    status = obj.get("status") or {}
    rows = []
    for name, allocatable in sorted((status.get("allocatable") or {}).items()):
        rows.append((name, _quantity(name, allocatable), _quantity(name, (status.get("capacity") or {}).get(name, ""))))
    lines = [f"{_count(len(live.pods), 'pod')} on it" + ("; cordoned." if (obj.get("spec") or {}).get("unschedulable") else ".")]
    table = (Table(("Resource", "Allocatable", "Capacity"), tuple(rows)),) if rows else ()
    return Section("API server", tuple(lines), table + _conditions(obj, now, usual=_HEALTHY) + _events(live.events, now))


def _quantity(name: str, quantity: Any) -> str:
    """A quantity of a resource in the units of everything else here; as it stands where it cannot be read."""
    try:
        if name == "cpu":
            return cpus(parse_milli(quantity))
        value = parse_value(quantity)
    except QuantityError:
        return str(quantity)
    return _resource(name, value)


def _group_section(live: Live, obj: dict[str, Any], now: float) -> Section:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    placed = sum(1 for pod in live.pods if (pod.get("spec") or {}).get("nodeName"))
    lines = [
        f"{status.get('phase') or 'No phase yet'}; {_count(len(live.pods), 'member')}, {placed} on nodes, "
        f"{spec.get('minMember', 0)} needed together."
    ]
    return Section("API server", tuple(lines), _events(live.events, now))


def _quota_section(live: Live, obj: dict[str, Any], now: float) -> Section:
    labels = (obj.get("metadata") or {}).get("labels") or {}
    parent = labels.get(LABEL_QUOTA_PARENT)
    pods = [pod for pod in live.pods if (pod.get("status") or {}).get("phase") not in _ENDED]
    waiting = [pod for pod in pods if not (pod.get("spec") or {}).get("nodeName")]
    lines = [f"{_count(len(pods), 'pod')} in it, {len(waiting)} without a node" + (f"; child of {parent}." if parent else ".")]
    for pod in waiting[:MOST_WAITING]:
        lines.append(f"koord why pod {pod['metadata'].get('namespace', '')}/{pod['metadata'].get('name', '')}")
    table = Table(quota.HEADINGS, tuple(quota.rows(obj, _resource)))
    return Section("API server", tuple(lines), (table, *_events(live.events, now)))


_LIVE = {"Pod": _pod_section, "PodGroup": _group_section, "Node": _node_section, "ElasticQuota": _quota_section}


# -- the explanation -----------------------------------------------------------------------------------------------


def explain(kind: str, found: Gathered, *, namespace: str, name: str, now: float) -> Explanation | None:
    """What is known about a pod, a PodGroup, a quota or a node; None if nothing is."""
    records = _latest(found.records)
    obj = found.obj
    if not records and not obj:
        return None
    subject = f"{kind} {namespace}/{name}" if kind != "Node" and namespace else f"{kind} {name}"
    former = _former(kind, obj)
    own = _hot_first(_decided([record for record, _ in records if record.subject.kind == kind and not former(record)]))
    failure = _failure(obj.get("status") or {}) if kind == "Pod" else ""
    if failure and own and own[0].verdict in _BEFORE_THE_END:
        own = []  # what became of the pod since is not koord's doing
    brief = _brief(kind, name) if len(subject) > SUBJECT else subject
    if kind == "ElasticQuota" and obj:  # the scheduler keeps the state in the object
        summary = f"{brief} {quota.sentence(obj, _resource)}"
    elif own:
        summary = _summary(brief, own[0])
    elif failure:
        summary = f"{brief} failed: {failure}"
    elif not found.answered:
        summary = f"{brief}: no role of koord answered; this is what the API server says"
    else:
        said = _undecided(kind, found)
        summary = f"{brief} is pending: {said}" if said else f"{brief}: no role has decided on it lately"
    summary = short(summary, LENGTH - 1)
    result = Explanation(subject, summary if summary.endswith("…") else summary.rstrip(".") + ".", own[0].verdict if own else "")
    result.sections = [section_of(record, now, repeated, former=former(record)) for record, repeated in records]
    if found.live is not None and obj:
        result.sections.append(_LIVE[kind](found.live, obj, now))
    result.sections = _once(result.sections, result.summary)
    return result


def _former(kind: str, obj: dict[str, Any]) -> Callable[[Record], bool]:
    """Whether a record is about an object that had the name before the one that is there."""
    uids = uids_of(obj)
    if kind not in ("Pod", "PodGroup") or not (obj.get("metadata") or {}).get("uid"):
        return lambda record: False
    return lambda record: record.subject.kind == kind and record.subject.uid not in ("", *uids)


def _brief(kind: str, name: str) -> str:
    """A subject that leaves room for the cause: without its namespace, and the end of a name that is long all the same."""
    room = SUBJECT - len(kind) - 1
    return f"{kind} {name}" if len(name) <= room else f"{kind} …{name[1 - room :]}"


def _undecided(kind: str, found: Gathered) -> str:
    """What keeps a pod or a gang from being decided on at all, as far as the objects tell; "" when nothing does."""
    live = found.live
    if live is None or live.obj is None:
        return ""
    if kind == "PodGroup":
        needed = (live.obj.get("spec") or {}).get("minMember", 0)
        return f"it has {len(live.pods)} of the {needed} pods that it needs together" if len(live.pods) < needed else ""
    spec, status = live.obj.get("spec") or {}, live.obj.get("status") or {}
    if kind != "Pod" or spec.get("nodeName") or status.get("phase") in _ENDED:
        return ""
    gates = [str(gate.get("name", "")) for gate in spec.get("schedulingGates") or ()]
    if gates:
        return f"its scheduling gates hold it back ({', '.join(gates)})"
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or "")
    return ""


def _decided(own: list[Record]) -> list[Record]:
    """Decisions before what hooks and webhooks gave a pod on its way: every pod has these."""
    return sorted(own, key=lambda record: record.verdict in _ON_THE_WAY)


def _hot_first(own: list[Record]) -> list[Record]:
    """Of a node that is hot, and that no later round has found to be cool, that is what matters most."""
    hot = next((record for record in own if record.verdict == "Relieved"), None)
    judged = next((record for record in own if record.verdict == "Classified"), None)
    if hot is None or hot.numbers.get("hot") != "true" or (judged is not None and judged.time > hot.time):
        return own
    return [hot, *(record for record in own if record is not hot)]


def _summary(subject: str, record: Record) -> str:
    """The decision in a sentence, cause first."""
    said = headline(record)
    if said.startswith("offers"):
        return f"{subject} {said}"
    if said and record.verdict == "Unschedulable":
        return f"{subject} is pending: {said}"
    if record.verdict == "Scheduled" and record.message.startswith("placed on "):
        return f"{subject} was {record.message} by the {record.role}"
    plain = _PLAIN.get(record.verdict, f"got the verdict {record.verdict}")
    if record.verdict == "Relieved" and record.numbers.get("hot") == "true":
        plain = "is hot"
    who = f" ({record.role})" if record.role else ""
    whole = f"{subject} {plain}{who}: {said or record.message}".rstrip(": ")
    if not said or len(whole) < LENGTH:
        return whole
    # A formula is told as a whole or not at all: cut off in the middle it says something else.
    result = said.partition(":")[0]
    brief = f"{subject} {plain}{who}: {result}"
    return brief if len(brief) < LENGTH else f"{subject} {plain}: {result}"


def _once(sections: list[Section], summary: str) -> list[Section]:
    """The same with each long sentence told once: conditions and events repeat what the records and the summary say."""
    told: set[str] = set()

    def cell(text: str) -> str:
        key = text.partition(" (×")[0].rstrip(".")
        if len(key) < LONG:
            return text
        if key in told:
            return "as above"
        told.add(key)
        return text

    out = []
    for section in sections:
        lines = tuple(line for line in section.lines if line.rstrip(".") not in summary)
        told.update(line.rstrip(".") for line in section.lines if len(line) >= LONG)
        tables = tuple(Table(table.headings, tuple(tuple(cell(text) for text in row) for row in table.rows)) for table in section.tables)
        out.append(Section(section.title, lines, tables))
    return out
