"""Looking at a cluster through its API server. Every question fails by itself: what cannot be read is a fact, too."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

import orjson

from koord.api import names
from koord.api.kinds import (
    CONFIGMAPS,
    CUSTOMRESOURCEDEFINITIONS,
    DAEMONSETS,
    DEPLOYMENTS,
    DEVICECLASSES,
    LEASES,
    NODEMETRICS,
    NODES,
    PODS,
    PRIORITYCLASSES,
    SERVICEACCOUNTS,
    Kind,
)
from koord.kube.client import Client
from koord.kube.errors import ApiError, Forbidden, NotFound, from_response
from roles.tools import manifests
from roles.tools.doctor import webhooks
from roles.tools.doctor.access import Access
from roles.tools.doctor.facts import ClusterFacts, NodeFacts, Obj
from roles.tools.doctor.powers import NODES_PROXY, POWERS

BY_CLASS = "deviceclass.resource.kubernetes.io/"  # followed by the name of a DeviceClass: a resource
MAX_KUBELETS = 20
"""Kubelets that are asked in a big cluster; what differs shows among these."""
TIMEOUT = 15.0  # seconds for one request


async def gather(
    client: Client,
    *,
    namespace: str,
    roles: Sequence[str],
    acting_as: str = "",
    security: bool = False,
    clock: Callable[[], float] = time.time,
) -> ClusterFacts:
    """Everything about a cluster. `roles`: whose rights are looked at; `acting_as`: who is impersonated for that; `security`: what stolen
    tokens could do, and how the roles run."""
    facts = ClusterFacts(server=client.transport.config.server, namespace=namespace, now=clock())
    facts.expected_crds = list(manifests.documents("crds"))
    own = list(manifests.rendered(namespace=namespace, crds=False))
    facts.expected_classes = {d["metadata"]["name"]: d["value"] for d in own if d["kind"] == "PriorityClass"}
    try:
        await _server(client, facts, clock)
    except (ApiError, ValueError) as error:
        facts.problems["server"] = str(error) or type(error).__name__
        return facts
    await asyncio.gather(
        _into(facts, "crds", _crds(client, facts)),
        _into(facts, "classes", _classes(client, facts)),
        _into(facts, "workloads", _workloads(client, facts)),
        _into(facts, "leases", _leases(client, facts)),
        _into(facts, "webhooks", webhooks.gather(client, facts)),
        _into(facts, "slo", _slo(client, facts)),
        _into(facts, "nodemetrics", _node_metrics(client, facts)),
        _into(facts, "pending", _pending(client, facts)),
        _into(facts, "policy", _policy(client, facts)),
        _into(facts, "rights", _rights(client, facts, own, roles, acting_as)),
        _into(facts, "powers", _powers(client, facts, roles, security)),
        *([_into(facts, "installed", _installed(client, facts))] if security else []),
    )
    facts.nodes = list(await asyncio.gather(*(_kubelet(client, name) for name in facts.node_names[:MAX_KUBELETS])))
    return facts


async def _into(facts: ClusterFacts, what: str, call: Awaitable[None]) -> None:
    try:
        await call
    except ApiError as error:
        facts.problems[what] = str(error) or type(error).__name__


async def _server(client: Client, facts: ClusterFacts, clock: Callable[[], float]) -> None:
    begun = clock()
    response = await client.transport.request("GET", "/version", timeout=TIMEOUT)
    ended = clock()
    if response.status == 401:
        raise from_response(response.status, response.body)
    if response.status == 200:
        facts.version = str(orjson.loads(response.body).get("gitVersion") or "")
    text = response.headers.get("date") or response.headers.get("Date")
    if text:
        # The server tells whole seconds, cut off: half a second is added, and remains as doubt.
        told = parsedate_to_datetime(text).timestamp() + 0.5
        facts.skew = (begun + ended) / 2 - told
        facts.skew_error = (ended - begun) / 2 + 0.5
        facts.now = ended - facts.skew if abs(facts.skew) > facts.skew_error else ended
    facts.user = await Access(client).whoami()


async def _crds(client: Client, facts: ClusterFacts) -> None:
    facts.crds = {crd["metadata"]["name"]: crd for crd in (await client.list(CUSTOMRESOURCEDEFINITIONS)).items}


async def _classes(client: Client, facts: ClusterFacts) -> None:
    facts.classes = {c["metadata"]["name"]: int(c.get("value") or 0) for c in (await client.list(PRIORITYCLASSES)).items}


async def _workloads(client: Client, facts: ClusterFacts) -> None:
    for deployment in (await client.list(DEPLOYMENTS, facts.namespace)).items:
        name, status = deployment["metadata"]["name"], deployment.get("status") or {}
        if name.startswith("koord-"):
            facts.workloads[name] = (int((deployment.get("spec") or {}).get("replicas", 1)), int(status.get("readyReplicas") or 0))
    for daemon in (await client.list(DAEMONSETS, facts.namespace)).items:
        status = daemon.get("status") or {}
        if daemon["metadata"]["name"].startswith("koordlet"):
            facts.workloads[daemon["metadata"]["name"]] = (
                int(status.get("desiredNumberScheduled") or 0),
                int(status.get("numberReady") or 0),
            )


async def _powers(client: Client, facts: ClusterFacts, roles: Sequence[str], security: bool) -> None:
    """All of the table, or only the worst of it; nothing of any role where the server refuses nobody."""
    if await Access(client).unguarded(NODES_PROXY):
        facts.unguarded = True
        return
    asked = list(dict.fromkeys(question for wanted in POWERS.values() for question in wanted)) if security else [NODES_PROXY]
    access = Access(client)
    for role in roles:
        facts.powers[role] = await access.held(role, asked, facts)


async def _installed(client: Client, facts: ClusterFacts) -> None:
    found = [*(await client.list(DEPLOYMENTS, facts.namespace)).items, *(await client.list(DAEMONSETS, facts.namespace)).items]
    facts.installed = [workload for workload in found if workload["metadata"]["name"].startswith("koord")]
    try:
        facts.fenced = [
            policy["metadata"]["name"] for policy in (await client.list(manifests.KINDS["NetworkPolicy"], facts.namespace)).items
        ]
    except NotFound:
        facts.fenced = []


async def _optional(client: Client, kind: Kind, name: str, namespace: str | None = None) -> Obj | None:
    try:
        return await client.get(kind, name, namespace)
    except NotFound:
        return None


async def _leases(client: Client, facts: ClusterFacts) -> None:
    for name in manifests.LEASES:
        facts.leases[name] = await _optional(client, LEASES, name, facts.namespace)


async def _slo(client: Client, facts: ClusterFacts) -> None:
    found = await _optional(client, CONFIGMAPS, names.CONFIGMAP_SLO_CONTROLLER_CONFIG, facts.namespace)
    facts.slo_data = {str(k): str(v) for k, v in (found.get("data") or {}).items()} if found is not None else None


async def _node_metrics(client: Client, facts: ClusterFacts) -> None:
    nodes = (await client.list(NODES)).items
    facts.node_names = sorted(node["metadata"]["name"] for node in nodes)
    facts.offered = frozenset(
        _today(name)
        for node in nodes
        for name, amount in ((node.get("status") or {}).get("allocatable") or {}).items()
        if str(amount) != "0"
    )
    try:
        facts.node_metrics = {one["metadata"]["name"]: one for one in (await client.list(NODEMETRICS)).items}
    except NotFound:
        return  # not installed: told by the definitions


async def _pending(client: Client, facts: ClusterFacts) -> None:
    """What pods without a node request that some nodes have and others have not: extended resources. Devices of a class that stands for
    a resource are offered in ResourceSlices."""
    with contextlib.suppress(NotFound, Forbidden):
        classes = (await client.list(DEVICECLASSES)).items
        given = {(one.get("spec") or {}).get("extendedResourceName") for one in classes}
        facts.by_class = frozenset(given | {BY_CLASS + one["metadata"]["name"] for one in classes})
    for pod in (await client.list(PODS, field_selector="spec.nodeName=,status.phase=Pending")).items:
        meta, spec = pod["metadata"], pod.get("spec") or {}
        wanted = {
            _today(name)
            for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
            for name, amount in ((container.get("resources") or {}).get("requests") or {}).items()
            if "/" in name and str(amount) != "0" and name not in names.COUNTED_BY_CARD
        }
        for name in wanted:
            facts.requested.setdefault(name, []).append(f"{meta['namespace']}/{meta['name']}")


def _today(resource: str) -> str:
    """Its name, where a former release called it otherwise."""
    return names.DEPRECATED_RESOURCES.get(resource, resource)


async def _policy(client: Client, facts: ClusterFacts) -> None:
    facts.own_node_policy = await _optional(client, manifests.KINDS["ValidatingAdmissionPolicy"], "koordlet-own-node") is not None


async def _rights(client: Client, facts: ClusterFacts, own: list[Obj], roles: Sequence[str], acting_as: str) -> None:
    with contextlib.suppress(Forbidden):
        facts.accounts = frozenset(one["metadata"]["name"] for one in (await client.list(SERVICEACCOUNTS, facts.namespace)).items)
    access = Access(client)
    facts.rights = list(await asyncio.gather(*(access.of(role, own, facts, acting_as) for role in roles)))


async def _kubelet(client: Client, name: str) -> NodeFacts:
    """What a kubelet says of its configuration, asked through the API server."""
    try:
        status, body = await client.raw("GET", f"/api/v1/nodes/{quote(name, safe='')}/proxy/configz", timeout=TIMEOUT)
    except ApiError as error:
        return NodeFacts(name, error=str(error))
    try:
        answer: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        answer = {}
    if status != 200:
        message = answer.get("message") if isinstance(answer, dict) else ""
        return NodeFacts(name, error=f"HTTP {status}{f': {message}' if message else ''}", forbidden=status in (401, 403))
    config = answer.get("kubeletconfig") if isinstance(answer, dict) else None
    if not isinstance(config, dict):
        return NodeFacts(name, error="/configz has no kubeletconfig")
    return NodeFacts(name, str(config.get("cgroupDriver") or ""), str(config.get("cpuManagerPolicy") or ""))
