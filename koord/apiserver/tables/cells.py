"""The cells of built-in kinds that say more than one field does; which columns a kind has is in `columns.json`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from koord import seams
from koord.api.selectors import from_label_selector
from koord.api.times import TimeError, parse_time
from koord.apiserver.facts import conditions, ended
from koord.apiserver.store import Obj

UNKNOWN, NONE, UNSET = "<unknown>", "<none>", "<unset>"
# (seconds below which it holds, size of the unit, its letter, size of the smaller unit, its letter), coarser the longer it is
_STEPS = (
    (120, 1, "s", 0, ""), (600, 60, "m", 1, "s"), (10_800, 60, "m", 0, ""), (28_800, 3600, "h", 60, "m"), (172_800, 3600, "h", 0, ""),
    (691_200, 86_400, "d", 3600, "h"), (63_072_000, 86_400, "d", 0, ""), (252_288_000, 31_536_000, "y", 86_400, "d"),
)  # fmt: skip
_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}
_JOB_STATES = ("Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet")


def seconds_since(stamp: str | None) -> float | None:
    """Seconds from an RFC 3339 time until now; None when there is no time."""
    try:
        return seams.now() - parse_time(stamp) if stamp else None
    except TimeError:
        return None


def human(seconds: float | None) -> str:
    """A duration as kubectl shows ages: two units at most, coarser the longer it is."""
    if seconds is None:
        return UNKNOWN
    total = int(seconds)
    if total <= 0:
        return "0s" if total >= -1 else "<invalid>"
    for below, unit, letter, smaller, small_letter in _STEPS:
        if total < below:
            first, rest = divmod(total, unit)
            rest = rest // smaller if smaller else 0
            return f"{first}{letter}" + (f"{rest}{small_letter}" if rest else "")
    return f"{total // 31_536_000}y"


def ago(stamp: str | None) -> str:
    """Age of a time."""
    return human(seconds_since(stamp))


def _pairs(labels: Obj | None) -> str:
    return ",".join(f"{k}={v}" for k, v in sorted((labels or {}).items())) or NONE


def _spec(obj: Obj) -> Obj:
    return obj.get("spec") or {}


def _status(obj: Obj) -> Obj:
    return obj.get("status") or {}


def _node_status(obj: Obj) -> str:
    ready = conditions(obj).get("Ready")
    word = "Ready" if ready == "True" else "NotReady" if ready else "Unknown"
    return word + ",SchedulingDisabled" * bool(_spec(obj).get("unschedulable"))


def _roles(obj: Obj) -> str:
    prefix, labels = "node-role.kubernetes.io/", obj["metadata"].get("labels") or {}
    found = {k[len(prefix) :] for k in labels if k.startswith(prefix) and k != prefix}
    return ",".join(sorted(found | {v for k, v in labels.items() if k == "kubernetes.io/role" and v})) or NONE


def _involved(obj: Obj) -> str:
    involved = obj.get("involvedObject") or {}
    return f"{(involved.get('kind') or '').lower()}/{involved.get('name') or ''}"


def _source(obj: Obj) -> str:
    source = obj.get("source") or {}
    parts = (source.get("component") or obj.get("reportingComponent"), source.get("host") or obj.get("reportingInstance"))
    return ", ".join(part for part in parts if part)


def _job_status(obj: Obj) -> str:
    held = conditions(obj)
    return next((state for state in _JOB_STATES if held.get(state) == "True"), "Running")


def _duration(obj: Obj) -> str:
    start, end = (seconds_since(_status(obj).get(key)) for key in ("startTime", "completionTime"))
    return "" if start is None else human(start - (end or 0))


def _ports(obj: Obj) -> str:
    ports = _spec(obj).get("ports") or ()
    shown = (f"{p.get('port')}{':' + str(p['nodePort']) if p.get('nodePort') else ''}/{p.get('protocol', 'TCP')}" for p in ports)
    return ",".join(shown) or NONE


def _external(obj: Obj) -> str:
    spec = _spec(obj)
    if spec.get("type") == "ExternalName":
        return spec.get("externalName") or NONE
    ingress = (_status(obj).get("loadBalancer") or {}).get("ingress") or ()
    shown = ",".join([*(spec.get("externalIPs") or ()), *(i.get("ip") or i.get("hostname") or "" for i in ingress)])
    return shown or ("<pending>" if spec.get("type") == "LoadBalancer" else NONE)


def _endpoints(obj: Obj) -> str:
    found: list[str] = []
    for subset in obj.get("subsets") or ():
        for address in subset.get("addresses") or ():
            found += [f"{address.get('ip')}:{port.get('port')}" for port in subset.get("ports") or ()] or [str(address.get("ip"))]
    return ",".join(found[:3]) + (f" + {len(found) - 3} more..." if len(found) > 3 else "") or NONE


def _slice_endpoints(obj: Obj) -> str:
    found = [a for e in obj.get("endpoints") or () for a in e.get("addresses") or ()]
    return ",".join(found[:3]) or UNSET


def _targets(obj: Obj) -> str:
    resources = [m.get("resource") or {} for m in _status(obj).get("currentMetrics") or ()]
    current = {resource.get("name"): resource.get("current") or {} for resource in resources}
    out = []
    for metric in _spec(obj).get("metrics") or ():
        resource = metric.get("resource")
        if resource is None:
            out.append(f"{UNKNOWN}/{metric.get('type')}")
            continue
        target, now = resource.get("target") or {}, current.get(resource.get("name")) or {}
        if "averageUtilization" in target:
            seen = f"{now['averageUtilization']}%" if "averageUtilization" in now else UNKNOWN
            out.append(f"{resource.get('name')}: {seen}/{target['averageUtilization']}%")
        else:
            out.append(f"{now.get('averageValue', UNKNOWN)}/{target.get('averageValue', UNKNOWN)}")
    return ", ".join(out) or NONE


def _modes(part: str) -> Callable[[Obj], str]:
    return lambda obj: ",".join(_MODES.get(m, m) for m in (obj.get(part) or {}).get("accessModes") or ())


def _class_name(obj: Obj) -> str:
    is_default = (obj["metadata"].get("annotations") or {}).get("storageclass.kubernetes.io/is-default-class") == "true"
    return str(obj["metadata"]["name"]) + " (default)" * is_default


def _quota(obj: Obj, *, limits: bool) -> str:
    hard, used = _status(obj).get("hard") or _spec(obj).get("hard") or {}, _status(obj).get("used") or {}
    return ", ".join(f"{k}: {used.get(k, 0)}/{v}" for k, v in sorted(hard.items()) if k.startswith("limits.") == limits)


# -- pods ----------------------------------------------------------------------------------------------------------------------------


def _sidecars(obj: Obj) -> list[Any]:
    return [c.get("name") for c in _spec(obj).get("initContainers") or () if c.get("restartPolicy") == "Always"]


def _end(terminated: Obj) -> str:
    """The word for a container that has ended."""
    signal = f"Signal:{terminated['signal']}" if terminated.get("signal") else ""
    return terminated.get("reason") or signal or f"ExitCode:{terminated.get('exitCode', 0)}"


def _initialising(obj: Obj) -> tuple[str, int] | None:
    """(reason, restarts) while init containers run."""
    sidecars, restarts = _sidecars(obj), 0
    for i, state in enumerate(_status(obj).get("initContainerStatuses") or ()):
        restarts += state.get("restartCount", 0)
        current = state.get("state") or {}
        terminated, waiting = current.get("terminated"), current.get("waiting") or {}
        if (terminated is not None and terminated.get("exitCode", 0) == 0) or (state.get("name") in sidecars and state.get("started")):
            continue
        if terminated is not None:
            return f"Init:{_end(terminated)}", restarts
        known = waiting.get("reason") not in (None, "", "PodInitializing")
        return f"Init:{waiting['reason']}" if known else f"Init:{i}/{len(_spec(obj).get('initContainers') or ())}", restarts
    return None


def _pod(obj: Obj) -> tuple[int, str, int, str]:
    """(ready containers, reason, restarts, time of the last restart)."""
    status = _status(obj)
    reason = status.get("reason") or status.get("phase") or "Unknown"
    if any(c.get("type") == "PodScheduled" and c.get("reason") == "SchedulingGated" for c in status.get("conditions") or ()):
        reason = "SchedulingGated"
    ready, restarts, last = 0, 0, ""
    initialising = _initialising(obj)
    if initialising is not None:
        reason, restarts = initialising
    else:
        for state in reversed(status.get("containerStatuses") or []):
            restarts += state.get("restartCount", 0)
            last = max(last, ((state.get("lastState") or {}).get("terminated") or {}).get("finishedAt") or "")
            current = state.get("state") or {}
            waiting, terminated = current.get("waiting") or {}, current.get("terminated")
            if waiting.get("reason"):
                reason = waiting["reason"]
            elif terminated is not None:
                reason = _end(terminated)
            elif state.get("ready") and "running" in current:
                ready += 1
        if reason == "Completed" and ready:
            reason = "Running" if conditions(obj).get("Ready") == "True" else "NotReady"
        sidecars = _sidecars(obj)
        ready += sum(bool(s.get("ready")) for s in status.get("initContainerStatuses") or () if s.get("name") in sidecars)
    if obj["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            reason = "Unknown"
        elif not ended(obj):
            reason = "Terminating"
    return ready, reason, restarts, last


def _restarts(obj: Obj) -> str:
    _, _, restarts, last = _pod(obj)
    return f"{restarts} ({ago(last)} ago)" if restarts and last else str(restarts)


def _readiness_gates(obj: Obj) -> str:
    gates, held = _spec(obj).get("readinessGates") or [], conditions(obj)
    return f"{sum(held.get(g.get('conditionType')) == 'True' for g in gates)}/{len(gates)}" if gates else NONE


CELLS: dict[str, Callable[[Obj], Any]] = {
    "name": lambda obj: obj["metadata"]["name"],
    "class_name": _class_name,
    "count": lambda obj: (obj.get("series") or {}).get("count") or obj.get("count") or 1,
    "duration": _duration,
    "endpoints": _endpoints,
    "entries": lambda obj: len(obj.get("data") or ()) + len(obj.get("binaryData") or ()),
    "expansion": lambda obj: "true" if obj.get("allowVolumeExpansion") else "false",
    "external": _external,
    "involved": _involved,
    "job_status": _job_status,
    "message": lambda obj: (obj.get("message") or "").strip(),
    "node_selector": lambda obj: _pairs(((_spec(obj).get("template") or {}).get("spec") or {}).get("nodeSelector")),
    "node_status": _node_status,
    "plain_selector": lambda obj: _pairs(_spec(obj).get("selector")),
    "pod_ready": lambda obj: f"{_pod(obj)[0]}/{len(_spec(obj).get('containers') or ()) + len(_sidecars(obj))}",
    "pod_restarts": _restarts,
    "pod_status": lambda obj: _pod(obj)[1],
    "ports": _ports,
    "quota_limits": partial(_quota, limits=True),
    "quota_requests": partial(_quota, limits=False),
    "readiness_gates": _readiness_gates,
    "roles": _roles,
    "selector": lambda obj: str(from_label_selector(_spec(obj).get("selector"))) or NONE,
    "slice_endpoints": _slice_endpoints,
    "slice_ports": lambda obj: ",".join(str(p.get("port", "*")) for p in obj.get("ports") or ()) or UNSET,
    "source": _source,
    "spec_modes": _modes("spec"),
    "status_modes": _modes("status"),
    "targets": _targets,
}
