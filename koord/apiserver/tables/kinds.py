"""Columns and rows of built-in kinds, as kubectl users know them. A column's last element is its priority: 1 shows only with -o wide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from koord.api.selectors import from_label_selector
from koord.apiserver.tables.pods import pod
from koord.apiserver.tables.text import NONE, UNKNOWN, UNSET, age, ago, containers, human, pairs, seconds_since

Obj = dict[str, Any]
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
