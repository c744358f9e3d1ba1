"""Nodes put back before koord is taken off them: each koordlet pod restores in an init container, then only observes; what the manager
offered on the Node object goes.

koordlet leaves what it wrote when it ends, so that an upgrade changes nothing; so somebody has to say that this end is the last.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any

from koord.api import names
from koord.api.kinds import DAEMONSETS, NODES, PODS, RESOURCESLICES, Kind
from koord.kube.client import Client
from koord.kube.errors import ApiError, NotFound
from roles.manager.noderesource.devices import GPU_LABELS, GPU_NAMES
from roles.manager.slices.slices import MANAGED_BY, MANAGER

NAME, INIT = "koordlet", "restore"
_REVISIONS = Kind("apps", "v1", "ControllerRevision", "controllerrevisions", True)
#: Where the init container leaves its report, which the kubelet shows as its message. Named by koordlet too.
_REPORT = {"name": "KOORD_RESTORE_REPORT", "value": "/dev/termination-log"}
#: Has that container remove koordlet's own files of the node, too; versions that do not know it take no notice.
_CLEAN = {"name": "KOORD_RESTORE_CLEAN", "value": "true"}
#: After that nothing is written on the node any more.
_WATCHING = ("--observe-only", "--tsdb-path=", "--prediction-checkpoint-filepath=", "--mode=observe", "--strategy-modes=")
_PAUSE = 1.0
#: Reports are read this often (seconds), and whenever a node is done.
_LISTEN = 5.0
_SHOWN = 10
# Of a container that runs once: what only one that serves can have.
_SERVING = ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "ports")
_UNPRIVILEGED = "--observe-only"
#: Annotations that the manager writes on Nodes.
_ANNOTATED = (
    names.ANNOTATION_NODE_CPU_NORMALIZATION_RATIO,
    names.ANNOTATION_NODE_RESOURCE_AMPLIFICATION_RATIO,
    names.ANNOTATION_NODE_RAW_ALLOCATABLE,
    names.ANNOTATION_NODE_ORIGIN_EXTENDED_ALLOCATABLE,
    names.ANNOTATION_NODE_ABNORMAL,
)
_OFFERED = (
    names.RESOURCE_BATCH_CPU,
    names.RESOURCE_BATCH_MEMORY,
    names.RESOURCE_MID_CPU,
    names.RESOURCE_MID_MEMORY,
    *GPU_NAMES,
    names.RESOURCE_RDMA,
)

Obj = dict[str, Any]


def restoring(daemonset: Obj, before: Obj | None = None) -> Obj | None:
    """The merge patch by which every pod restores its node and then writes nothing; None where no pod can have written.

    Pods that only observe have no rights over their node. `before` is the template of the last ones that had: theirs restore, and then
    have these rights for nothing.
    """
    now = daemonset["spec"]["template"]
    template, agent = now, _agent(now)
    if observing(now):
        if before is None:
            return None
        image: Obj = {key: agent[key] for key in ("image", "imagePullPolicy") if key in agent}
        template, agent = before, {**_agent(before), **image}
    arguments = list(agent.get("args") or ())
    once = {key: value for key, value in agent.items() if key not in _SERVING}
    once |= {"name": INIT, "args": [*arguments, "--restore"], "env": [*(agent.get("env") or ()), _REPORT, _CLEAN]}
    watching = {**agent, "args": [*arguments, *_WATCHING]}
    containers = [watching if container["name"] == agent["name"] else container for container in template["spec"]["containers"]]
    pod = {"spec": {"initContainers": [once], "containers": containers}}
    if template is not now:
        pulling = {key: now["spec"][key] for key in ("imagePullSecrets",) if key in now["spec"]}
        pod = _instead(now, {**template, "spec": {**template["spec"], **pulling, **pod["spec"]}})
    # All nodes at once: nothing is offered or squeezed any more that would have to stay covered.
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%", "maxSurge": 0}}
    return {"spec": {"updateStrategy": strategy, "template": pod}}


def _instead(now: Obj, wanted: Obj) -> Obj:
    """The merge patch that makes one object of another."""
    patch: Obj = {key: None for key in now if key not in wanted}
    for key, value in wanted.items():
        there = now.get(key)
        patch[key] = _instead(there, value) if isinstance(there, dict) and isinstance(value, dict) else value
    return patch


def observing(template: Obj) -> bool:
    """Whether pods of a template have no rights over their node, and write nothing."""
    return _UNPRIVILEGED in (_agent(template).get("args") or ())


async def acting_before(client: Client, daemonset: Obj) -> Obj | None:
    """The last template of a DaemonSet whose pods could write on their nodes, as far as its history goes. Raises ApiError."""
    metadata = daemonset["metadata"]
    found = []
    for revision in (await client.list(_REVISIONS, metadata["namespace"])).items:
        if any(owner.get("uid") == metadata["uid"] for owner in revision["metadata"].get("ownerReferences") or ()):
            template = ((revision.get("data") or {}).get("spec") or {}).get("template") or {}
            if (template.get("spec") or {}).get("containers") and not observing(template):
                found.append((revision.get("revision") or 0, template))
    if not found:
        return None
    # how a revision says that it is a whole template
    return {key: value for key, value in max(found, key=lambda one: one[0])[1].items() if key != "$patch"}


async def plan(client: Client, daemonset: Obj) -> Obj | None:
    """How its pods are made to restore (see `restoring`). Raises ApiError."""
    before = await acting_before(client, daemonset) if observing(daemonset["spec"]["template"]) else None
    return restoring(daemonset, before)


def under_way(daemonset: Obj) -> bool:
    """Whether an uninstallation before this one has its pods restore, and then only watch, already."""
    template = daemonset["spec"]["template"]
    return any(container["name"] == INIT for container in template["spec"].get("initContainers") or ()) and observing(template)


def _agent(template: Obj) -> Obj:
    containers = template["spec"]["containers"]
    found: Obj = next((container for container in containers if container["name"] == NAME), containers[0])
    return found


def progress(daemonset: Obj) -> tuple[int, int]:
    """(nodes that are restored, nodes that have a koordlet)."""
    status, metadata = daemonset.get("status") or {}, daemonset["metadata"]
    wanted = int(status.get("desiredNumberScheduled") or 0)
    if int(status.get("observedGeneration") or 0) < int(metadata.get("generation") or 0):
        return 0, max(wanted, 1)
    # A pod is ready once its init container has ended well.
    return min(int(status.get("updatedNumberScheduled") or 0), int(status.get("numberReady") or 0)), wanted


async def restore_nodes(client: Client, namespace: str, patience: float, say: Callable[[str], None]) -> bool:
    """Whether every node that has a koordlet was put back within `patience` seconds. Tells `say` what it waits for."""
    try:
        daemonset = await client.get(DAEMONSETS, NAME, namespace)
        if not under_way(daemonset):
            patch = await plan(client, daemonset)
            if patch is None:
                return True
            if observing(daemonset["spec"]["template"]):
                say("koordlet only observes by now: pods with the rights that it had before put back what it wrote then")
            await client.patch(DAEMONSETS, NAME, patch, namespace)
        loop = asyncio.get_running_loop()
        end, told, heard, listened = loop.time() + patience, "", set[str](), 0.0
        while True:
            done, wanted = progress(await client.get(DAEMONSETS, NAME, namespace))
            line = f"nodes put back: {done} of {wanted}"
            if line != told or loop.time() - listened >= _LISTEN:
                listened = loop.time()
                await _listen(client, namespace, say, heard)
            if line != told:
                say(line)
                told = line
            if done >= wanted:
                return True
            if loop.time() > end:
                await _late(client, namespace, say)
                return False
            await asyncio.sleep(_PAUSE)
    except NotFound:
        return True  # no koordlet, nothing to put back
    except ApiError as error:
        say(f"nodes cannot be put back: {error}")
        return False


def withdrawal(node: Obj) -> Obj | None:
    """The merge patch of a Node's status that takes the manager's resources off it and amplified amounts back; None where it has none."""
    status = node.get("status") or {}
    fields: dict[str, dict[str, str | None]] = {
        field: {name: None for name in _OFFERED if name in (status.get(field) or {})} for field in ("capacity", "allocatable")
    }
    present = status.get("allocatable") or {}
    fields["allocatable"] |= {name: amount for name, amount in _raw(node).items() if present.get(name, amount) != amount}
    wanted = {field: gone for field, gone in fields.items() if gone}
    return {"status": wanted} if wanted else None


def _raw(node: Obj) -> dict[str, str]:
    """What the node offered before amplification."""
    try:
        raw = json.loads((node["metadata"].get("annotations") or {}).get(names.ANNOTATION_NODE_RAW_ALLOCATABLE) or "{}")
    except ValueError:
        return {}
    return {name: amount for name, amount in raw.items() if isinstance(amount, str)} if isinstance(raw, dict) else {}


def unmarking(node: Obj) -> Obj | None:
    """The merge patch that takes the manager's annotations and labels off a Node, and the descheduler's cordon with its note; None where
    it has none."""
    metadata: Obj = node["metadata"]
    noted, labelled = metadata.get("annotations") or {}, metadata.get("labels") or {}
    cordoned = names.ANNOTATION_DRAIN_CORDONED in noted
    fields = {
        "annotations": {name: None for name in (*_ANNOTATED, names.ANNOTATION_DRAIN_CORDONED) if name in noted},
        "labels": {name: None for name in GPU_LABELS if name in labelled},
    }
    wanted: Obj = {"metadata": {field: gone for field, gone in fields.items() if gone}}
    return {**wanted, "spec": {"unschedulable": None}} if cordoned else wanted if wanted["metadata"] else None


async def withdraw_resources(client: Client, say: Callable[[str], None]) -> bool:
    """Whether no node offers koord's resources or bears its marks any more. Pods that have some keep running."""
    failed = changed = 0
    try:
        nodes = (await client.list(NODES)).items
    except ApiError as error:
        say(f"koord's resources cannot be taken off nodes: {error}")
        return False
    for node in nodes:
        status, metadata = withdrawal(node), unmarking(node)
        if status is None and metadata is None:
            continue
        try:
            if status is not None:
                await client.patch(NODES, node["metadata"]["name"], status, subresource="status")
            if metadata is not None:
                await client.patch(NODES, node["metadata"]["name"], metadata)
            changed += 1
        except NotFound:
            continue
        except ApiError as error:
            failed += 1
            say(f"koord's resources and annotations cannot be taken off node {node['metadata']['name']}: {error}")
    if changed:
        say(f"koord's resources and annotations taken off {changed} nodes")
    return not failed


