"""Addresses and node ports of Services: each is one Service's, and who leaves them out of an update keeps them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import TYPE_CHECKING

from koord.apiserver.errors import Cause, invalid, invalid_value
from koord.apiserver.store import Obj

if TYPE_CHECKING:
    from koord.apiserver.store import Bucket

_NONE = "None"
_WITH_PORTS = ("NodePort", "LoadBalancer")
_OF_BALANCERS = ("allocateLoadBalancerNodePorts", "healthCheckNodePort", "loadBalancerClass")


def keep(obj: Obj, stored: Obj) -> None:
    """Addresses and ports that the update leaves out stay, as far as the type has them; those that the type has no more go."""
    new, old = obj.get("spec") or {}, stored.get("spec") or {}
    was, becomes = old.get("type"), new.get("type")
    if becomes == "ExternalName":
        if new.get("clusterIP") in (old.get("clusterIP"), "", None):
            for key in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
                new.pop(key, None)
        if new.get("internalTrafficPolicy") == old.get("internalTrafficPolicy"):
            new.pop("internalTrafficPolicy", None)
    elif was != "ExternalName" and not new.get("clusterIP"):
        for key in ("clusterIP", "clusterIPs"):
            if old.get(key):
                new[key] = old[key]
    if was == "LoadBalancer" != becomes:
        for key in _OF_BALANCERS:
            if new.get(key) == old.get(key):
                new.pop(key, None)
    elif was == "LoadBalancer" and old.get("healthCheckNodePort") and new.get("externalTrafficPolicy") == "Local":
        new["healthCheckNodePort"] = new.get("healthCheckNodePort") or old["healthCheckNodePort"]
    if was in _WITH_PORTS:
        _keep_ports(new, old, stays=becomes in _WITH_PORTS)


def _keep_ports(new: Obj, old: Obj, *, stays: bool) -> None:
    known = {(port.get("protocol"), port.get("port")): port["nodePort"] for port in old.get("ports") or () if port.get("nodePort")}
    asked = {port.get("nodePort") for port in new.get("ports") or ()}
    for port in new.get("ports") or ():
        before = known.get((port.get("protocol"), port.get("port")))
        if stays and before and not port.get("nodePort") and before not in asked:
            port["nodePort"] = before
        elif not stays and before and port.get("nodePort") == before:
            del port["nodePort"]
    if not stays and new.get("externalTrafficPolicy") == old.get("externalTrafficPolicy"):
        new.pop("externalTrafficPolicy", None)


def check_free(bucket: Bucket, key: str, name: str, obj: Obj, stored: Obj | None = None) -> None:
    """Raise 422 for an address or a node port that is another Service's. What the Service has `stored` is not asked for anew."""
    spec, before = obj.get("spec") or {}, (stored or {}).get("spec") or {}
    addresses = set(_addresses(spec)).difference(_addresses(before))
    kept = {port.get("nodePort") for port in before.get("ports") or ()}
    ports = {port["nodePort"]: i for i, port in enumerate(spec.get("ports") or ()) if port.get("nodePort") and port["nodePort"] not in kept}
    if not addresses and not ports:
        return
    causes: list[Cause] = []
    for at, other in bucket.entries.items():
        if at == key:
            continue
        theirs = other.obj.get("spec") or {}
        for address in addresses.intersection(_addresses(theirs)):
            text = f"failed to allocate IP {address}: provided IP is already allocated"
            causes.append(invalid_value("spec.clusterIPs", [spec.get("clusterIP")], text))
        for port in {port["nodePort"] for port in theirs.get("ports") or () if port.get("nodePort") in ports}:
            causes.append(invalid_value(f"spec.ports[{ports[port]}].nodePort", port, "provided port is already allocated"))
    if causes:
        raise invalid("Service", "", name, causes)


def _addresses(spec: Obj) -> Iterator[str]:
    if spec.get("type") == "ExternalName":
        return
    for text in (spec.get("clusterIP"), *(spec.get("clusterIPs") or ())):
        if text and text != _NONE:
            try:
                yield str(ipaddress.ip_address(text))
            except ValueError:
                yield text
