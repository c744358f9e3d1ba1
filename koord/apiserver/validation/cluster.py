"""Validation of everything that is not a pod, a workload or a CRD."""

from __future__ import annotations

import re
from typing import Any

from koord.api.quantity import Quantity
from koord.api.selectors import SelectorError, from_label_selector
from koord.apiserver.errors import Cause, duplicate, field_forbidden, invalid_value, not_supported, required
from koord.apiserver.validation.names import label_value, qualified_name
from koord.apiserver.validation.pods import overcommits

Obj = dict[str, Any]

_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_DATA_LIMIT = 1024 * 1024
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_PERCENT = re.compile(r"[0-9]+%")
_HIGHEST_USER_PRIORITY = 1_000_000_000


def check_node(node: Obj, causes: list[Cause]) -> None:
    """Taints, provider, and quantities of a node."""
    seen: set[tuple[str, str]] = set()
    for i, taint in enumerate((node.get("spec") or {}).get("taints") or ()):
        path = f"metadata.taints[{i}]"
        wrong = qualified_name(taint.get("key") or "")
        if wrong:
            causes.append(invalid_value(f"{path}.key", taint.get("key") or "", wrong))
        if taint.get("value") and label_value(taint["value"]):
            causes.append(invalid_value(f"{path}.value", taint["value"], label_value(taint["value"])))
        effect = taint.get("effect") or ""
        if not effect:
            causes.append(required(f"{path}.effect"))
        elif effect not in _EFFECTS:
            causes.append(not_supported(f"{path}.effect", effect, _EFFECTS))
        ident = (taint.get("key") or "", effect)
        if ident in seen:
            causes.append(Cause("FieldValueDuplicate", path, f"Duplicate value: {taint}: taints must be unique by key and effect pair"))
        seen.add(ident)
    check_node_resources(node, causes)


def check_node_resources(node: Obj, causes: list[Cause]) -> None:
    """Capacity and allocatable: names, not negative, extended resources whole."""
    status = node.get("status") or {}
    for key in ("capacity", "allocatable"):
        for name, value in (status.get(key) or {}).items():
            path = f"status.{key}[{name}]"
            wrong = qualified_name(name)
            if wrong:
                causes.append(invalid_value(path, name, wrong))
            elif str(value).startswith("-"):
                causes.append(invalid_value(path, value, "must be greater than or equal to 0"))
            elif "/" in name and not overcommits(name) and not Quantity(value).is_integer():
                causes.append(invalid_value(path, value, "must be an integer"))


def check_node_update(new: Obj, old: Obj, causes: list[Cause]) -> None:
    """podCIDR and providerID are set once."""
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    for key in ("podCIDR", "providerID"):
        if before.get(key) and spec.get(key) != before[key]:
            causes.append(field_forbidden(f"spec.{key}", "node updates may not change " + key + ' except from "" to valid'))


def _data(obj: Obj, keys: tuple[str, ...], causes: list[Cause]) -> None:
    size = 0
    for field in keys:
        for key, value in (obj.get(field) or {}).items():
            if not _DATA_KEY.fullmatch(key) or key in (".", "..") or len(key) > 253:
                text = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"  # noqa: E501
                causes.append(invalid_value(f"{field}[{key}]", key, text))
            if field == "data" and key in (obj.get("binaryData") or ()):
                causes.append(invalid_value(f"data[{key}]", key, "duplicate of key present in binaryData"))
            size += len(value)
    if size > _DATA_LIMIT:
        causes.append(Cause("FieldValueTooLong", "", f"Too long: must have at most {_DATA_LIMIT} bytes"))


def check_config_map(obj: Obj, causes: list[Cause]) -> None:
    _data(obj, ("data", "binaryData"), causes)


def check_secret(obj: Obj, causes: list[Cause]) -> None:
    _data(obj, ("data",), causes)


def check_immutable_data(new: Obj, old: Obj, causes: list[Cause]) -> None:
    """ConfigMaps and Secrets marked immutable stay as they are; the type of a Secret always does."""
    if old.get("immutable"):
        if not new.get("immutable"):
            causes.append(field_forbidden("immutable", "field is immutable when `immutable` is set"))
        for key in ("data", "binaryData"):
            if new.get(key) != old.get(key):
                causes.append(field_forbidden(key, "field is immutable when `immutable` is set"))
    if new.get("type") != old.get("type"):
        causes.append(invalid_value("type", new.get("type"), "field is immutable"))


def check_service(obj: Obj, causes: list[Cause]) -> None:
    """Ports and type of a service."""
    spec = obj.get("spec") or {}
    kinds = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
    if spec.get("type") not in kinds:
        causes.append(not_supported("spec.type", spec.get("type"), kinds))
    if not spec.get("ports") and spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName":
        causes.append(required("spec.ports"))
    for i, port in enumerate(spec.get("ports") or ()):
        if not 0 < port.get("port", 0) < 65536:
            causes.append(invalid_value(f"spec.ports[{i}].port", port.get("port", 0), "must be between 1 and 65535, inclusive"))
        if len(spec["ports"]) > 1 and not port.get("name"):
            causes.append(required(f"spec.ports[{i}].name"))


def check_service_update(new: Obj, old: Obj, causes: list[Cause]) -> None:
    before = (old.get("spec") or {}).get("clusterIP")
    after = (new.get("spec") or {}).get("clusterIP")
    if before and after != before:
        causes.append(invalid_value("spec.clusterIPs[0]", after, "field is immutable"))


