"""Things that happen while `koord sandbox up` runs, so that there is always something to explain on its simulated nodes.

Jobs come and end; a gang waits for a member that never comes; a quota is full; a pod is larger than any node; a node gets hot every two
minutes, and its best-effort pods are suppressed (koordlet's own strategy decides, on what the simulated node uses); and every two minutes
an important pod pushes a lesser one out.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koord.api.kinds import ELASTICQUOTAS, NAMESPACES, PODGROUPS, PODS
from koord.api.names import LABEL_POD_GROUP, LABEL_POD_QOS, LABEL_QUOTA_NAME
from koord.kube.errors import AlreadyExists, ApiError, NotFound
from roles.sandbox import objects
from roles.sandbox.builders import APP_LABEL, SCHEDULER, container, obj
from roles.sandbox.modelled.deciding import Agent, listed
from roles.sandbox.nodes import fleet
from roles.sandbox.nodes.fleet import CURVE_ANNOTATION, RUN_SECONDS_ANNOTATION, USAGE_PERCENT_ANNOTATION
from roles.sandbox.process_kubelet.node import SANDBOX_LABEL

if TYPE_CHECKING:
    from roles.sandbox.compose import Sandbox

log = logging.getLogger(__name__)

Obj = dict[str, Any]
ROLE = "koordlet-simulated"
NAMESPACE = "teams"
STEP_SECONDS = 1.0
CYCLE_SECONDS = 120.0
HOT_FROM, HOT_UNTIL = 20.0, 80.0
"""Of each cycle, in seconds."""
RUSH_AT = 45.0
HOT_PERCENT = 220
"""Of their requests, for the services of the hot node: more than the CPUs that they asked for."""
JOB_SECONDS = 75


def pod(name: str, namespace: str, cpu: str, *, labels: Obj | None = None, node: str = "", seconds: int = 0, priority: str = "") -> Obj:
    """A pod for the simulated nodes, placed by koord's scheduler, on `node` if one is named."""
    notes = {CURVE_ANNOTATION: "steady", **({RUN_SECONDS_ANNOTATION: str(seconds)} if seconds else {})}
    amounts = {"cpu": cpu, "memory": "1Gi"}
    spec: Obj = {
        "restartPolicy": "Never",
        "schedulerName": SCHEDULER,
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {SANDBOX_LABEL: "simulated", **({"kubernetes.io/hostname": node} if node else {})},
        "containers": [container("main", "sandbox/job", amounts, amounts)],
    }
    if priority:
        spec["priorityClassName"] = priority
    return obj(PODS, name, namespace, labels={APP_LABEL: name, **(labels or {})}, annotations=notes, spec=spec)


def standing() -> Iterator[tuple[Any, Obj]]:
    """What waits from the beginning: kinds and objects."""
    yield PODGROUPS, obj(PODGROUPS, "training", NAMESPACE, spec={"minMember": 4})
    for number in range(3):
        yield PODS, pod(f"training-{number}", NAMESPACE, "2", labels={LABEL_POD_GROUP: "training"})
    bounds = {"min": {"cpu": "2", "memory": "4Gi"}, "max": {"cpu": "4", "memory": "8Gi"}}
    yield ELASTICQUOTAS, obj(ELASTICQUOTAS, "team-a", NAMESPACE, spec=bounds)
    for number in range(3):
        yield PODS, pod(f"report-{number}", NAMESPACE, "2", labels={LABEL_QUOTA_NAME: "team-a"})
    yield PODS, pod("too-big", NAMESPACE, "5000")


