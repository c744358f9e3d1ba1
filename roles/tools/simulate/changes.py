"""What is to be changed, and the cluster as it would be then, before anybody has decided anything. Pure (BEY-SIM-01)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from koord.accounting.resources import format_value, parse_quantity
from koord.api import kinds, names, trust
from koord.process.errors import ConfigurationError, UsageError
from roles.tools.simulate.cluster import Cluster, Obj, key_of

_WORKLOADS = frozenset({"Deployment", "ReplicaSet", "ReplicationController", "StatefulSet", "Job"})
_STATUS = frozenset({"capacity", "allocatable"})
_NEVER = "1970-01-01T00:00:00Z"
_READY = [{"type": "Ready", "status": "True"}]
_OF_NODES = (kinds.DEVICES, kinds.NODERESOURCETOPOLOGIES)
"""What describes a node under its name."""


@dataclass(frozen=True, slots=True)
class Changes:
    """`more` and `fewer` are (number, name of a node of that shape); `usage` multiplies every measured amount."""

    objects: tuple[Obj, ...] = ()
    drain: tuple[str, ...] = ()
    more: tuple[tuple[int, str], ...] = ()
    fewer: tuple[tuple[int, str], ...] = ()
    usage: float = 1.0
    down: tuple[str, ...] = ()
    """Nodes whose kubelet is not heard of any more."""
    silent: tuple[str, ...] = ()
    """Nodes whose koordlet does not report any more."""
    pressure: tuple[tuple[str, Mapping[str, str]], ...] = ()
    """Node, and what it uses by resource: an amount, or a share of what it has ("95%"). What pods do not use is the system's."""

    @property
    def any(self) -> bool:
        """Whether anything is to be changed."""
        return self != Changes()


@dataclass(slots=True)
class Changed:
    """The cluster with the changes, and the pods that need a node now: `new` pods and those that had to `leave`, by key with their node.

    `lost` are pods of nodes that go, which nobody makes again; `gone` are the names of the nodes. `not_simulated` are objects of which
    other controllers make pods.
    """

    cluster: Cluster
    new: list[Obj] = field(default_factory=list)
    leave: dict[str, str] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    not_simulated: list[str] = field(default_factory=list)


def apply(cluster: Cluster, changes: Changes, now: str) -> Changed:
    """Change a copy of the cluster. `now` (RFC 3339) is when new nodes report. Raises ConfigurationError for an unknown node."""
    result = Changed(cluster.copy())
    for obj in changes.objects:
        if obj["kind"] in _WORKLOADS:
            made = pods_of(obj)
            _replace(result.cluster, obj, made)
            result.new += made
        elif obj["kind"] == "Pod" and not (obj.get("spec") or {}).get("nodeName"):
            _replace(result.cluster, obj, (obj,))
            result.new.append(_alive(obj))
        else:
            result.cluster.put(obj)
            if _makes_pods(obj):
                result.not_simulated.append(f"{obj['kind']} {key_of(obj)}")
    for count, like in changes.fewer:
        for name in _emptiest(result.cluster, like, count):
            _empty(result, name, goes=True)
            result.gone.append(name)
            for kind in (kinds.NODES, kinds.NODEMETRICS, *_OF_NODES):
                result.cluster.all(kind).pop(name, None)
    for count, like in changes.more:
        for node in clones(result.cluster, like, count):
            result.cluster.put(node)
            result.cluster.put(_idle(node["metadata"]["name"], now))
            for _, described in described_as(result.cluster, like, node["metadata"]["name"]):
                result.cluster.put(described)
    for name in changes.drain:
        node = _node(result.cluster, name)
        _empty(result, name, goes=False)
        result.gone.append(name)
        result.cluster.put({**node, "spec": {**(node.get("spec") or {}), "unschedulable": True}})
    if changes.usage != 1.0:
        for metric in list(result.cluster.all(kinds.NODEMETRICS).values()):
            result.cluster.put({**metric, "status": _scaled(metric.get("status") or {}, changes.usage)})
    _fail(result.cluster, changes)
    for name, wanted in changes.pressure:
        _press(result.cluster, name, wanted, now)
    return result


