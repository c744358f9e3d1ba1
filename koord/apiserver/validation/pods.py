"""Validation of pods: the rules that users and schedulers meet."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Any

from koord.api.quantity import Quantity
from koord.apiserver.defaulting.pods import qos_class
from koord.apiserver.errors import Cause, duplicate, field_forbidden, invalid_value, not_supported, required
from koord.apiserver.validation.names import dns_label, label_map, qualified_name

Obj = dict[str, Any]

_RESTART = ("Always", "OnFailure", "Never")
_DNS = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_PULL = ("Always", "IfNotPresent", "Never")
_PROTOCOLS = ("TCP", "UDP", "SCTP")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_STANDARD_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_SELECTOR_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")


def check_pod(pod: Obj, causes: list[Cause]) -> None:
    """Check a whole pod."""
    spec = pod.get("spec")
    if spec is None:
        causes.append(required("spec.containers"))
        return
    check_pod_spec(spec, "spec", causes)


def check_pod_spec(spec: Obj, path: str, causes: list[Cause]) -> None:
    """Check a PodSpec under `path`."""
    containers = spec.get("containers")
    if not containers:
        causes.append(required(f"{path}.containers"))
    volumes = _volumes(spec.get("volumes") or (), f"{path}.volumes", causes)
    names: set[str] = set()
    for key in ("containers", "initContainers"):
        for i, container in enumerate(spec.get(key) or ()):
            where = f"{path}.{key}[{i}]"
            _container(container, where, volumes, causes)
            name = container.get("name")
            if name in names:
                causes.append(duplicate(f"{where}.name", name))
            elif name:
                names.add(name)
    if spec.get("restartPolicy") not in _RESTART:
        causes.append(not_supported(f"{path}.restartPolicy", spec.get("restartPolicy", ""), _RESTART))
    if spec.get("dnsPolicy") not in _DNS:
        causes.append(not_supported(f"{path}.dnsPolicy", spec.get("dnsPolicy", ""), _DNS))
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        causes.append(_non_negative(f"{path}.terminationGracePeriodSeconds", spec["terminationGracePeriodSeconds"]))
    seconds = spec.get("activeDeadlineSeconds")
    if seconds is not None and seconds < 1:
        causes.append(invalid_value(f"{path}.activeDeadlineSeconds", seconds, "must be between 1 and 2147483647, inclusive"))
    if spec.get("nodeSelector"):
        label_map(spec["nodeSelector"], f"{path}.nodeSelector", causes)
    if spec.get("tolerations"):
        check_tolerations(spec["tolerations"], f"{path}.tolerations", causes)
    if spec.get("affinity"):
        _affinity(spec["affinity"], f"{path}.affinity", causes)
    if spec.get("overhead"):
        for name, value in spec["overhead"].items():
            _quantity(value, f"{path}.overhead[{name}]", causes)
    for i, constraint in enumerate(spec.get("topologySpreadConstraints") or ()):
        _spread(constraint, f"{path}.topologySpreadConstraints[{i}]", causes)
    if spec.get("schedulingGates") and spec.get("nodeName"):
        causes.append(field_forbidden(f"{path}.nodeName", "cannot be set until all schedulingGates have been cleared"))
    if spec.get("hostname"):
        wrong = dns_label(spec["hostname"])
        if wrong:
            causes.append(invalid_value(f"{path}.hostname", spec["hostname"], wrong))


def _volumes(volumes: Any, path: str, causes: list[Cause]) -> set[str]:
    names: set[str] = set()
    for i, volume in enumerate(volumes):
        name = volume.get("name") or ""
        if not name:
            causes.append(required(f"{path}[{i}].name"))
        else:
            wrong = dns_label(name)
            if wrong:
                causes.append(invalid_value(f"{path}[{i}].name", name, wrong))
        if name in names:
            causes.append(duplicate(f"{path}[{i}].name", name))
        names.add(name)
        sources = [k for k in volume if k != "name"]
        if len(sources) > 1:
            causes.append(field_forbidden(f"{path}[{i}].{sources[1]}", "may not specify more than 1 volume type"))
    return names


def _container(container: Obj, path: str, volumes: set[str], causes: list[Cause]) -> None:
    name = container.get("name")
    if not name:
        causes.append(required(f"{path}.name"))
    else:
        wrong = dns_label(name)
        if wrong:
            causes.append(invalid_value(f"{path}.name", name, wrong))
    image = container.get("image")
    if not image:
        causes.append(required(f"{path}.image"))
    elif image != image.strip():
        causes.append(invalid_value(f"{path}.image", image, "must not have leading or trailing whitespace"))
    if container.get("imagePullPolicy") not in _PULL:
        causes.append(not_supported(f"{path}.imagePullPolicy", container.get("imagePullPolicy", ""), _PULL))
    for i, port in enumerate(container.get("ports") or ()):
        _port(port, f"{path}.ports[{i}]", causes)
    for i, env in enumerate(container.get("env") or ()):
        if not env.get("name"):
            causes.append(required(f"{path}.env[{i}].name"))
        if env.get("value") and env.get("valueFrom"):
            causes.append(invalid_value(f"{path}.env[{i}].valueFrom", "", "may not be specified when `value` is not empty"))
    mounts: set[str] = set()
    for i, mount in enumerate(container.get("volumeMounts") or ()):
        where = f"{path}.volumeMounts[{i}]"
        if mount.get("name") not in volumes:
            causes.append(Cause("FieldValueNotFound", f"{where}.name", f'Not found: "{mount.get("name", "")}"'))
        if not mount.get("mountPath"):
            causes.append(required(f"{where}.mountPath"))
        elif mount["mountPath"] in mounts:
            causes.append(invalid_value(f"{where}.mountPath", mount["mountPath"], "must be unique"))
        mounts.add(mount.get("mountPath") or "")
    if container.get("resources"):
        check_resources(container["resources"], f"{path}.resources", causes)


def _port(port: Obj, path: str, causes: list[Cause]) -> None:
    number = port.get("containerPort")
    if not number:
        causes.append(required(f"{path}.containerPort"))
    elif not 0 < number < 65536:
        causes.append(invalid_value(f"{path}.containerPort", number, "must be between 1 and 65535, inclusive"))
    host = port.get("hostPort")
    if host is not None and not 0 < host < 65536:
        causes.append(invalid_value(f"{path}.hostPort", host, "must be between 1 and 65535, inclusive"))
    if port.get("protocol") not in _PROTOCOLS:
        causes.append(not_supported(f"{path}.protocol", port.get("protocol", ""), _PROTOCOLS))


def _quantity(value: Any, path: str, causes: list[Cause]) -> None:
    if str(value).startswith("-"):
        causes.append(_non_negative(path, value))


@lru_cache(maxsize=8192)
def _quantity_of(text: str) -> Quantity:
    return Quantity(text)


def _non_negative(path: str, value: Any) -> Cause:
    return invalid_value(path, value, "must be greater than or equal to 0")


def overcommits(name: str) -> bool:
    """Native resources may have limits above requests; extended resources and huge pages may not."""
    if name.startswith("hugepages-"):
        return False
    prefix, slash, _ = name.partition("/")
    return not slash or prefix == "kubernetes.io" or prefix.endswith(".kubernetes.io")


def check_resources(resources: Obj, path: str, causes: list[Cause]) -> None:
    """Check requests and limits: names, not negative, requests within limits."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for name, value in limits.items():
        where = f"{path}.limits[{name}]"
        _resource_name(name, where, causes)
        _quantity(value, where, causes)
        _whole(name, value, where, causes)
    for name, value in requests.items():
        where = f"{path}.requests[{name}]"
        _resource_name(name, where, causes)
        _quantity(value, where, causes)
        _whole(name, value, where, causes)
        limit = limits.get(name)
        if limit is None:
            if not overcommits(name):
                causes.append(required(f"{path}.limits", "Limit must be set for non overcommitable resources"))
        elif limit != value:
            if not overcommits(name):
                causes.append(invalid_value(f"{path}.requests", str(value), f"must be equal to {name} limit of {limit}"))
            elif _quantity_of(value) > _quantity_of(limit):
                causes.append(invalid_value(f"{path}.requests", str(value), f"must be less than or equal to {name} limit of {limit}"))


