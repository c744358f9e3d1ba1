"""What the page looks at: watches with the user's own rights, the roles' decisions, and an hour of history. All of its I/O."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import orjson

from koord.api.kinds import ELASTICQUOTAS, NODEMETRICS, NODES, NODESLOS, PODS
from koord.api.objects import Node, NodeMetric, NodeSLO, Pod
from koord.api.objects_meta import Object
from koord.decisions.record import Record, encode
from koord.kube.client import Client
from koord.kube.errors import ApiError
from koord.kube.informers import InformerFactory
from roles.tools import explain, gather, reach, render
from roles.tools.place import SYSTEM_NAMESPACE
from roles.tools.reach import Endpoint
from roles.tools.top.rows import row
from roles.tools.ui import view

log = logging.getLogger(__name__)

SLICE = 50
"""Nodes that are worked out at once: a page that asks meanwhile does not wait for the others."""
REFRESH_SECONDS = 1.0
FEED_SECONDS = 5.0
FIND_SECONDS = 60.0
HISTORY_SECONDS, HISTORY_POINTS = 10.0, 360
FEED_LENGTH = 300
STALE_SECONDS = 30.0
"""Rows are worked out again after so long even if nothing happened: marks depend on the age of reports."""


def _newest_of(records: Iterable[Record]) -> list[Record]:
    """The newest records, oldest first. Half of the places are for nodes, which are decided on all the time, half for everything else."""
    ordered = sorted(records, key=lambda record: record.time)
    nodes = [record for record in ordered if record.subject.kind == "Node"][-FEED_LENGTH // 2 :]
    others = [record for record in ordered if record.subject.kind != "Node"][-FEED_LENGTH // 2 :]
    return sorted((*nodes, *others), key=lambda record: record.time)


class Watching:
    """A cluster as one user may see it."""

    def __init__(self, client: Client, endpoints: Sequence[Endpoint] = (), system: str = SYSTEM_NAMESPACE) -> None:
        self.client = client
        self.system = system
        """Where koord lives."""
        self.given = list(endpoints)
        self.informers = InformerFactory(client)
        self.nodes = self.informers.informer(NODES, Node)
        self.metrics = self.informers.informer(NODEMETRICS, NodeMetric, optional=True)
        self.slos = self.informers.informer(NODESLOS, NodeSLO, optional=True)
        self.pods = self.informers.informer(PODS, Pod, field_selector="status.phase!=Succeeded,status.phase!=Failed")
        self.quotas = self.informers.informer(ELASTICQUOTAS, optional=True)
        self.pods.index("node", lambda pod: pod.spec.node_name or "")
        self.rows: dict[str, tuple[int, list[Any]]] = {}
        """Node: (revision at which it last changed, its columns)."""
        self.gone: deque[tuple[int, str]] = deque(maxlen=10_000)
        self.revision = 0
        self.ready = False
        """Whether everything has been read and worked out once."""
        self.feed: list[Record] = []
        self.history: deque[dict[str, float]] = deque(maxlen=HISTORY_POINTS)
        self.problems: list[str] = []
        self.offered: dict[str, bool] = {}
        """What else the page may ask for."""
        self._dirty: set[str] = set()
        self._whole = b""
        self._whole_at = -1
        self._observe()

    def _observe(self) -> None:
        def changed(*objects: Object) -> None:
            self._dirty.add(objects[-1].metadata.name)

        for informer in (self.nodes, self.metrics, self.slos):
            informer.add_handler(changed, changed, changed)
        self.pods.add_handler(self._moved, self._moved, self._moved)

    def _moved(self, *pods: Pod) -> None:
        self._dirty.update(pod.spec.node_name for pod in pods if pod.spec.node_name)

    # --- what runs --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Watch until cancelled."""
        self.informers.start()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._refresh())
                group.create_task(self._ask())
        finally:
            await self.informers.stop()

    async def _refresh(self) -> None:
        aged = kept = time.monotonic()
        while True:
            now = time.monotonic()
            if now - aged > STALE_SECONDS:
                aged = now
                self._dirty.update(self.rows)
            await self.refresh()
            if self.ready and (not self.history or now - kept >= HISTORY_SECONDS):
                kept = now
                self._keep()
            await asyncio.sleep(REFRESH_SECONDS)

    async def refresh(self) -> None:
        """Work out the nodes that changed, some at a time."""
        known = self.nodes.synced and self.metrics.synced and self.pods.synced
        dirty, now = sorted(self._dirty), time.time()
        self._dirty.clear()
        for start in range(0, len(dirty), SLICE):
            for name in dirty[start : start + SLICE]:
                self._work_out(name, now)
            await asyncio.sleep(0)
        self.ready = self.ready or known

    def _work_out(self, name: str, now: float) -> None:
        node = self.nodes.get(name)
        if node is None:
            if self.rows.pop(name, None) is not None:
                self.revision += 1
                self.gone.append((self.revision, name))
            return
        pods = self.pods.by_index("node", name)
        made = view.node(row(node, self.metrics.get(name), self.slos.get(name), pods, now), len(pods), now)
        before = self.rows.get(name)
        if before is None or before[1] != made:
            self.revision += 1
            self.rows[name] = (self.revision, made)

    def _keep(self) -> None:
        sums = view.totals([columns for _, columns in self.rows.values()])
        waiting = sum(1 for pod in self.pods.by_index("node", "") if pod.status.phase in ("", "Pending"))
        wanted = ("cpu", "used", "prod", "mid", "batch", "system", "offered", "requested")
        self.history.append({"time": round(time.time()), **{name: sums[name] for name in wanted}, "pending": waiting})

    async def _ask(self) -> None:
        """Ask the roles again and again what they decided; look for them anew from time to time, leaders change."""
        found, looked = list(self.given), -FIND_SECONDS
        while True:
            problems: list[str] = []
            if not self.given and time.monotonic() - looked >= FIND_SECONDS:
                looked = time.monotonic()
                found, problems = await self._find()
            answers = await asyncio.gather(*(self._newest(endpoint, problems) for endpoint in found))
            known = {encode(record): record for records in (self.feed, *answers) for record in records}
            self.feed = _newest_of(known.values())
            self.problems = problems or ([] if found else self.problems)
            await asyncio.sleep(FEED_SECONDS)

    async def _find(self) -> tuple[list[Endpoint], list[str]]:
        try:
            return await reach.find(self.client, system=self.system)
        except (ApiError, OSError, TimeoutError) as error:
            return [], [f"the roles cannot be looked for: {error}"]

    async def _newest(self, endpoint: Endpoint, problems: list[str]) -> list[Record]:
        try:
            return await gather.fetch(endpoint, {"limit": str(FEED_LENGTH)})
        except (ApiError, OSError, TimeoutError, msgspec.DecodeError) as error:
            problems.append(f"{endpoint}: {str(error) or 'no answer in time'}")
            return []

    # --- what is asked ----------------------------------------------------------------------------------------------------

    def state(self, since: int) -> bytes:
        """What the page shows, as JSON; of the nodes only those that changed after revision `since` (0: all)."""
        if since == 0 and self._whole_at == self.revision and self.ready:
            nodes = self._whole
        else:
            nodes = orjson.dumps([columns for revision, columns in self.rows.values() if revision > since])
            if since == 0 and self.ready:
                self._whole, self._whole_at = nodes, self.revision
        return orjson.dumps(
            {
                "server": self.client.config.server,
                "time": time.time(),
                "ready": self.ready,
                "revision": self.revision,
                "since": since,
                "columns": view.NODE_COLUMNS,
                "count": len(self.rows),
                "nodes": orjson.Fragment(nodes),
                "gone": [name for revision, name in self.gone if revision > since] if since else [],
                "pending": view.pending(self.pods.by_index("node", "")),
                "quotas": view.quotas(self.quotas.list()),
                "decisions": [view.decision(record) for record in reversed(self.feed)],
                "history": list(self.history),
                "problems": self._said(),
                "unread": [one["kind"].partition(".")[0] for one in self.informers.status() if one["error"] and not one["synced"]],
                "offered": self.offered,
            }
        )

    def _said(self) -> list[str]:
        """What cannot be seen, and why."""
        watches = [f"{one['kind']}: {one['error']}" for one in self.informers.status() if one["error"]]
        return watches + self.problems

    async def why(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        """What `koord why` says of an object. Raises ApiError."""
        found = await gather.gather(kind, namespace, name, self.given, self.client.config, system=self.system)
        explained = explain.explain(kind, found, namespace=namespace, name=name, now=time.time())
        if explained is None:
            return {"summary": f"Nothing is known of {kind.lower()} {name}.", "sections": [], "problems": found.problems}
        return {**render.document(explained), "problems": found.problems}
