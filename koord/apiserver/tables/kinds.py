"""Columns and rows of built-in kinds, as kubectl users know them. A column's last element is its priority: 1 shows only with -o wide."""

from __future__ import annotations

import calendar
import time
from collections.abc import Callable
from typing import Any

from koord import seams
from koord.api.selectors import from_label_selector

Obj = dict[str, Any]

UNKNOWN, NONE, UNSET = "<unknown>", "<none>", "<unset>"


def seconds_since(stamp: str | None, at: float | None = None) -> float | None:
    """Seconds from an RFC 3339 time until now; None when there is no time."""
    if not stamp:
        return None
    try:
        moment = calendar.timegm(time.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None
    return (seams.now() if at is None else at) - moment


def human(seconds: float | None) -> str:
    """A duration as kubectl shows ages: two units at most, coarser the longer it is."""
    if seconds is None:
        return UNKNOWN
    total = int(seconds)
    if total < -1:
        return "<invalid>"
    if total <= 0:
        return "0s"
    if total < 120:
        return f"{total}s"
    minutes, rest = divmod(total, 60)
    if minutes < 10:
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    if hours < 8:
        return f"{hours}h{minutes}m" if minutes else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    days, hours = divmod(hours, 24)
    if days < 8:
        return f"{days}d{hours}h" if hours else f"{days}d"
    if days < 365 * 2:
        return f"{days}d"
    years, days = divmod(days, 365)
    if years < 8:
        return f"{years}y{days}d" if days else f"{years}y"
    return f"{years}y"


def ago(stamp: str | None) -> str:
    """Age of a time."""
    return human(seconds_since(stamp))


def age(obj: Obj) -> str:
    """Age of an object."""
    return ago(obj["metadata"].get("creationTimestamp"))


def pairs(labels: Obj | None) -> str:
    """`a=b,c=d`, or <none>."""
    return ",".join(f"{k}={v}" for k, v in sorted((labels or {}).items())) or NONE


def containers(spec: Obj, what: str) -> str:
    """Names or images of the containers of a pod specification."""
    return ",".join(str(c.get(what, "")) for c in spec.get("containers") or ())


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


Row = Callable[[Obj], list[Any]]
# (name, type, priority)
Column = tuple[str, str, int]

NAME: Column = ("Name", "string", 0)
AGE: Column = ("Age", "string", 0)


def _s(*names: str, wide: tuple[str, ...] = ()) -> tuple[Column, ...]:
    return (*((n, "string", 0) for n in names), *((n, "string", 1) for n in wide))


def _name(obj: Obj) -> str:
    return str(obj["metadata"]["name"])


def _spec(obj: Obj) -> Obj:
    return obj.get("spec") or {}


def _status(obj: Obj) -> Obj:
    return obj.get("status") or {}


def _selector(obj: Obj) -> str:
    return str(from_label_selector(_spec(obj).get("selector"))) or NONE


def _template(obj: Obj) -> Obj:
    return (_spec(obj).get("template") or {}).get("spec") or {}


def node(obj: Obj) -> list[Any]:
    spec, status, labels = _spec(obj), _status(obj), obj["metadata"].get("labels") or {}
    conditions = {c.get("type"): c.get("status") for c in status.get("conditions") or ()}
    ready = conditions.get("Ready")
    words = ["Ready" if ready == "True" else "NotReady" if ready else "Unknown"]
    if spec.get("unschedulable"):
        words.append("SchedulingDisabled")
    prefix = "node-role.kubernetes.io/"
    roles = {k[len(prefix) :] for k in labels if k.startswith(prefix) and k != prefix}
    roles |= {v for k, v in labels.items() if k == "kubernetes.io/role" and v}
    addresses = {a.get("type"): a.get("address") for a in status.get("addresses") or ()}
    info = status.get("nodeInfo") or {}
    return [
        _name(obj), ",".join(words), ",".join(sorted(roles)) or NONE, age(obj), info.get("kubeletVersion") or "",
        addresses.get("InternalIP") or NONE, addresses.get("ExternalIP") or NONE, info.get("osImage") or UNKNOWN,
        info.get("kernelVersion") or UNKNOWN, info.get("containerRuntimeVersion") or UNKNOWN,
    ]  # fmt: skip


def event(obj: Obj) -> list[Any]:
    involved = obj.get("involvedObject") or {}
    series = obj.get("series") or {}
    first = obj.get("firstTimestamp") or obj.get("eventTime")
    last = series.get("lastObservedTime") or obj.get("lastTimestamp") or first
    source = obj.get("source") or {}
    where = ", ".join(
        s for s in (source.get("component") or obj.get("reportingComponent"), source.get("host") or obj.get("reportingInstance")) if s
    )
    return [
        ago(last), obj.get("type") or "", obj.get("reason") or "",
        f"{(involved.get('kind') or '').lower()}/{involved.get('name') or ''}", involved.get("fieldPath") or "", where,
        (obj.get("message") or "").strip(), ago(first), series.get("count") or obj.get("count") or 1, _name(obj),
    ]  # fmt: skip


def deployment(obj: Obj) -> list[Any]:
    status = _status(obj)
    return [
        _name(obj), f"{status.get('readyReplicas', 0)}/{_spec(obj).get('replicas', 0)}", status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0), age(obj), containers(_template(obj), "name"), containers(_template(obj), "image"), _selector(obj),  # noqa: E501
    ]  # fmt: skip