def _resource_name(name: str, path: str, causes: list[Cause]) -> None:
    wrong = qualified_name(name)
    if wrong:
        causes.append(invalid_value(path, name, wrong))
    elif "/" not in name and name not in _STANDARD_RESOURCES and not name.startswith("hugepages-"):
        causes.append(invalid_value(path, name, "must be a standard resource type or fully qualified"))


def _whole(name: str, value: Any, path: str, causes: list[Cause]) -> None:
    if "/" in name and not overcommits(name) and not Quantity(value).is_integer():
        causes.append(invalid_value(path, str(value), "must be an integer"))


def check_tolerations(tolerations: list[Obj], path: str, causes: list[Cause]) -> None:
    """Check a list of tolerations."""
    for i, toleration in enumerate(tolerations):
        where = f"{path}[{i}]"
        key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
        if key:
            wrong = qualified_name(key)
            if wrong:
                causes.append(invalid_value(f"{where}.key", key, wrong))
        elif operator != "Exists":
            causes.append(invalid_value(f"{where}.operator", toleration.get("operator") or "", "operator must be Exists when `key` is empty, which means \"match all values and all keys\""))  # fmt: skip  # noqa: E501
        if operator not in ("Equal", "Exists"):
            causes.append(not_supported(f"{where}.operator", operator, ("Equal", "Exists")))
        if operator == "Exists" and toleration.get("value"):
            causes.append(invalid_value(f"{where}.operator", toleration, "value must be empty when `operator` is 'Exists'"))
        effect = toleration.get("effect") or ""
        if effect and effect not in _EFFECTS:
            causes.append(not_supported(f"{where}.effect", effect, _EFFECTS))
        if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
            causes.append(invalid_value(f"{where}.effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set"))