async def withdraw_devices(client: Client, say: Callable[[str], None]) -> bool:
    """Whether no devices are published any more: who allocated them would find nobody who prepares them."""
    try:
        published = (await client.list(RESOURCESLICES, label_selector=f"{MANAGED_BY}={MANAGER}")).items
        for entry in published:
            with contextlib.suppress(NotFound):
                await client.delete(RESOURCESLICES, entry["metadata"]["name"])
    except NotFound:
        return True  # not served here
    except ApiError as error:
        say(f"ResourceSlices of koord's cannot be deleted: {error}")
        return False
    if published:
        say(f"deleted {len(published)} ResourceSlices of nodes' devices")
    return True


async def _late(client: Client, namespace: str, say: Callable[[str], None]) -> None:
    """Name the nodes that are not done, and where to look."""
    pods = (await client.list(PODS, namespace, label_selector=f"koord-app={NAME}")).items
    late = [pod for pod in pods if not _ready(pod)]
    for pod in late[:_SHOWN]:
        say(f"not yet: node {pod['spec'].get('nodeName')}; kubectl -n {namespace} logs {pod['metadata']['name']} -c {INIT}")
    if len(late) > _SHOWN:
        say(f"and {len(late) - _SHOWN} more nodes")


async def _listen(client: Client, namespace: str, say: Callable[[str], None], heard: set[str]) -> None:
    """Say what init containers reported of single files, each line once."""
    for pod in (await client.list(PODS, namespace, label_selector=f"koord-app={NAME}")).items:
        for line in reports(pod):
            if line not in heard:
                heard.add(line)
                say(line)


def reports(pod: Obj) -> list[str]:
    """What a pod's restore says was not put back, with its node: file and reason. Empty while all is well."""
    lines: list[str] = []
    for status in (pod.get("status") or {}).get("initContainerStatuses") or ():
        if status.get("name") != INIT:
            continue
        for state in (status.get("state") or {}, status.get("lastState") or {}):
            ended = state.get("terminated") or {}
            first, *rest = (ended.get("message") or "").strip().splitlines() or [""]
            lines += [first] * bool(first and ended.get("exitCode")) + rest
    return [f"node {pod['spec'].get('nodeName')}: {line}" for line in dict.fromkeys(lines)]


def _ready(pod: Obj) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions)