def _fail(cluster: Cluster, changes: Changes) -> None:
    """Nodes that are not heard of, as the node controller marks them, and reports that are too old for everybody."""
    for name in changes.down:
        node = _node(cluster, name)
        spec, status = node.get("spec") or {}, node.get("status") or {}
        taints = [{"key": "node.kubernetes.io/unreachable", "effect": effect} for effect in ("NoSchedule", "NoExecute")]
        spec = {**spec, "taints": [*(spec.get("taints") or ()), *taints]}
        others = [each for each in status.get("conditions") or () if each.get("type") != "Ready"]
        status = {**status, "conditions": [*others, {"type": "Ready", "status": "Unknown"}]}
        cluster.put({**node, "spec": spec, "status": status})
    for name in (*changes.down, *changes.silent):
        _node(cluster, name)
        metric = cluster.all(kinds.NODEMETRICS).get(name)
        if metric is not None:
            cluster.put({**metric, "status": {**(metric.get("status") or {}), "updateTime": _NEVER}})


def _press(cluster: Cluster, name: str, wanted: Mapping[str, str], now: str) -> None:
    node = _node(cluster, name)
    there = (node.get("status") or {}).get("capacity") or {}
    known = cluster.all(kinds.NODEMETRICS).get(name) or _idle(name, now)
    status = known.get("status") or {}
    info = status.get("nodeMetric") or {}
    pods = [(each.get("podUsage") or {}).get("resources") or {} for each in status.get("podsMetric") or ()]
    use = {**((info.get("nodeUsage") or {}).get("resources") or {})}
    system = {**((info.get("systemUsage") or {}).get("resources") or {})}
    for resource, text in wanted.items():
        try:
            share = text.endswith("%")
            amount = parse_quantity(resource, there.get(resource, 0)) * float(text[:-1]) / 100 if share else parse_quantity(resource, text)
            rest = amount - sum(parse_quantity(resource, each.get(resource, 0)) for each in pods)
        except ValueError as error:
            raise ConfigurationError(f"pressure on {name}: {resource}: {text!r}: an amount, or a share of the node like 95%") from error
        use[resource], system[resource] = (format_value(resource, round(each)) for each in (amount, max(rest, 0)))
    info = {**info, "nodeUsage": {"resources": use}, "systemUsage": {"resources": system}}
    cluster.put({**known, "status": {**status, "nodeMetric": info}})


# ---------------------------------------------------------------- pods


def pods_of(workload: Obj) -> list[Obj]:
    """The pods that a workload's controller would make."""
    spec, meta = workload.get("spec") or {}, workload["metadata"]
    template = spec.get("template") or {}
    count = _of_job(workload) if workload["kind"] == "Job" else spec.get("replicas", 1)
    uid = meta.get("uid") or f"new-{workload['kind']}-{key_of(workload)}"
    owner = {"apiVersion": workload.get("apiVersion"), "kind": workload["kind"], "name": meta["name"], "uid": uid, "controller": True}
    found = []
    for number in range(count if isinstance(count, int) else 1):
        made = {**(template.get("metadata") or {}), "name": f"{meta['name']}-{number}", "ownerReferences": [owner]}
        made |= {"namespace": meta.get("namespace", "default"), "uid": f"{uid}-{number}"}
        found.append({"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": template.get("spec") or {}, "status": {}})
    return found


def _makes_pods(obj: Obj) -> bool:
    """Whether pods come of an object, by a template for them anywhere in it. Of koord's own only the scheduler reads the templates."""
    return "koordinator.sh/" not in str(obj.get("apiVersion")) and _has_template(obj.get("spec"))


def _has_template(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_template, value))
    if not isinstance(value, dict):
        return False
    template = value.get("template")
    spec = template.get("spec") if isinstance(template, dict) else None
    return (isinstance(spec, dict) and "containers" in spec) or any(map(_has_template, value.values()))