def replica_set(obj: Obj) -> list[Any]:
    status = _status(obj)
    selector = pairs(_spec(obj).get("selector")) if obj.get("kind") == "ReplicationController" else _selector(obj)
    return [
        _name(obj), _spec(obj).get("replicas", 0), status.get("replicas", 0), status.get("readyReplicas", 0), age(obj),
        containers(_template(obj), "name"), containers(_template(obj), "image"), selector,
    ]  # fmt: skip


def stateful_set(obj: Obj) -> list[Any]:
    ready = f"{_status(obj).get('readyReplicas', 0)}/{_spec(obj).get('replicas', 0)}"
    return [_name(obj), ready, age(obj), containers(_template(obj), "name"), containers(_template(obj), "image")]


def daemon_set(obj: Obj) -> list[Any]:
    status = _status(obj)
    return [
        _name(obj), status.get("desiredNumberScheduled", 0), status.get("currentNumberScheduled", 0), status.get("numberReady", 0),
        status.get("updatedNumberScheduled", 0), status.get("numberAvailable", 0), pairs(_template(obj).get("nodeSelector")), age(obj),
        containers(_template(obj), "name"), containers(_template(obj), "image"), _selector(obj),
    ]  # fmt: skip


def job(obj: Obj) -> list[Any]:
    spec, status = _spec(obj), _status(obj)
    conditions = {c.get("type") for c in status.get("conditions") or () if c.get("status") == "True"}
    state = next((s for s in ("Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet") if s in conditions), "Running")
    start, end = seconds_since(status.get("startTime")), seconds_since(status.get("completionTime"))
    duration = "" if start is None else human(start - (end or 0))
    return [
        _name(obj), state, f"{status.get('succeeded', 0)}/{spec.get('completions', 1)}", duration, age(obj),
        containers(_template(obj), "name"), containers(_template(obj), "image"), _selector(obj),
    ]  # fmt: skip


def cron_job(obj: Obj) -> list[Any]:
    spec, status = _spec(obj), _status(obj)
    last = status.get("lastScheduleTime")
    return [
        _name(obj), spec.get("schedule"), spec.get("timeZone") or NONE, "True" if spec.get("suspend") else "False",
        len(status.get("active") or ()), ago(last) if last else NONE, age(obj),
    ]  # fmt: skip


def service(obj: Obj) -> list[Any]:
    spec = _spec(obj)
    ports = ",".join(
        f"{p.get('port')}{':' + str(p['nodePort']) if p.get('nodePort') else ''}/{p.get('protocol', 'TCP')}"
        for p in spec.get("ports") or ()
    )
    ingress = ((_status(obj).get("loadBalancer")) or {}).get("ingress") or ()
    external = ",".join([*(spec.get("externalIPs") or ()), *(i.get("ip") or i.get("hostname") or "" for i in ingress)])
    if spec.get("type") == "LoadBalancer" and not external:
        external = "<pending>"
    if spec.get("type") == "ExternalName":
        external = spec.get("externalName") or ""
    return [
        _name(obj),
        spec.get("type"),
        spec.get("clusterIP") or NONE,
        external or NONE,
        ports or NONE,
        age(obj),
        pairs(spec.get("selector")),
    ]


def endpoints(obj: Obj) -> list[Any]:
    found: list[str] = []
    for subset in obj.get("subsets") or ():
        for address in subset.get("addresses") or ():
            found += [f"{address.get('ip')}:{port.get('port')}" for port in subset.get("ports") or ()] or [str(address.get("ip"))]
    return [_name(obj), ",".join(found[:3]) + (f" + {len(found) - 3} more..." if len(found) > 3 else "") or NONE, age(obj)]


def endpoint_slice(obj: Obj) -> list[Any]:
    ports = ",".join(str(p.get("port", "*")) for p in obj.get("ports") or ()) or UNSET
    found = [a for e in obj.get("endpoints") or () for a in e.get("addresses") or ()]
    return [_name(obj), obj.get("addressType"), ports, ",".join(found[:3]) or UNSET, age(obj)]