def _affinity(affinity: Obj, path: str, causes: list[Cause]) -> None:
    node = affinity.get("nodeAffinity") or {}
    hard = node.get("requiredDuringSchedulingIgnoredDuringExecution")
    if hard is not None:
        where = f"{path}.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
        if not hard.get("nodeSelectorTerms"):
            causes.append(required(where, "must have at least one node selector term"))
        for i, term in enumerate(hard.get("nodeSelectorTerms") or ()):
            _node_term(term, f"{where}[{i}]", causes)
    for i, soft in enumerate(node.get("preferredDuringSchedulingIgnoredDuringExecution") or ()):
        where = f"{path}.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[{i}]"
        _weight(soft, where, causes)
        _node_term(soft.get("preference") or {}, f"{where}.preference", causes)
    for kind in ("podAffinity", "podAntiAffinity"):
        rules = affinity.get(kind) or {}
        for i, term in enumerate(rules.get("requiredDuringSchedulingIgnoredDuringExecution") or ()):
            _pod_term(term, f"{path}.{kind}.requiredDuringSchedulingIgnoredDuringExecution[{i}]", causes)
        for i, soft in enumerate(rules.get("preferredDuringSchedulingIgnoredDuringExecution") or ()):
            where = f"{path}.{kind}.preferredDuringSchedulingIgnoredDuringExecution[{i}]"
            _weight(soft, where, causes)
            _pod_term(soft.get("podAffinityTerm") or {}, f"{where}.podAffinityTerm", causes)


