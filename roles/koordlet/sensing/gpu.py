"""Graphics cards: inventory, health, and use by the node, pods and containers (KLO-DEV-01). Vendor-neutral.

What a vendor's library knows comes through :class:`GPULibrary`; without a library there are no cards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from roles.koordlet.qos import view
from roles.koordlet.sensing.base import Collector, Round, SensingContext
from roles.koordlet.sensing.gpulibrary import GPUCard, GPULibrary, GPUProcess
from roles.koordlet.store import kinds
from roles.koordlet.store.store import Sample

#: Name of the snapshot in the store (KLO-TSDB-02).
GPU = "GPU"


@dataclass(slots=True)
class _Use:
    core: float = 0.0
    memory: float = 0.0

    def add(self, process: GPUProcess) -> None:
        self.core += process.core_percent
        self.memory += process.memory


class GPUCollector(Collector):
    """Keeps the snapshot of cards, and samples of who uses how much of which."""

    name: ClassVar[str] = "gpu"
    gate: ClassVar[str] = "Accelerators"

    def __init__(self, context: SensingContext, library: GPULibrary | None = None) -> None:
        super().__init__(context)
        self._library = library

    def collect(self, at: Round) -> None:
        cards = self._library.cards() if self._library is not None else ()
        if cards != self.context.store.snapshot(GPU):
            self.context.store.put_snapshot(GPU, cards)
        if self._library is None or not cards:
            return
        processes = self._library.processes()
        by_uuid = {card.uuid: card for card in cards}
        whole = {card.uuid: _Use() for card in cards}
        by_pid: dict[int, list[GPUProcess]] = {}
        for process in processes:
            if process.uuid in whole:
                whole[process.uuid].add(process)
                by_pid.setdefault(process.pid, []).append(process)
        samples: list[Sample] = []
        for card in cards:
            key = (str(card.minor), card.uuid)
            samples.append((kinds.NODE_GPU_CORE, key, whole[card.uuid].core))
            samples.append((kinds.NODE_GPU_MEMORY, key, whole[card.uuid].memory))
            samples.append((kinds.NODE_GPU_MEMORY_TOTAL, key, float(card.memory_total)))
        if by_pid:
            self._pods(by_pid, by_uuid, samples)
        self.context.store.append(at.now, samples)

    def _pods(self, by_pid: dict[int, list[GPUProcess]], cards: dict[str, GPUCard], samples: list[Sample]) -> None:
        for pod in self.context.sensed_pods():
            of_pod: dict[str, _Use] = {}
            for container in pod.containers:
                if not container.running or not container.cgroup_dir:
                    continue
                own: dict[str, _Use] = {}
                for pid in view.ids_within(self.context.host, "cgroup.procs", container.cgroup_dir):
                    for process in by_pid.get(pid, ()):
                        own.setdefault(process.uuid, _Use()).add(process)
                        of_pod.setdefault(process.uuid, _Use()).add(process)
                _append(samples, kinds.CONTAINER_GPU_CORE, kinds.CONTAINER_GPU_MEMORY, container.id, own, cards)
            _append(samples, kinds.POD_GPU_CORE, kinds.POD_GPU_MEMORY, pod.uid, of_pod, cards)


def _append(samples: list[Sample], core: str, memory: str, owner: str, uses: dict[str, _Use], cards: dict[str, GPUCard]) -> None:
    for uuid, use in uses.items():
        key = (owner, str(cards[uuid].minor), uuid)
        samples.append((core, key, use.core))
        samples.append((memory, key, use.memory))