def pdb(obj: Obj) -> list[Any]:
    spec = _spec(obj)
    return [
        _name(obj), str(spec.get("minAvailable", "N/A")), str(spec.get("maxUnavailable", "N/A")), _status(obj).get("disruptionsAllowed", 0), age(obj)  # noqa: E501
    ]  # fmt: skip


def hpa(obj: Obj) -> list[Any]:
    spec, status = _spec(obj), _status(obj)
    target = spec.get("scaleTargetRef") or {}
    return [
        _name(obj), f"{target.get('kind')}/{target.get('name')}", _targets(spec, status), str(spec.get("minReplicas", UNSET)),
        spec.get("maxReplicas", 0), status.get("currentReplicas", 0), age(obj),
    ]  # fmt: skip


def _targets(spec: Obj, status: Obj) -> str:
    current = {
        ((m.get("resource") or {}).get("name")): (m.get("resource") or {}).get("current") or {} for m in status.get("currentMetrics") or ()
    }
    out = []
    for metric in spec.get("metrics") or ():
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


_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _modes(spec: Obj) -> str:
    return ",".join(_MODES.get(m, m) for m in spec.get("accessModes") or ())


def claim(obj: Obj) -> list[Any]:
    spec, status = _spec(obj), _status(obj)
    return [
        _name(obj), status.get("phase"), spec.get("volumeName") or "", (status.get("capacity") or {}).get("storage", ""),
        _modes(status), spec.get("storageClassName") or "", spec.get("volumeAttributesClassName") or UNSET, age(obj), spec.get("volumeMode") or "",  # noqa: E501
    ]  # fmt: skip


def volume(obj: Obj) -> list[Any]:
    spec, status = _spec(obj), _status(obj)
    claimed = spec.get("claimRef") or {}
    return [
        _name(obj), (spec.get("capacity") or {}).get("storage", ""), _modes(spec), spec.get("persistentVolumeReclaimPolicy"),
        status.get("phase"), f"{claimed.get('namespace')}/{claimed.get('name')}" if claimed else "", spec.get("storageClassName") or "",
        spec.get("volumeAttributesClassName") or UNSET, status.get("reason") or "", age(obj), spec.get("volumeMode") or "",
    ]  # fmt: skip


def storage_class(obj: Obj) -> list[Any]:
    name = _name(obj)
    if (obj["metadata"].get("annotations") or {}).get("storageclass.kubernetes.io/is-default-class") == "true":
        name += " (default)"
    return [
        name, obj.get("provisioner"), obj.get("reclaimPolicy"), obj.get("volumeBindingMode"),
        "true" if obj.get("allowVolumeExpansion") else "false", age(obj),
    ]  # fmt: skip


def quota(obj: Obj) -> list[Any]:
    hard, used = _status(obj).get("hard") or _spec(obj).get("hard") or {}, _status(obj).get("used") or {}
    shown = {k: f"{k}: {used.get(k, 0)}/{v}" for k, v in sorted(hard.items())}
    limits = ", ".join(v for k, v in shown.items() if k.startswith("limits."))
    return [_name(obj), age(obj), ", ".join(v for k, v in shown.items() if not k.startswith("limits.")), limits]


def _created(obj: Obj) -> list[Any]:
    return [_name(obj), obj["metadata"].get("creationTimestamp")]


def _webhooks(obj: Obj) -> list[Any]:
    return [_name(obj), len(obj.get("webhooks") or ()), age(obj)]


def _binding(obj: Obj) -> list[Any]:
    role = obj.get("roleRef") or {}
    return [_name(obj), f"{role.get('kind')}/{role.get('name')}", age(obj)]


_IMAGES = ("Containers", "Images", "Selector")
_SCALED = _s("Name", "Desired", "Current", "Ready", "Age", wide=_IMAGES)
_CREATED = (NAME, ("Created At", "date", 0))

