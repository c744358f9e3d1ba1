"""Validation of pods beside the rules of `schema/rules.json`: the rules that users and schedulers meet, and what an update may change."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import Any

from koord.api.quantity import Quantity
from koord.apiserver.errors import Cause, duplicate, field_forbidden, invalid_value, not_supported, required
from koord.apiserver.facts import containers, qos_class
from koord.apiserver.schema.builtin import Path_, path_text
from koord.apiserver.schema.lists import repeats
from koord.apiserver.schema.rules import checking, parting, updating
from koord.apiserver.store import Obj
from koord.apiserver.validation.names import check_name, label_map, qualified_name

_STANDARD_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_SELECTOR_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_RESIZABLE = ("cpu", "memory")
_LONGEST_PORT = 15  # octets of the name of a port
_HUGE = "hugepages-"
_FIELD_PATH = re.compile(
    r"metadata\.(name|namespace|uid|(annotations|labels)(\['[^']*'\])?)|spec\.(nodeName|serviceAccountName|restartPolicy|schedulerName|hostNetwork)"
    r"|status\.(phase|hostIPs?|podIPs?)"
)


@checking("V1Pod", "V1PodTemplateSpec")
def _has_spec(obj: Obj, path: Path_, causes: list[Cause]) -> None:
    if obj.get("spec") is None:
        causes.append(required(f"{path_text(path)}.spec.containers".lstrip(".")))


@checking("V1PodSpec")
def _pod_spec(spec: Obj, path: Path_, causes: list[Cause]) -> None:
    """What concerns several parts of a pod: names that are used once, volumes that are there."""
    volumes = {volume.get("name") for volume in spec.get("volumes") or ()}
    names: set[str] = set()
    for key in ("containers", "initContainers"):
        for i, container in enumerate(spec.get(key) or ()):
            name = container.get("name")
            if container.get("volumeMounts"):
                _mounts(container["volumeMounts"], f"{path_text(path)}.{key}[{i}].volumeMounts", volumes, causes)
            if name in names:
                causes.append(duplicate(f"{path_text(path)}.{key}[{i}].name", name))
            elif name:
                names.add(name)
    if spec.get("nodeSelector"):
        label_map(spec["nodeSelector"], f"{path_text(path)}.nodeSelector", causes)
    for name, value in (spec.get("overhead") or {}).items():
        amount(value, f"{path_text(path)}.overhead[{name}]", causes)
    _placement(spec, path_text(path), causes)
    _host(spec, path_text(path), causes)
    if spec.get("resources"):
        _pod_resources(spec, path_text(path), causes)
    if spec.get("schedulingGates") and spec.get("nodeName"):
        causes.append(field_forbidden(f"{path_text(path)}.nodeName", "cannot be set until all schedulingGates have been cleared"))


def _placement(spec: Obj, path: str, causes: list[Cause]) -> None:
    """Gates, spreading and conditions: each once."""
    gates: list[Any] = [gate.get("name") for gate in spec.get("schedulingGates") or ()]
    causes += [duplicate(f"{path}.schedulingGates[{i}]", gates[i]) for i in repeats(gates)]
    spreads = spec.get("topologySpreadConstraints") or []
    known = [(spread.get("topologyKey"), spread.get("whenUnsatisfiable")) for spread in spreads]
    last = {pair: i for i, pair in enumerate(known)}
    for i, (spread, pair) in enumerate(zip(spreads, known, strict=True)):
        where, when = f"{path}.topologySpreadConstraints[{i}]", pair[1]
        if last[pair] > i:
            causes.append(duplicate(f"{where}.{{topologyKey, whenUnsatisfiable}}", f"{{{pair[0]}, {when}}}"))
        if spread.get("minDomains") is not None and when != "DoNotSchedule":
            text = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {when}"
            causes.append(invalid_value(f"{where}.minDomains", spread["minDomains"], text))
    for i, claim in enumerate(spec.get("resourceClaims") or ()):
        if not claim.get("resourceClaimName") and not claim.get("resourceClaimTemplateName"):
            text = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            causes.append(invalid_value(f"{path}.resourceClaims[{i}]", claim, text))


def _host(spec: Obj, path: str, causes: list[Cause]) -> None:
    """What a pod shares with its machine."""
    taken: set[str] = set()
    for i, container in enumerate(spec.get("containers") or ()):
        for at, port in enumerate(container.get("ports") or ()):
            if port.get("hostPort"):
                place = f"{port.get('protocol', 'TCP')}/{port.get('hostIP', '')}/{port['hostPort']}"
                if place in taken:
                    causes.append(duplicate(f"{path}.containers[{i}].ports[{at}].hostPort", place))
                taken.add(place)
    for i, container in enumerate(spec.get("containers") or ()) if spec.get("hostNetwork") else ():
        for at, port in enumerate(container.get("ports") or ()):
            if port.get("hostPort") and port["hostPort"] != port.get("containerPort"):
                where, text = f"{path}.containers[{i}].ports[{at}].hostPort", "must match `containerPort` when `hostNetwork` is true"
                causes.append(invalid_value(where, port["hostPort"], text))
    if spec.get("hostPID") and spec.get("shareProcessNamespace"):
        text = "ShareProcessNamespace and HostPID cannot both be enabled"
        causes.append(invalid_value(f"{path}.securityContext.shareProcessNamespace", True, text))
    if spec.get("dnsPolicy") == "None" and not spec.get("dnsConfig"):
        causes.append(required(f"{path}.dnsConfig", "must provide `dnsConfig` when `dnsPolicy` is None"))
    system = (spec.get("os") or {}).get("name") or ""
    if system and system not in ("linux", "windows"):
        causes.append(not_supported(f"{path}.os", system, ("linux", "windows")))


@checking("V1Volume")
def _volume(volume: Obj, path: Path_, causes: list[Cause]) -> None:
    sources = [k for k in volume if k != "name"]
    if len(sources) > 1:
        causes.append(field_forbidden(f"{path_text(path)}.{sources[1]}", "may not specify more than 1 volume type"))


def no_volume(path: str, name: str) -> Cause:
    """The cause of a mount of what is no volume of the pod."""
    return Cause("FieldValueNotFound", path, f'Not found: "{name}"')


def _mounts(mounts: Any, path: str, volumes: set[Any], causes: list[Cause]) -> None:
    seen: set[str] = set()
    for i, mount in enumerate(mounts):
        if mount.get("name") not in volumes:
            causes.append(no_volume(f"{path}[{i}].name", mount.get("name", "")))
        place = mount.get("mountPath") or ""
        if place and place in seen:
            causes.append(invalid_value(f"{path}[{i}].mountPath", place, "must be unique"))
        seen.add(place)


@checking("V1Container")
def _container(container: Obj, path: Path_, causes: list[Cause]) -> None:
    image = container.get("image") or ""
    if image != image.strip():
        causes.append(invalid_value(f"{path_text(path)}.image", image, "must not have leading or trailing whitespace"))
    if container.get("resources"):
        _resources(container["resources"], path, causes)


@checking("V1ContainerPort")
def _port(port: Obj, path: Path_, causes: list[Cause]) -> None:
    name = port.get("name") or ""
    if len(name) > _LONGEST_PORT:
        causes.append(invalid_value(f"{path_text(path)}.name", name, f"must be no more than {_LONGEST_PORT} characters"))


@checking("V1Probe", "V1LifecycleHandler")
def _handler(handler: Obj, path: Path_, causes: list[Cause]) -> None:
    """Exactly one thing to do."""
    given = [key for key in ("exec", "httpGet", "tcpSocket", "grpc", "sleep") if handler.get(key) is not None]
    if not given:
        causes.append(required(path_text(path), "must specify a handler type"))
    causes += [field_forbidden(f"{path_text(path)}.{key}", "may not specify more than 1 handler type") for key in given[1:]]


@checking("V1ObjectFieldSelector")
def _field_path(selector: Obj, path: Path_, causes: list[Cause]) -> None:
    text = selector.get("fieldPath") or ""
    if text and not _FIELD_PATH.fullmatch(text):
        why = f"error converting fieldPath: field label not supported: {text}"
        causes.append(invalid_value(f"{path_text(path)}.fieldPath", text, why))


@checking("V1EnvVar")
def _env(env: Obj, path: Path_, causes: list[Cause]) -> None:
    if env.get("value") and env.get("valueFrom"):
        causes.append(invalid_value(f"{path_text(path)}.valueFrom", "", "may not be specified when `value` is not empty"))


# -- resources -----------------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=8192)
def _quantity_of(text: str) -> Quantity:
    return Quantity(text)


def amount(value: Any, path: str, causes: list[Cause]) -> bool:
    """Add a cause for a negative amount; whether it is one."""
    negative = str(value).startswith("-")
    if negative:
        causes.append(invalid_value(path, value, "must be greater than or equal to 0"))
    return negative


def overcommits(name: str) -> bool:
    """Native resources may have limits above requests; extended resources and huge pages may not."""
    prefix, slash, _ = name.partition("/")
    return not name.startswith("hugepages-") and (not slash or prefix == "kubernetes.io" or prefix.endswith(".kubernetes.io"))


def whole(name: str, value: Any, path: str, causes: list[Cause]) -> None:
    """Add a cause for a part of an extended resource."""
    if "/" in name and not overcommits(name) and not _quantity_of(value).is_integer():
        causes.append(invalid_value(path, str(value), "must be an integer"))


def _resources(resources: Obj, container: Path_, causes: list[Cause]) -> None:
    """Requests and limits: names, not negative, requests within limits."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, value in amounts.items():
            if name in _STANDARD_RESOURCES and not value.startswith("-"):
                continue
            where = f"{path_text(container)}.resources.{part}[{name}]"
            standard = "/" in name or name in _STANDARD_RESOURCES or name.startswith("hugepages-")
            if not check_name(qualified_name, name, where, causes) and not standard:
                causes.append(invalid_value(where, name, "must be a standard resource type or fully qualified"))
            amount(value, where, causes)
            whole(name, value, where, causes)
    huge = {name: value for name, value in (*limits.items(), *requests.items()) if name.startswith(_HUGE)}
    if huge:
        _huge_pages(limits, requests, path_text(container), causes)
    for name, value in requests.items():
        limit = limits.get(name)
        if limit == value or (overcommits(name) and (limit is None or not _quantity_of(value) > _quantity_of(limit))):
            continue
        where = f"{path_text(container)}.resources"
        if limit is None:
            causes.append(required(f"{where}.limits", "Limit must be set for non overcommitable resources"))
        else:
            wanted = "less than or equal" if overcommits(name) else "equal"
            causes.append(invalid_value(f"{where}.requests", value, f"must be {wanted} to {name} limit of {limit}"))


