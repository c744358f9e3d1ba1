"""Allocations in the form of the API: `status.allocation` of a claim, as kube-scheduler writes it (SCH-DRA-08). Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from koord.api.objects_meta import convert
from koord.api.objects_pod import NodeSelector
from koord.api.objects_resource import DeviceClaimConfiguration, DeviceClass
from roles.scheduler.plugins.dynamic_resources.allocator import AllocatedDevice, Allocation
from roles.scheduler.plugins.dynamic_resources.amounts import text_of
from roles.scheduler.plugins.dynamic_resources.requests import Wanted

Obj = dict[str, Any]


def rendered(wanted: Wanted, allocation: Allocation, classes: Mapping[str, DeviceClass], node: str, share: Callable[[], str]) -> Obj:
    """`status.allocation`; `share` makes an ID for each use of a device that several may use."""
    devices: Obj = {"results": [_result(given, share) for given in allocation]}
    config = _configs(wanted, allocation, classes)
    if config:
        devices["config"] = config
    selector = node_selector(allocation, node)
    return {"devices": devices, **({"nodeSelector": selector} if selector is not None else {})}


def _result(given: AllocatedDevice, share: Callable[[], str]) -> Obj:
    ask, device = given.ask, given.device
    driver, pool, name = device.id
    result: Obj = {"request": ask.label, "driver": driver, "pool": pool, "device": name}
    if ask.admin:
        result["adminAccess"] = True
    if ask.tolerations:
        result["tolerations"] = _plain(ask.tolerations)
    if device.conditions:
        result["bindingConditions"] = list(device.conditions)
        if device.failures:
            result["bindingFailureConditions"] = list(device.failures)
    if given.consumed is not None:
        result["shareID"] = share()
        if given.consumed:
            capacity = device.kind.capacity
            result["consumedCapacity"] = {name: text_of(value, capacity[name].value) for name, value in given.consumed.items()}
    return result


def _plain(value: Any) -> Any:
    """As JSON has it, with lists."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _configs(wanted: Wanted, allocation: Allocation, classes: Mapping[str, DeviceClass]) -> list[Obj]:
    """Parameters of the classes that were used, then those of the claim that are for what was used."""
    found: list[Obj] = []
    used = {given.ask.label for given in allocation}
    for alternatives in wanted.requests:
        chosen = next((ask for ask in alternatives if ask.label in used), None)
        known = classes.get(chosen.class_name) if chosen is not None else None
        if known is not None:
            found += [_config("FromClass", config, ()) for config in known.spec.config]
    for config in wanted.spec.devices.config:
        if not config.requests:
            found.append(_config("FromClaim", config, ()))
        for alternatives in wanted.requests:
            chosen = next((ask for ask in alternatives if ask.label in used), alternatives[0])
            if chosen.request in config.requests or chosen.label in config.requests:
                found.append(_config("FromClaim", config, config.requests))
    return found


def _config(source: str, config: DeviceClaimConfiguration, requests: tuple[str, ...]) -> Obj:
    return {
        "source": source, **({"requests": list(requests)} if requests else {}),
        **({"opaque": config.opaque} if config.opaque is not None else {}),
    }  # fmt: skip


def node_selector(allocation: Allocation, node: str) -> Obj | None:
    """From which nodes all of the devices can be used; None: from every one."""
    fields: list[Obj] = []
    expressions: list[Obj] = []
    for given in allocation:
        place = given.device.place
        if place.node or given.device.binds:
            return {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}
        if place.selector is not None:
            term = _plain(place.selector.node_selector_terms[0])
            for known, more in ((fields, term.get("matchFields")), (expressions, term.get("matchExpressions"))):
                known += [one for one in more or () if all(_key(one) != _key(other) for other in known)]
    if not fields and not expressions:
        return None
    term = {**({"matchExpressions": expressions} if expressions else {}), **({"matchFields": fields} if fields else {})}
    return {"nodeSelectorTerms": [term]}


def _key(requirement: Obj) -> tuple[str, str, frozenset[str]]:
    return requirement["key"], requirement["operator"], frozenset(requirement.get("values") or ())


def selector_of(status: Obj) -> NodeSelector | None:
    """The node selector of an allocation in the form of the API."""
    found = status.get("nodeSelector")
    return convert(found, NodeSelector) if found is not None else None