# (group, plural) -> columns, row
KINDS: dict[tuple[str, str], tuple[tuple[Column, ...], Row]] = {
    ("", "pods"): (_s("Name", "Ready", "Status", "Restarts", "Age", wide=("IP", "Node", "Nominated Node", "Readiness Gates")), pod),
    ("", "nodes"): (
        _s("Name", "Status", "Roles", "Age", "Version", wide=("Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime")),  # noqa: E501
        node,
    ),
    ("", "namespaces"): (_s("Name", "Status", "Age"), lambda o: [_name(o), _status(o).get("phase"), age(o)]),
    ("", "events"): (
        _s("Last Seen", "Type", "Reason", "Object") + _s(wide=("Subobject", "Source")) + _s("Message") + _s(wide=("First Seen", "Count", "Name")),  # noqa: E501
        event,
    ),
    ("", "configmaps"): (_s("Name", "Data", "Age"), lambda o: [_name(o), len(o.get("data") or ()) + len(o.get("binaryData") or ()), age(o)]),  # noqa: E501
    ("", "secrets"): (_s("Name", "Type", "Data", "Age"), lambda o: [_name(o), o.get("type"), len(o.get("data") or ()), age(o)]),
    ("", "serviceaccounts"): (_s("Name", "Age"), lambda o: [_name(o), age(o)]),
    ("", "services"): (_s("Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", wide=("Selector",)), service),
    ("", "endpoints"): (_s("Name", "Endpoints", "Age"), endpoints),
    ("", "limitranges"): (_CREATED, _created),
    ("", "resourcequotas"): (_s("Name", "Age", "Request", "Limit"), quota),
    ("", "replicationcontrollers"): (_SCALED, replica_set),
    ("", "persistentvolumeclaims"): (
        _s("Name", "Status", "Volume", "Capacity", "Access Modes", "StorageClass", "VolumeAttributesClass", "Age", wide=("VolumeMode",)),
        claim,
    ),
    ("", "persistentvolumes"): (
        _s("Name", "Capacity", "Access Modes", "Reclaim Policy", "Status", "Claim", "StorageClass", "VolumeAttributesClass", "Reason", "Age",  # noqa: E501
           wide=("VolumeMode",)),
        volume,
    ),
    ("apps", "deployments"): (_s("Name", "Ready", "Up-to-date", "Available", "Age", wide=_IMAGES), deployment),
    ("apps", "replicasets"): (_SCALED, replica_set),
    ("apps", "statefulsets"): (_s("Name", "Ready", "Age", wide=("Containers", "Images")), stateful_set),
    ("apps", "daemonsets"): (
        _s("Name", "Desired", "Current", "Ready", "Up-to-date", "Available", "Node Selector", "Age", wide=_IMAGES),
        daemon_set,
    ),
    ("batch", "jobs"): (_s("Name", "Status", "Completions", "Duration", "Age", wide=_IMAGES), job),
    ("batch", "cronjobs"): (_s("Name", "Schedule", "Timezone", "Suspend", "Active", "Last Schedule", "Age"), cron_job),
    ("autoscaling", "horizontalpodautoscalers"): (_s("Name", "Reference", "Targets", "MinPods", "MaxPods", "Replicas", "Age"), hpa),
    ("policy", "poddisruptionbudgets"): (_s("Name", "Min Available", "Max Unavailable", "Allowed Disruptions", "Age"), pdb),
    ("scheduling.k8s.io", "priorityclasses"): (
        (("Name", "string", 0), ("Value", "integer", 0), ("Global-Default", "boolean", 0), *_s("Age", "PreemptionPolicy")),
        lambda o: [_name(o), o.get("value", 0), bool(o.get("globalDefault")), age(o), o.get("preemptionPolicy")],
    ),
    ("coordination.k8s.io", "leases"): (_s("Name", "Holder", "Age"), lambda o: [_name(o), _spec(o).get("holderIdentity") or "", age(o)]),
    ("storage.k8s.io", "storageclasses"): (
        _s("Name", "Provisioner", "ReclaimPolicy", "VolumeBindingMode", "AllowVolumeExpansion", "Age"),
        storage_class,
    ),
    ("storage.k8s.io", "csinodes"): (_s("Name", "Drivers", "Age"), lambda o: [_name(o), len(_spec(o).get("drivers") or ()), age(o)]),
    ("discovery.k8s.io", "endpointslices"): (_s("Name", "AddressType", "Ports", "Endpoints", "Age"), endpoint_slice),
    ("apiextensions.k8s.io", "customresourcedefinitions"): (_CREATED, _created),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"): (_s("Name", "Webhooks", "Age"), _webhooks),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"): (_s("Name", "Webhooks", "Age"), _webhooks),
    ("rbac.authorization.k8s.io", "roles"): (_CREATED, _created),
    ("rbac.authorization.k8s.io", "clusterroles"): (_CREATED, _created),
    ("rbac.authorization.k8s.io", "rolebindings"): (_s("Name", "Role", "Age"), _binding),
    ("rbac.authorization.k8s.io", "clusterrolebindings"): (_s("Name", "Role", "Age"), _binding),
    ("node.k8s.io", "runtimeclasses"): (_s("Name", "Handler", "Age"), lambda o: [_name(o), o.get("handler"), age(o)]),
}  # fmt: skip