def _of_job(job: Obj) -> int:
    """How many pods run at once: none of a suspended Job, and no more than are left of its completions."""
    spec = job.get("spec") or {}
    if spec.get("suspend"):
        return 0
    most, wanted = spec.get("parallelism"), spec.get("completions")
    most = most if isinstance(most, int) else 1
    return min(most, max(0, wanted - int((job.get("status") or {}).get("succeeded") or 0))) if isinstance(wanted, int) else most


def _replace(cluster: Cluster, obj: Obj, made: Iterable[Obj]) -> None:
    """Pods that were there go: those of the names that are `made` now, and those that the workload's controller had made."""
    pods, name, namespace = cluster.all(kinds.PODS), obj["metadata"]["name"], obj["metadata"].get("namespace", "default")
    for each in made:
        pods.pop(key_of(each), None)
    if obj["kind"] == "Pod":
        return
    for key, pod in list(pods.items()):
        meta = pod["metadata"]
        if meta.get("namespace", "") != namespace:
            continue
        owner: Obj = next((each for each in meta.get("ownerReferences") or () if each.get("controller")), {})
        wanted = (obj["kind"], name)
        if obj["kind"] == "Deployment":
            wanted = ("ReplicaSet", f"{name}-{(meta.get('labels') or {}).get('pod-template-hash', '')}")
        if (owner.get("kind"), owner.get("name")) == wanted and not ended(pod):
            del pods[key]


def _alive(pod: Obj) -> Obj:
    meta = {**pod["metadata"]}
    meta.setdefault("uid", f"new-{key_of(pod)}")
    return {**pod, "metadata": meta}


def _empty(result: Changed, name: str, *, goes: bool) -> None:
    """The pods of a node leave: they are made again elsewhere, or are lost. What belongs to the node ends only if the node `goes`."""
    pods = result.cluster.all(kinds.PODS)
    for key, pod in list(pods.items()):
        if (pod.get("spec") or {}).get("nodeName") != name:
            continue
        meta, over, own = pod["metadata"], ended(pod), belongs_to_node(pod)
        if own and not over and not goes:
            continue
        del pods[key]
        if over or own:
            continue
        if not any(owner.get("controller") for owner in meta.get("ownerReferences") or ()):
            result.lost.append(key)
            continue
        spec = {field: value for field, value in pod["spec"].items() if field != "nodeName"}
        annotations = trust.unplaced(meta.get("annotations") or {})
        again = {**meta, "uid": f"{meta.get('uid', key)}-again", "annotations": annotations}
        result.new.append({**pod, "metadata": again, "spec": spec, "status": {}})
        result.leave[key] = name