def check_event(obj: Obj, causes: list[Cause]) -> None:
    """An event lives in the namespace of what it is about."""
    involved = (obj.get("involvedObject") or {}).get("namespace") or ""
    namespace = obj["metadata"].get("namespace") or ""
    if involved != namespace and not (not involved and namespace == "default"):
        causes.append(invalid_value("involvedObject.namespace", involved, "does not match event.namespace"))


def check_pvc(obj: Obj, causes: list[Cause]) -> None:
    spec = obj.get("spec") or {}
    if not spec.get("accessModes"):
        causes.append(required("spec.accessModes", "at least 1 access mode is required"))
    if "storage" not in ((spec.get("resources") or {}).get("requests") or {}):
        causes.append(required("spec.resources[storage]"))


def check_pdb(obj: Obj, causes: list[Cause]) -> None:
    """minAvailable and maxUnavailable: one of them, whole and not negative, or a percentage."""
    spec = obj.get("spec") or {}
    if "minAvailable" in spec and "maxUnavailable" in spec:
        causes.append(invalid_value("spec", spec, "minAvailable and maxUnavailable cannot be both set"))
    for key in ("minAvailable", "maxUnavailable"):
        value = spec.get(key)
        if isinstance(value, int) and value < 0:
            causes.append(invalid_value(f"spec.{key}", value, "must be greater than or equal to 0"))
        elif isinstance(value, str):
            if not _PERCENT.fullmatch(value):
                text = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"  # noqa: E501
                causes.append(invalid_value(f"spec.{key}", value, text))
            elif int(value[:-1]) > 100:
                causes.append(invalid_value(f"spec.{key}", value, "must not be greater than 100%"))
    if spec.get("selector") is not None:
        try:
            from_label_selector(spec["selector"])
        except SelectorError as err:
            causes.append(invalid_value("spec.selector", spec["selector"], str(err)))


def check_priority_class(obj: Obj, causes: list[Cause]) -> None:
    """User classes stay below the system's; the prefix system- is reserved."""
    name, value = obj["metadata"].get("name") or "", obj.get("value", 0)
    if name.startswith("system-"):
        known = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}
        if known.get(name) != value:
            text = "priority class names with 'system-' prefix are reserved for system use only. error: " + (
                f"value of {name} PriorityClass must be {known[name]}" if name in known else f"{name} is not a known system priority class"
            )
            causes.append(field_forbidden("metadata.name", text))
    elif value > _HIGHEST_USER_PRIORITY:
        causes.append(field_forbidden("value", f"maximum allowed value of a user defined priority is {_HIGHEST_USER_PRIORITY}"))
    if obj.get("preemptionPolicy") not in ("PreemptLowerPriority", "Never"):
        causes.append(not_supported("preemptionPolicy", obj.get("preemptionPolicy"), ("PreemptLowerPriority", "Never")))


def check_priority_class_update(new: Obj, old: Obj, causes: list[Cause]) -> None:
    if new.get("value", 0) != old.get("value", 0):
        causes.append(field_forbidden("value", "may not be changed in an update."))
    if new.get("preemptionPolicy") != old.get("preemptionPolicy"):
        causes.append(invalid_value("preemptionPolicy", new.get("preemptionPolicy"), "field is immutable"))


def check_storage_class(obj: Obj, causes: list[Cause]) -> None:
    if not obj.get("provisioner"):
        causes.append(required("provisioner"))


def check_lease(obj: Obj, causes: list[Cause]) -> None:
    spec = obj.get("spec") or {}
    if "leaseDurationSeconds" in spec and spec["leaseDurationSeconds"] <= 0:
        causes.append(invalid_value("spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0"))
    if spec.get("leaseTransitions", 0) < 0:
        causes.append(invalid_value("spec.leaseTransitions", spec["leaseTransitions"], "must be greater than or equal to 0"))


def check_webhooks(obj: Obj, causes: list[Cause]) -> None:
    """Names, client configuration, versions, side effects and time-outs of webhooks."""
    names: set[str] = set()
    for i, hook in enumerate(obj.get("webhooks") or ()):
        path = f"webhooks[{i}]"
        name = hook.get("name") or ""
        if not name:
            causes.append(required(f"{path}.name"))
        elif name.count(".") < 2:
            causes.append(invalid_value(f"{path}.name", name, "should be a domain with at least three segments separated by dots"))
        if name in names:
            causes.append(duplicate(f"{path}.name", name))
        names.add(name)
        client = hook.get("clientConfig") or {}
        if ("url" in client) == ("service" in client):
            causes.append(required(f"{path}.clientConfig", "exactly one of url or service is required"))
        if not hook.get("admissionReviewVersions"):
            causes.append(required(f"{path}.admissionReviewVersions", "must specify one of v1, v1beta1"))
        if hook.get("sideEffects") not in ("None", "NoneOnDryRun"):
            causes.append(not_supported(f"{path}.sideEffects", hook.get("sideEffects") or "", ("None", "NoneOnDryRun")))
        if hook.get("failurePolicy") not in ("Ignore", "Fail"):
            causes.append(not_supported(f"{path}.failurePolicy", hook.get("failurePolicy"), ("Fail", "Ignore")))
        if not 1 <= hook.get("timeoutSeconds", 10) <= 30:
            text = "the timeout value must be between 1 and 30 seconds"
            causes.append(invalid_value(f"{path}.timeoutSeconds", hook["timeoutSeconds"], text))
        if hook.get("matchConditions"):
            from koord.apiserver.cel.policy import environment, match_conditions

            match_conditions(hook["matchConditions"], environment(None), f"{path}.matchConditions", causes)