class Activity:
    """Keeps a sandbox busy until it is cancelled. An object that cannot be written is tried again in the next step."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.client = sandbox.client
        self.jobs = max(4, sandbox.scenario.nodes.count // 2)
        self.number = 0
        self.hot = fleet.node_name(0)
        self.full = fleet.node_name(sandbox.scenario.nodes.count - 1)
        self.agent: Agent | None = None
        self.heated = self.rushed = False
        self.directory: Path = sandbox.scratch / "simulated-agent"

    async def start(self) -> None:
        """Make what waits, and a port at which the simulated node's agent tells what it decided. Raises ApiError."""
        ops = self.sandbox.endpoint(ROLE)
        await ops.start()
        self.sandbox.endpoints[ROLE] = f"http://127.0.0.1:{ops.port}"
        self.sandbox.undo(ops.stop)
        await self._try(self.client.create(NAMESPACES, objects.namespace(NAMESPACE)))
        for kind, waiting in standing():
            await self._try(self.client.create(kind, waiting, NAMESPACE))

    async def run(self) -> None:
        """Live for ever."""
        began = time.monotonic()
        while True:
            at = (time.monotonic() - began) % CYCLE_SECONDS
            await self._jobs()
            await self._heat(hot=HOT_FROM <= at < HOT_UNTIL)
            await self._rush(on=at >= RUSH_AT)
            await asyncio.sleep(STEP_SECONDS)

    async def _try(self, step: Awaitable[Any]) -> None:
        try:
            await step
        except (AlreadyExists, NotFound):
            return
        except ApiError as error:
            log.info("sandbox activity: %s", error)

    def _pods(self, namespace: str, app: str = "") -> list[Obj]:
        return [
            one
            for one in self.sandbox.pods.list()
            if one["metadata"]["namespace"] == namespace and app in ("", (one["metadata"].get("labels") or {}).get(APP_LABEL))
        ]

    async def _jobs(self) -> None:
        """As many batch jobs as ever: those that have ended make room for new ones, some of them on the node that gets hot."""
        where = self.sandbox.scenario.batch.namespace
        mine = self._pods(where, "job")
        for one in mine:
            if (one.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
                await self._try(self.client.delete(PODS, one["metadata"]["name"], where))
        if len(mine) < self.jobs:
            self.number += 1
            made = pod(f"job-{self.number:04d}", where, "2", seconds=JOB_SECONDS, node=self.hot if self.number % 4 == 0 else "")
            made["metadata"]["labels"][APP_LABEL] = "job"
            await self._try(self.client.create(PODS, made, where))

    async def _heat(self, *, hot: bool) -> None:
        """The services of one node use more than they asked for, then what they usually do."""
        if hot != self.heated:
            self.heated = hot
            for one in self._on(self.hot, batch=False):
                note = {"metadata": {"annotations": {USAGE_PERCENT_ANNOTATION: str(HOT_PERCENT) if hot else None}}}
                meta = one["metadata"]
                await self._try(self.client.patch(PODS, meta["name"], note, meta["namespace"]))
            self.agent = None
        self._suppress()

    def _on(self, node: str, *, batch: bool) -> list[Obj]:
        """Running pods of a simulated node, best effort or not."""
        return [
            one
            for one in self.sandbox.pods.by_index("sandbox/node", node)
            if (one.get("status") or {}).get("phase") == "Running"
            and ((one["metadata"].get("labels") or {}).get(LABEL_POD_QOS) == "BE") is batch
        ]

    def _suppress(self) -> None:
        """koordlet's strategy on the hot node, for as long as the same best-effort pods run there."""
        services, batch = self._on(self.hot, batch=False), self._on(self.hot, batch=True)
        known = {pod.uid for pod in self.agent.pods if pod.best_effort} if self.agent is not None else None
        if not batch or not services:
            return
        now, period = time.time(), self.sandbox.scenario.nodes.period_seconds
        if self.agent is None or known != {one["metadata"]["uid"] for one in batch}:
            shutil.rmtree(self.directory, ignore_errors=True)
            pods = [listed(*_names(one), "LS") for one in services] + [listed(*_names(one), "BE") for one in batch]
            strategy = self.sandbox.scenario.slo_controller_config.get("resource-threshold-config", {}).get("clusterStrategy", {})
            threshold = {**strategy, "enable": True, "cpuSuppressPolicy": "cfsQuota"}
            self.agent = Agent(self.directory, self.hot, self.sandbox.scenario.nodes.cpus, threshold, pods)
        used = [sum(fleet.usage(one, now, period).cpu for one in group) / 1000 for group in (services, batch)]
        self.agent.decide(now, *used)
        recorder = self.sandbox.recorders[ROLE]
        for record in self.agent.records:
            recorder.record(record)
        self.agent.records.clear()

    async def _rush(self, *, on: bool) -> None:
        """An important pod comes to a full node and pushes a lesser one out; then both go, and the lesser one comes again."""
        cpu = f"{max(self.sandbox.scenario.nodes.cpus * 3 // 5, 1)}"
        if on and not self.rushed:
            await self._try(self.client.create(PODS, pod("urgent", NAMESPACE, cpu, node=self.full, priority="koord-prod"), NAMESPACE))
        elif not on and (self.rushed or not self._pods(NAMESPACE, "patient")):
            await self._try(self.client.delete(PODS, "urgent", NAMESPACE))
            await self._try(self.client.create(PODS, pod("patient", NAMESPACE, cpu, node=self.full, priority="koord-mid"), NAMESPACE))
        self.rushed = on


def _names(one: Obj) -> tuple[str, str, str]:
    return one["metadata"]["name"], one["metadata"]["namespace"], one["metadata"]["uid"]
