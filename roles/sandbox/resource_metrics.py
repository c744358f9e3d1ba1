"""metrics.k8s.io in the sandbox, so that `kubectl top` works there: what node agents report, under the names of metrics-server."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import Any

from koord import seams
from koord.api.kinds import CUSTOMRESOURCEDEFINITIONS, NODEMETRICS_RESOURCE, PODMETRICS, Kind
from koord.kube import errors
from koord.kube.client import Client
from koord.kube.informers import Informer
from roles.sandbox.builders import obj

log = logging.getLogger(__name__)

PERIOD = 15.0  # seconds, as metrics-server looks
WINDOW = "15s"
MOST = 1000
"""Objects that are kept at most: in a larger sandbox those of the nodes only, or none."""

Obj = dict[str, Any]


def crds() -> list[Obj]:
    """The two kinds; nothing is said of their fields, which are not koord's."""
    return [_crd(NODEMETRICS_RESOURCE), _crd(PODMETRICS)]


def _crd(kind: Kind) -> Obj:
    # The usual singular, `nodemetrics`, is what koord's own NodeMetrics are called.
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    spec = {
        "group": kind.group,
        "names": {"kind": kind.kind, "listKind": f"{kind.kind}List", "plural": kind.plural, "singular": f"{kind.plural}-usage"},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "versions": [{"name": kind.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
    }
    approved = {"api-approved.kubernetes.io": "unapproved, for the sandbox only"}
    return obj(CUSTOMRESOURCEDEFINITIONS, kind.crd_name, annotations=approved, spec=spec)


def shown(reports: Iterable[Obj]) -> Iterator[tuple[Kind, Obj]]:
    """The objects of metrics.k8s.io for NodeMetrics of koord. Pure."""
    for report in reports:
        status = report.get("status") or {}
        taken: Obj = {"timestamp": status.get("updateTime"), "window": WINDOW}
        used = ((status.get("nodeMetric") or {}).get("nodeUsage") or {}).get("resources")
        if not used or not taken["timestamp"]:
            continue
        yield NODEMETRICS_RESOURCE, obj(NODEMETRICS_RESOURCE, report["metadata"]["name"], **taken, usage=_both(used))
        for pod in status.get("podsMetric") or ():
            used = (pod.get("podUsage") or {}).get("resources") or {}
            containers = [{"name": "pod", "usage": _both(used)}]
            yield PODMETRICS, obj(PODMETRICS, pod["name"], pod["namespace"], **taken, containers=containers)


def _both(used: Obj) -> Obj:
    return {name: used.get(name, "0") for name in ("cpu", "memory")}


class ResourceMetrics:
    """Keeps them as they are reported, until cancelled."""

    def __init__(self, client: Client, reports: Informer[Obj]) -> None:
        self._client, self._reports = client, reports
        self._there: dict[tuple[str, str, str], Obj] = {}

    async def run(self) -> None:
        """Look every fifteen seconds; what the server refuses is tried again then."""
        while True:
            try:
                await self.look()
            except errors.ApiError as error:
                log.warning("metrics.k8s.io: %s", error)
            await seams.sleep(PERIOD)

    async def look(self) -> None:
        """Write what has changed and delete what is reported no more. Raises ApiError."""
        found = {_key(kind, one): (kind, one) for kind, one in shown(self._reports.list())}
        if len(found) > MOST:
            nodes = {key: each for key, each in found.items() if each[0] is NODEMETRICS_RESOURCE}
            found = nodes if len(nodes) <= MOST else {}
        for key, (kind, one) in found.items():
            if self._there.get(key) == one:
                continue
            meta = one["metadata"]
            try:
                if key not in self._there:
                    await self._client.create(kind, one, meta.get("namespace"))
                else:
                    await self._client.patch(kind, meta["name"], one, meta.get("namespace"))
            except errors.AlreadyExists:
                await self._client.patch(kind, meta["name"], one, meta.get("namespace"))
            self._there[key] = one
        for key in self._there.keys() - found.keys():
            kind, name, namespace = (PODMETRICS if key[1] else NODEMETRICS_RESOURCE), key[2], key[1]
            with contextlib.suppress(errors.NotFound):
                await self._client.delete(kind, name, namespace or None)
            del self._there[key]


def _key(kind: Kind, one: Obj) -> tuple[str, str, str]:
    return kind.kind, one["metadata"].get("namespace", ""), one["metadata"]["name"]
