"""The static CPU policy of a kubelet (pure): CPUs of their own for containers of Guaranteed pods that request whole ones, the rest for all
others."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import orjson

from koord.api.quantity import parse_milli
from roles.sandbox.process_kubelet import podspec
from roles.sandbox.world.host.layout import GUARANTEED, cpu_text

Obj = dict[str, Any]


@dataclass(slots=True)
class CpuManager:
    """Who has which CPUs: (pod uid, container) -> CPUs. Nobody gets the `reserved` ones alone."""

    online: frozenset[int]
    reserved: frozenset[int]
    held: dict[tuple[str, str], frozenset[int]] = field(default_factory=dict)

    @property
    def shared(self) -> frozenset[int]:
        """The CPUs of all containers that have none of their own."""
        return self.online.difference(*self.held.values())

    def of_pod(self, uid: str) -> frozenset[int]:
        """All CPUs that containers of a pod have for themselves."""
        return frozenset[int]().union(*(cpus for (pod, _), cpus in self.held.items() if pod == uid))

    def admit(self, pod: Obj) -> None:
        """Give the containers of a pod their CPUs. One for which there are too few shares those of the others: a kubelet would not admit
        it, but keeps the reserved ones out of the node's allocatable, and so is hardly ever asked."""
        uid = pod["metadata"]["uid"]
        for container in pod["spec"].get("containers") or []:
            count = whole_cpus(pod, container)
            if count and (cpus := self._take(count)):
                self.held[uid, container["name"]] = cpus

    def release(self, uid: str) -> None:
        """A pod is gone."""
        for key in [key for key in self.held if key[0] == uid]:
            del self.held[key]

    def _take(self, count: int) -> frozenset[int]:
        """Whole cores first (two threads each), then single CPUs, lowest first; empty where there are too few."""
        free = sorted(self.shared - self.reserved)
        if len(free) < count:
            return frozenset()
        cores = [cpu for cpu in free if (cpu ^ 1) in free]
        chosen = cores[: count // 2 * 2]
        chosen += [cpu for cpu in [c for c in free if c not in cores] + cores if cpu not in chosen][: count - len(chosen)]
        return frozenset(chosen)

    def checkpoint(self) -> bytes:
        """The content of `cpu_manager_state`."""
        entries: dict[str, dict[str, str]] = {}
        for (uid, name), cpus in sorted(self.held.items()):
            entries.setdefault(uid, {})[name] = cpu_text(cpus)
        body = {"policyName": "static", "defaultCpuSet": cpu_text(self.shared), "entries": entries}
        return orjson.dumps({**body, "checksum": zlib.crc32(orjson.dumps(body))})


def whole_cpus(pod: Obj, container: Obj) -> int:
    """How many CPUs a container gets for itself; 0 for one that shares."""
    milli = parse_milli(((container.get("resources") or {}).get("requests") or {}).get("cpu", 0))
    return milli // 1000 if podspec.kubernetes_qos(pod["spec"]) == GUARANTEED and milli % 1000 == 0 else 0
