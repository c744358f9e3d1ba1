"""Devices, classes and claims for tests of dynamic resource allocation."""

from __future__ import annotations

from typing import Any

Obj = dict[str, Any]

DRIVER = "gpu.example.com"
GROUP = "resource.k8s.io/v1"


def device(name: str, **more: Any) -> Obj:
    """A device; `model` and `memory` are short for an attribute and a capacity."""
    out: Obj = {"name": name}
    if "model" in more:
        out["attributes"] = {"model": {"string": more.pop("model")}}
    if "memory" in more:
        out["capacity"] = {"memory": {"value": more.pop("memory")}}
    return {**out, **more}


def slice_of(node: str, *devices: Obj, name: str = "", driver: str = DRIVER, pool: str = "", generation: int = 1, count: int = 1,
             **spec: Any) -> Obj:  # fmt: skip
    """A ResourceSlice of one node; with `spec` something else in place of the node's name."""
    where = {} if spec.keys() & {"allNodes", "nodeSelector", "perDeviceNodeSelection"} else {"nodeName": node}
    content = {
        "driver": driver, "pool": {"name": pool or node, "generation": generation, "resourceSliceCount": count}, "devices": list(devices),
    }  # fmt: skip
    if not devices:
        del content["devices"]
    meta = {"name": name or f"{node}-{driver}-{generation}"}
    return {"apiVersion": GROUP, "kind": "ResourceSlice", "metadata": meta, "spec": {**content, **where, **spec}}


def taint_rule(name: str, effect: str = "NoSchedule", **selected: str) -> Obj:
    """A DeviceTaintRule with a taint of key "broken" for the devices that `driver`, `pool` and `device` select."""
    spec = {"deviceSelector": selected, "taint": {"key": "broken", "effect": effect}}
    return {"apiVersion": GROUP, "kind": "DeviceTaintRule", "metadata": {"name": name}, "spec": spec}


def device_class(name: str = "gpu", expression: str = f'device.driver == "{DRIVER}"', **spec: Any) -> Obj:
    """A DeviceClass with one selector."""
    content = {"selectors": [{"cel": {"expression": expression}}], **spec}
    return {"apiVersion": GROUP, "kind": "DeviceClass", "metadata": {"name": name}, "spec": content}


def request(name: str = "gpu", *expressions: str, cls: str = "gpu", **exactly: Any) -> Obj:
    """A request for devices of a class."""
    return {"name": name, "exactly": wanted(*expressions, cls=cls, **exactly)}


def alternative(name: str, *expressions: str, cls: str = "gpu", **more: Any) -> Obj:
    """One entry of firstAvailable."""
    return {"name": name, **wanted(*expressions, cls=cls, **more)}


def wanted(*expressions: str, cls: str, **more: Any) -> Obj:
    selectors = {"selectors": [{"cel": {"expression": one}} for one in expressions]} if expressions else {}
    return {"deviceClassName": cls, **selectors, **more}


def claim_spec(*requests: Obj, **devices: Any) -> Obj:
    """What a claim or template asks for; one device of class gpu by default."""
    return {"devices": {"requests": list(requests) or [request()], **devices}}


def claim(name: str, *requests: Obj, **devices: Any) -> Obj:
    """A ResourceClaim of the namespace default."""
    return {
        "apiVersion": GROUP, "kind": "ResourceClaim", "metadata": {"name": name, "namespace": "default"},
        "spec": claim_spec(*requests, **devices),
    }  # fmt: skip


def template(name: str, *requests: Obj, **devices: Any) -> Obj:
    """A ResourceClaimTemplate of the namespace default."""
    return {
        "apiVersion": GROUP, "kind": "ResourceClaimTemplate", "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": claim_spec(*requests, **devices)},
    }  # fmt: skip


def of_template(name: str = "one") -> list[Obj]:
    """spec.resourceClaims of a pod with one claim from a template."""
    return [{"name": "device", "resourceClaimTemplateName": name}]


def of_claim(name: str) -> list[Obj]:
    """spec.resourceClaims of a pod with one claim by name."""
    return [{"name": "device", "resourceClaimName": name}]


def results(claim_: Obj) -> list[str]:
    """ "request=pool/device" of what was allocated."""
    allocation = (claim_.get("status") or {}).get("allocation") or {}
    return [f"{one['request']}={one['pool']}/{one['device']}" for one in (allocation.get("devices") or {}).get("results") or ()]