def _huge_pages(limits: Obj, requests: Obj, container: str, causes: list[Cause]) -> None:
    """Whole pages, and beside cpu or memory."""
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, value in amounts.items():
            if name.startswith(_HUGE) and _quantity_of(value).value() % max(1, _quantity_of(name.removeprefix(_HUGE)).value()):
                text = f"{value} is not positive integer multiple of {name}"
                causes.append(invalid_value(f"{container}.resources.{part}[{name}]", value, text))
    if not {"cpu", "memory"} & (limits.keys() | requests.keys()):
        causes.append(field_forbidden(f"{container}.resources", "HugePages require cpu or memory"))


def _pod_resources(spec: Obj, path: str, causes: list[Cause]) -> None:
    """What a pod asks for as a whole is not less than what its containers ask for together."""
    for part in ("limits", "requests"):
        for name, value in (spec["resources"].get(part) or {}).items():
            where = f"{path}.resources.{part}[{name}]"
            if name not in _RESIZABLE and not name.startswith(_HUGE):
                causes.append(not_supported(where, name, ("cpu", _HUGE, "memory")))
                continue
            listed = [(c.get("resources") or {}).get("requests") or {} for c in spec.get("containers") or ()]
            total = sum((_quantity_of(asked[name]) for asked in listed if name in asked), Quantity("0"))
            if part == "requests" and _quantity_of(value) < total:
                causes.append(invalid_value(where, value, f"must be greater than or equal to aggregate container requests of {total}"))


