"""The row of a pod: the one word that says how it is."""

from __future__ import annotations

from typing import Any

from koord.apiserver.tables.text import NONE, age, ago

Obj = dict[str, Any]


def pod(obj: Obj) -> list[Any]:
    """Name, Ready, Status, Restarts, Age, IP, Node, Nominated Node, Readiness Gates."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    ready, reason, restarts, last = _containers(spec, status, obj)
    shown: Any = str(restarts) if not restarts or not last else f"{restarts} ({ago(last)} ago)"
    gates = spec.get("readinessGates") or []
    conditions = {c.get("type"): c.get("status") for c in status.get("conditions") or ()}
    passed = sum(conditions.get(g.get("conditionType")) == "True" for g in gates)
    return [
        obj["metadata"]["name"],
        f"{ready}/{len(spec.get('containers') or ()) + _sidecars(spec)}",
        reason,
        shown,
        age(obj),
        status.get("podIP") or NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        f"{passed}/{len(gates)}" if gates else NONE,
    ]


def _sidecars(spec: Obj) -> int:
    return sum(c.get("restartPolicy") == "Always" for c in spec.get("initContainers") or ())


def _initialising(spec: Obj, status: Obj) -> tuple[str, int] | None:
    """(reason, restarts) while init containers run."""
    wanted = spec.get("initContainers") or []
    sidecars = {c.get("name") for c in wanted if c.get("restartPolicy") == "Always"}
    restarts = 0
    for i, state in enumerate(status.get("initContainerStatuses") or ()):
        restarts += state.get("restartCount", 0)
        current = state.get("state") or {}
        terminated, waiting = current.get("terminated"), current.get("waiting")
        if (terminated is not None and terminated.get("exitCode", 0) == 0) or (state.get("name") in sidecars and state.get("started")):
            continue
        if terminated is not None:
            reason = terminated.get("reason") or (
                f"Signal:{terminated['signal']}" if terminated.get("signal") else f"ExitCode:{terminated.get('exitCode', 0)}"
            )
            return f"Init:{reason}", restarts
        if waiting is not None and waiting.get("reason") not in (None, "", "PodInitializing"):
            return f"Init:{waiting['reason']}", restarts
        return f"Init:{i}/{len(wanted)}", restarts
    return None


def _containers(spec: Obj, status: Obj, obj: Obj) -> tuple[int, str, int, str]:
    """(ready containers, reason, restarts, time of the last restart)."""
    reason = status.get("reason") or status.get("phase") or "Unknown"
    if any(c.get("type") == "PodScheduled" and c.get("reason") == "SchedulingGated" for c in status.get("conditions") or ()):
        reason = "SchedulingGated"
    ready, restarts, last = 0, 0, ""
    initialising = _initialising(spec, status)
    if initialising is not None:
        reason, restarts = initialising
    else:
        running = False
        for state in reversed(status.get("containerStatuses") or []):
            restarts += state.get("restartCount", 0)
            finished = ((state.get("lastState") or {}).get("terminated") or {}).get("finishedAt") or ""
            last = max(last, finished)
            current = state.get("state") or {}
            waiting, terminated = current.get("waiting") or {}, current.get("terminated")
            if waiting.get("reason"):
                reason = waiting["reason"]
            elif terminated is not None:
                reason = terminated.get("reason") or (
                    f"Signal:{terminated['signal']}" if terminated.get("signal") else f"ExitCode:{terminated.get('exitCode', 0)}"
                )
            elif state.get("ready") and "running" in current:
                running = True
                ready += 1
        if reason == "Completed" and running:
            conditions = {c.get("type"): c.get("status") for c in status.get("conditions") or ()}
            reason = "Running" if conditions.get("Ready") == "True" else "NotReady"
        sidecars = {c.get("name") for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"}
        ready += sum(bool(s.get("ready")) for s in status.get("initContainerStatuses") or () if s.get("name") in sidecars)
    if obj["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            reason = "Unknown"
        elif status.get("phase") not in ("Succeeded", "Failed"):
            reason = "Terminating"
    return ready, reason, restarts, last