def ended(pod: Obj) -> bool:
    """Whether the pod has run to its end."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def belongs_to_node(pod: Obj) -> bool:
    """Whether the pod ends with its node, and comes again nowhere else."""
    meta = pod["metadata"]
    owners = {owner.get("kind") for owner in meta.get("ownerReferences") or ()}
    return bool(owners & {"DaemonSet", "Node"}) or names.ANNOTATION_CONFIG_MIRROR in (meta.get("annotations") or {})


# ---------------------------------------------------------------- nodes


def _node(cluster: Cluster, name: str) -> Obj:
    found = cluster.all(kinds.NODES).get(name)
    if found is None:
        raise ConfigurationError(f"node {name!r} is not in the snapshot")
    return found


def _passing(taint: Obj) -> bool:
    """Whether a taint tells of a condition that a new node does not have."""
    return str(taint.get("key", "")).startswith(("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/"))


def shape_of(node: Obj) -> tuple[Any, ...]:
    """What nodes of one shape have in common: amounts, labels but the name, taints."""
    meta, spec = node["metadata"], node.get("spec") or {}
    amounts = (node.get("status") or {}).get("capacity") or (node.get("status") or {}).get("allocatable") or {}
    labels = {key: value for key, value in (meta.get("labels") or {}).items() if key != names.LABEL_HOSTNAME}
    lasting = (taint for taint in spec.get("taints") or () if not _passing(taint))
    taints = sorted((taint.get("key", ""), taint.get("value", ""), taint.get("effect", "")) for taint in lasting)
    return tuple(sorted(amounts.items())), tuple(sorted(labels.items())), tuple(taints)


def clones(cluster: Cluster, like: str, count: int) -> Iterator[Obj]:
    """New nodes of a node's shape, empty and schedulable. Raises ConfigurationError."""
    model = _node(cluster, like)
    number, there = 0, cluster.all(kinds.NODES)
    for _ in range(count):
        while (name := f"{like}-more-{(number := number + 1)}") in there:
            pass
        labels = {**(model["metadata"].get("labels") or {}), names.LABEL_HOSTNAME: name}
        own = (model["metadata"].get("annotations") or {}).items()
        annotations = {key: text for key, text in own if "allocat" not in key and "last-applied" not in key}
        spec = {"taints": [taint for taint in (model.get("spec") or {}).get("taints") or [] if not _passing(taint)]}
        status = {field: value for field, value in (model.get("status") or {}).items() if field in _STATUS} | {"conditions": _READY}
        meta = {"name": name, "uid": f"new-{name}", "labels": labels, "annotations": annotations}
        yield {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": spec, "status": status}


def described_as(cluster: Cluster, like: str, name: str) -> Iterator[tuple[kinds.Kind, Obj]]:
    """The devices and the CPU topology of a new node of a node's shape: without them it has none that could be allocated."""
    for kind in _OF_NODES:
        model = cluster.all(kind).get(like)
        if model is not None:
            meta = model["metadata"]
            own = (meta.get("annotations") or {}).items()
            annotations = {key: text for key, text in own if not any(each in key for each in ("alloc", "pools", "last-applied"))}
            made = {"name": name, "uid": f"new-{name}", "labels": meta.get("labels") or {}, "annotations": annotations}
            yield kind, {field: value for field, value in model.items() if field != "status"} | {"metadata": made}


def _idle(name: str, now: str) -> Obj:
    """The report of a node on which nothing runs yet: without one it would offer nothing to best-effort pods."""
    nothing = {"resources": {"cpu": "0", "memory": "0"}}
    status = {"updateTime": now, "nodeMetric": {"nodeUsage": nothing, "systemUsage": nothing}, "podsMetric": []}
    kind = kinds.NODEMETRICS
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "status": status}


def _emptiest(cluster: Cluster, like: str, count: int) -> list[str]:
    """So many nodes of a node's shape, those with the fewest pods first."""
    shape = shape_of(_node(cluster, like))
    pods = cluster.pods_by_node()
    found = sorted((len(pods[name]), name) for name, node in cluster.all(kinds.NODES).items() if shape_of(node) == shape)
    if count > len(found):
        raise ConfigurationError(f"there are {len(found)} nodes like {like!r}, {count} cannot go")
    return [name for _, name in found[:count]]


# ---------------------------------------------------------------- usage


def _scaled(value: Any, factor: float) -> Any:
    """A status with every measured amount (`resources: {cpu, memory, …}`) multiplied."""
    if isinstance(value, list):
        return [_scaled(item, factor) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _amounts(item, factor) if key == "resources" and isinstance(item, dict) else _scaled(item, factor)
        for key, item in value.items()
    }


def _amounts(amounts: Mapping[str, Any], factor: float) -> Obj:
    return {name: format_value(name, round(parse_quantity(name, amount) * factor)) for name, amount in amounts.items()}


def factors(text: str) -> tuple[float, ...]:
    """`0.5,1,1.4` as numbers. Raises UsageError."""
    try:
        found = tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        found = (-1.0,)
    if not all(0 <= factor <= 100 for factor in found):
        raise UsageError(f"--curve {text!r} must be factors from 0 to 100, such as 0.5,1,1.4")
    return found


def counts(texts: Iterable[str], flag: str) -> tuple[tuple[int, str], ...]:
    """`3=node-a` as (3, "node-a"). Raises UsageError."""
    found = []
    for text in texts:
        number, equals, name = text.partition("=")
        if not equals or not name or not (number.isascii() and number.isdigit()) or int(number) == 0:
            raise UsageError(f"{flag} {text!r} must be NUMBER=NODE, such as 3=node-a")
        found.append((int(number), name))
    return tuple(found)