# -- placement -----------------------------------------------------------------------------------------------------------------------


@checking("V1Toleration")
def _toleration(toleration: Obj, path: Path_, causes: list[Cause]) -> None:
    key, operator, effect = toleration.get("key"), toleration.get("operator") or "Equal", toleration.get("effect") or ""
    if key:
        check_name(qualified_name, key, f"{path_text(path)}.key", causes)
    elif operator != "Exists":
        text = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        causes.append(invalid_value(f"{path_text(path)}.operator", toleration.get("operator") or "", text))
    if operator == "Exists" and toleration.get("value"):
        causes.append(invalid_value(f"{path_text(path)}.operator", toleration, "value must be empty when `operator` is 'Exists'"))
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        causes.append(invalid_value(f"{path_text(path)}.effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set"))


@checking("V1NodeSelectorRequirement")
def _node_requirement(rule: Obj, path: Path_, causes: list[Cause]) -> None:
    operator, values = rule.get("operator"), rule.get("values") or []
    if operator not in _SELECTOR_OPERATORS:
        causes.append(invalid_value(f"{path_text(path)}.operator", operator or "", "not a valid selector operator"))
    elif operator in ("In", "NotIn") and not values:
        causes.append(required(f"{path_text(path)}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
    elif operator in ("Exists", "DoesNotExist") and values:
        causes.append(field_forbidden(f"{path_text(path)}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"))
    elif operator in ("Gt", "Lt") and len(values) != 1:
        causes.append(required(f"{path_text(path)}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'"))


# -- updates -------------------------------------------------------------------------------------------------------------------------

_MUTABLE_TEXT = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
    "previously negative)"
)


@updating("V1Pod")
def _update(new: Obj, old: Obj, causes: list[Cause]) -> None:
    """The specification of a pod is immutable, but for a few fields."""
    spec, before = new.get("spec") or {}, old.get("spec") or {}
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
        if not any({**t, "tolerationSeconds": 0} == {**toleration, "tolerationSeconds": 0} for t in spec.get("tolerations") or ()):
            causes.append(field_forbidden("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds"))
            break
    _gates(spec, before, view, view_before, causes)
    if spec.get("terminationGracePeriodSeconds") == 1 and before.get("terminationGracePeriodSeconds", 0) < 0:
        view["terminationGracePeriodSeconds"] = before["terminationGracePeriodSeconds"]
    if view != view_before:
        changed = sorted(k for k in view.keys() | view_before.keys() if view.get(k) != view_before.get(k))
        causes.append(field_forbidden("spec", f"{_MUTABLE_TEXT}\n changed: {', '.join(changed)}\n"))


def _frozen_view(spec: Obj) -> Obj:
    out = {k: v for k, v in spec.items() if k not in ("activeDeadlineSeconds", "tolerations")}
    for key in ("containers", "initContainers"):
        if key in out:
            out[key] = [{k: v for k, v in c.items() if k != "image"} for c in out[key]]
    return out


def _gates(spec: Obj, before: Obj, view: Obj, view_before: Obj, causes: list[Cause]) -> None:
    """Scheduling gates may go, not come; a gated pod may narrow its node selection."""
    gates, gates_before = spec.get("schedulingGates") or [], before.get("schedulingGates") or []
    known = {gate.get("name") for gate in gates_before}
    for i, gate in enumerate(gates):
        if gate.get("name") not in known:
            text = f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
            causes.append(field_forbidden(f"spec.schedulingGates[{i}].name", text))
    for side in (view, view_before):
        side.pop("schedulingGates", None)
    if gates_before:
        selector, selector_before = spec.get("nodeSelector") or {}, before.get("nodeSelector") or {}
        if any(selector.get(k) != v for k, v in selector_before.items()):
            text = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
            causes.append(invalid_value("spec.nodeSelector", selector, text))
        affinity, affinity_before = (dict(side.get("affinity") or {}) for side in (spec, before))
        _narrower(affinity.pop("nodeAffinity", None) or {}, affinity_before.pop("nodeAffinity", None) or {}, causes)
        for side, seen in ((view, affinity), (view_before, affinity_before)):
            side.pop("nodeSelector", None)
            side["affinity"] = seen


def _narrower(affinity: Obj, before: Obj, causes: list[Cause]) -> None:
    """The nodes that a pod requires may become fewer: each term may say more behind what it says. What it prefers is free."""
    part = "requiredDuringSchedulingIgnoredDuringExecution"
    terms, former = ((side.get(part) or {}).get("nodeSelectorTerms") or [] for side in (affinity, before))
    place = f"spec.affinity.nodeAffinity.{part}.nodeSelectorTerms"
    if former and len(terms) != len(former):
        causes.append(invalid_value(place, terms, "no additions/deletions to non-empty NodeSelectorTerms list are allowed"))
        return
    for i, (term, known) in enumerate(zip(terms, former, strict=False)):
        said = [(term.get(key) or [], known.get(key) or []) for key in ("matchExpressions", "matchFields")]
        # an empty term selects nothing: saying more would be to select
        if any(after[: len(prior)] != prior for after, prior in said) or (
            any(after for after, _ in said) and not any(prior for _, prior in said)
        ):
            causes.append(invalid_value(f"{place}[{i}]", term, "only additions are allowed (no mutations or deletions)"))


@parting("V1Pod")
def _part(subresource: str, new: Obj, old: Obj, causes: list[Cause]) -> None:
    """Check one subresource's change. `new` and `old` are whole pods."""
    if subresource == "status":
        _status(new.get("status") or {}, old.get("status") or {}, causes)
        nominated = (new.get("status") or {}).get("nominatedNodeName")
        if nominated and (old.get("spec") or {}).get("nodeName") and nominated != (old.get("status") or {}).get("nominatedNodeName"):
            causes.append(field_forbidden("status.nominatedNodeName", "may not be set on pods that are already bound to a node"))
    elif subresource == "resize":
        _resize(new["spec"], old["spec"], causes)
    elif subresource == "ephemeralcontainers":
        _ephemeral(new["spec"], old["spec"], causes)


def _status(status: Obj, before: Obj, causes: list[Cause]) -> None:
    if before.get("qosClass") and status.get("qosClass") != before["qosClass"]:
        causes.append(invalid_value("status.qosClass", status.get("qosClass") or "", "field is immutable"))
    for i, condition in enumerate(status.get("conditions") or ()):
        check_name(qualified_name, condition.get("type") or "", f"status.conditions[{i}].Type", causes)
    for i, address in enumerate(status.get("podIPs") or ()):
        try:
            ipaddress.ip_address(address.get("ip") or "")
        except ValueError:
            text = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            causes.append(invalid_value(f"status.podIPs[{i}]", address.get("ip") or "", text))


def _resize(spec: Obj, before: Obj, causes: list[Cause]) -> None:
    if qos_class(spec) != qos_class(before):
        causes.append(invalid_value("spec", qos_class(spec), "Pod QOS Class may not change as a result of resizing"))
    for key in ("containers", "initContainers"):
        given, known = spec.get(key) or (), before.get(key) or ()
        if len(given) != len(known):
            causes.append(field_forbidden(f"spec.{key}", f"{key} may not be added or removed on resize"))
            return
        for i, (container, former) in enumerate(zip(given, known, strict=True)):
            if container.get("name") != former["name"]:
                causes.append(field_forbidden(f"spec.{key}[{i}].name", f"{key} may not be renamed or reordered on resize"))
                return
            for side in ("requests", "limits"):
                names, before_names = ((each.get("resources") or {}).get(side) or {} for each in (container, former))
                if before_names.keys() - names.keys():
                    causes.append(field_forbidden(f"spec.{key}[{i}].resources.{side}", f"resource {side} cannot be removed"))
    if _fixed(spec) != _fixed(before):
        causes.append(field_forbidden("spec", "only cpu and memory resources are mutable"))


def _fixed(spec: Obj) -> list[Obj]:
    """The resources of all containers that a resize may not touch."""
    found = []
    for container in containers(spec):
        resources = container.get("resources") or {}
        found.append(
            {side: {k: v for k, v in (resources.get(side) or {}).items() if k not in _RESIZABLE} for side in ("requests", "limits")}
        )
    return found


def _ephemeral(spec: Obj, before: Obj, causes: list[Cause]) -> None:
    present = {c.get("name"): c for c in spec.get("ephemeralContainers") or ()}
    taken = {container.get("name") for key in ("containers", "initContainers") for container in spec.get(key) or ()}
    for i, container in enumerate(spec.get("ephemeralContainers") or ()):
        name = container.get("name")
        if name and name in taken:
            causes.append(duplicate(f"spec.ephemeralContainers[{i}].name", name))
        taken.add(name)
    for container in before.get("ephemeralContainers") or ():
        name = container.get("name")
        if name not in present:
            causes.append(field_forbidden("spec.ephemeralContainers", f'existing ephemeral containers "{name}" may not be removed\n'))
        elif present[name] != container:
            causes.append(field_forbidden("spec.ephemeralContainers", f'existing ephemeral containers "{name}" may not be changed\n'))