def _weight(soft: Obj, path: str, causes: list[Cause]) -> None:
    if not 1 <= soft.get("weight", 0) <= 100:
        causes.append(invalid_value(f"{path}.weight", soft.get("weight", 0), "must be in the range 1-100"))


def _node_term(term: Obj, path: str, causes: list[Cause]) -> None:
    for i, rule in enumerate(term.get("matchExpressions") or ()):
        where = f"{path}.matchExpressions[{i}]"
        operator, values = rule.get("operator"), rule.get("values") or []
        if operator not in _SELECTOR_OPERATORS:
            causes.append(invalid_value(f"{where}.operator", operator or "", "not a valid selector operator"))
        elif operator in ("In", "NotIn") and not values:
            causes.append(required(f"{where}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
        elif operator in ("Exists", "DoesNotExist") and values:
            causes.append(field_forbidden(f"{where}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"))
        elif operator in ("Gt", "Lt") and len(values) != 1:
            causes.append(required(f"{where}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'"))
        wrong = qualified_name(rule.get("key") or "")
        if wrong:
            causes.append(invalid_value(f"{where}.key", rule.get("key") or "", wrong))


def _pod_term(term: Obj, path: str, causes: list[Cause]) -> None:
    if not term.get("topologyKey"):
        causes.append(required(f"{path}.topologyKey", "can not be empty"))


def _spread(constraint: Obj, path: str, causes: list[Cause]) -> None:
    if constraint.get("maxSkew", 0) <= 0:
        causes.append(invalid_value(f"{path}.maxSkew", constraint.get("maxSkew", 0), "must be greater than zero"))
    if not constraint.get("topologyKey"):
        causes.append(required(f"{path}.topologyKey", "can not be empty"))
    unsatisfiable = constraint.get("whenUnsatisfiable") or ""
    if unsatisfiable not in ("DoNotSchedule", "ScheduleAnyway"):
        causes.append(not_supported(f"{path}.whenUnsatisfiable", unsatisfiable, ("DoNotSchedule", "ScheduleAnyway")))


_MUTABLE_TEXT = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
    "previously negative)"
)


def check_pod_update(new: Obj, old: Obj, causes: list[Cause]) -> None:
    """The specification of a pod is immutable, but for a few fields."""
    spec, before = new["spec"], old["spec"]
    if spec == before:
        return
    view, view_before = _frozen_view(spec), _frozen_view(before)
    for key in ("containers", "initContainers"):
        if len(spec.get(key) or ()) != len(before.get(key) or ()):
            causes.append(field_forbidden(f"spec.{key}", "pod updates may not add or remove containers"))
            return
    deadline, deadline_before = spec.get("activeDeadlineSeconds"), before.get("activeDeadlineSeconds")
    if deadline_before is not None and deadline is None:
        causes.append(invalid_value("spec.activeDeadlineSeconds", None, "must not update from a positive integer to nil value"))
    elif deadline is not None and deadline_before is not None and deadline > deadline_before:
        causes.append(invalid_value("spec.activeDeadlineSeconds", deadline, "must be less than or equal to previous value"))
    for toleration in before.get("tolerations") or ():
        if not any(_same_toleration(toleration, t) for t in spec.get("tolerations") or ()):
            causes.append(field_forbidden("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds"))
            break
    _gates(spec, before, view, view_before, causes)
    if spec.get("terminationGracePeriodSeconds") == 1 and before.get("terminationGracePeriodSeconds", 0) < 0:
        view["terminationGracePeriodSeconds"] = before["terminationGracePeriodSeconds"]
    if view != view_before:
        changed = sorted(k for k in view.keys() | view_before.keys() if view.get(k) != view_before.get(k))
        causes.append(field_forbidden("spec", f"{_MUTABLE_TEXT}\n changed: {', '.join(changed)}\n"))


def _same_toleration(a: Obj, b: Obj) -> bool:
    return {**a, "tolerationSeconds": 0} == {**b, "tolerationSeconds": 0}


def _frozen_view(spec: Obj) -> Obj:
    out = {k: v for k, v in spec.items() if k not in ("activeDeadlineSeconds", "tolerations")}
    for key in ("containers", "initContainers"):
        if key in out:
            out[key] = [{k: v for k, v in c.items() if k != "image"} for c in out[key]]
    return out


def _gates(spec: Obj, before: Obj, view: Obj, view_before: Obj, causes: list[Cause]) -> None:
    """Scheduling gates may go, not come; a gated pod may narrow its node selection."""
    gates, gates_before = spec.get("schedulingGates") or [], before.get("schedulingGates") or []
    if any(g not in gates_before for g in gates):
        causes.append(field_forbidden("spec.schedulingGates", "only deletion is allowed, but found new scheduling gates"))
    for side in (view, view_before):
        side.pop("schedulingGates", None)
    if gates_before:
        selector, selector_before = spec.get("nodeSelector") or {}, before.get("nodeSelector") or {}
        if all(selector.get(k) == v for k, v in selector_before.items()):
            view.pop("nodeSelector", None)
            view_before.pop("nodeSelector", None)
        if not (before.get("affinity") or {}).get("nodeAffinity"):
            view.pop("affinity", None)
            view_before.pop("affinity", None)


_RESIZABLE = ("cpu", "memory")


def check_pod_part(subresource: str, new: Obj, old: Obj, causes: list[Cause]) -> None:
    """Check one subresource's change. `new` and `old` are whole pods."""
    if subresource == "status":
        _status(new.get("status") or {}, old.get("status") or {}, causes)
    elif subresource == "resize":
        _resize(new["spec"], old["spec"], causes)
    elif subresource == "ephemeralcontainers":
        _ephemeral(new["spec"], old["spec"], causes)


def _status(status: Obj, before: Obj, causes: list[Cause]) -> None:
    if before.get("qosClass") and status.get("qosClass") != before["qosClass"]:
        causes.append(invalid_value("status.qosClass", status.get("qosClass") or "", "field is immutable"))
    for i, condition in enumerate(status.get("conditions") or ()):
        if wrong := qualified_name(condition.get("type") or ""):
            causes.append(invalid_value(f"status.conditions[{i}].Type", condition.get("type") or "", wrong))
    for i, address in enumerate(status.get("podIPs") or ()):
        try:
            ipaddress.ip_address(address.get("ip") or "")
        except ValueError:
            text = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            causes.append(invalid_value(f"status.podIPs[{i}]", address.get("ip") or "", text))


def _resize(spec: Obj, before: Obj, causes: list[Cause]) -> None:
    if qos_class(spec) != qos_class(before):
        causes.append(invalid_value("spec", qos_class(spec), "Pod QOS Class may not change as a result of resizing"))
    if _fixed(spec) != _fixed(before):
        causes.append(field_forbidden("spec", "only cpu and memory resources are mutable"))


def _fixed(spec: Obj) -> list[Obj]:
    """The resources of all containers that a resize may not touch."""
    found = []
    for key in ("initContainers", "containers"):
        for container in spec.get(key) or ():
            resources = container.get("resources") or {}
            sides = {side: {k: v for k, v in (resources.get(side) or {}).items() if k not in _RESIZABLE} for side in ("requests", "limits")}
            found.append(sides)
    return found


def _ephemeral(spec: Obj, before: Obj, causes: list[Cause]) -> None:
    present = {c.get("name"): c for c in spec.get("ephemeralContainers") or ()}
    for container in before.get("ephemeralContainers") or ():
        name = container.get("name")
        if name not in present:
            causes.append(field_forbidden("spec.ephemeralContainers", f'existing ephemeral containers "{name}" may not be removed\n'))
        elif present[name] != container:
            causes.append(field_forbidden("spec.ephemeralContainers", f'existing ephemeral containers "{name}" may not be changed\n'))
