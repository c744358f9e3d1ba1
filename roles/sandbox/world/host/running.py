"""What a kubelet does on a modelled machine: groups, limits and CPUs of its pods, starts, restarts and resizes in place."""

from __future__ import annotations

from typing import Any

import orjson

from roles.sandbox.nodes import fleet
from roles.sandbox.process_kubelet import podspec
from roles.sandbox.world.host import podfiles
from roles.sandbox.world.host.cpumanager import CpuManager
from roles.sandbox.world.host.layout import CPUS, container_group, cpu_text
from roles.sandbox.world.host.machine import Machine

Obj = dict[str, Any]
START_WORK = 0.3
"""CPU seconds that a pod's sandbox and containers take to start: with less CPU they take longer."""
STATE = "var/lib/kubelet/cpu_manager_state"
RECONCILE = 10.0
"""Seconds between two looks of the CPU manager at its containers."""


class Running:
    """The pods of one machine. `author` is the kubelet's name in the history; `cpus` its CPU manager, None without one."""

    def __init__(self, machine: Machine, author: str) -> None:
        self.machine = machine
        self.author = author
        self.cpus = CpuManager(machine.kernel.online, machine.reserved) if machine.reserved else None
        self._applied: dict[str, bytes] = {}  # resources of a pod's containers as they are in force, by uid
        self._waits: dict[str, tuple[object, bytes]] = {}  # by uid: who uses more memory than it is to have, as it was asked for
        self._set: dict[str, str] = {}  # CPUs that this kubelet last gave to a group
        self._looked = -1e9
        self._save()

    @property
    def configuration(self) -> Obj:
        """What /configz says of CPUs."""
        if self.cpus is None:
            return {"cpuManagerPolicy": "none", "cgroupDriver": "systemd"}
        return {"cpuManagerPolicy": "static", "reservedSystemCPUs": cpu_text(self.cpus.reserved), "cgroupDriver": "systemd"}

    def admit(self, pod: Obj) -> None:
        """The group of a pod that is new, and the CPUs of its containers."""
        uid = pod["metadata"]["uid"]
        if uid in self.machine.residents:
            self.machine.residents[uid].pod = pod
            return
        if self.cpus is not None:
            self.cpus.admit(pod)
            self._save()
        resident = self.machine.admit(pod, podspec.kubernetes_qos(pod["spec"]))
        resident.starting = START_WORK
        self._applied[uid] = _resources(pod)
        podfiles.levels(self.machine, self.author)
        podfiles.pod(self.machine, resident, self.author)

    def started(self, uid: str) -> bool:
        """Whether the work of its start is done."""
        self.machine.load.settle()
        resident = self.machine.residents.get(uid)
        return resident is not None and resident.starting <= 0

    def run(self, pod: Obj) -> None:
        """The containers that its status says are there, but for those that have ended since."""
        uid = pod["metadata"]["uid"]
        resident = self.machine.residents[uid]
        bodies = {body["name"]: body for body in pod["spec"].get("containers") or []}
        before = len(resident.containers)
        for status in _statuses(pod):
            name, group = status["name"], container_group(resident.group, status["containerID"])
            if name not in resident.containers and name in bodies and group not in self.machine.ended:
                self.machine.run(uid, name, status["containerID"])
                podfiles.container(self.machine, group, bodies[name], self.author)
                self._pin(uid, name, group)
        if len(resident.containers) > before:
            self.machine.load.began()

    def restarts(self, pod: Obj) -> list[Obj] | None:
        """The statuses of a pod's containers after those that have ended were started again; None where none has."""
        resident = self.machine.residents[pod["metadata"]["uid"]]
        found, ended = [], False
        for status in _statuses(pod):
            if container_group(resident.group, status["containerID"]) in self.machine.ended:
                ended, count = True, int(status.get("restartCount") or 0) + 1
                number = fleet.container_hash(pod, f"{status['name']}/{count}")
                status = {**status, "restartCount": count, "containerID": f"containerd://{number}"}
            found.append(status)
        return found if ended else None

    def resize(self, pod: Obj) -> bool:
        """Give a pod that runs what it requests now, in place; whether something changed.

        What grows, grows in the pod first; what shrinks, in the containers. A memory limit below what is in use has to wait; what the
        kernel refuses is tried again.
        """
        uid = pod["metadata"]["uid"]
        resident = self.machine.residents.get(uid)
        if resident is None or not resident.containers or self._applied.get(uid) == _resources(pod):
            return False
        groups = self.machine.kernel.groups
        bodies = {body["name"]: body for body in pod["spec"].get("containers") or []}
        for name, group in resident.containers.items():
            limit = podspec.limits_of_container(bodies[name]).memory_bytes
            if 0 <= limit < groups[group].memory:
                asked = pod["metadata"].get("generation"), _resources(pod)  # it may be asked for again while nobody heard what came between
                if self._waits.get(uid) != asked:
                    self._waits[uid] = asked
                    self.machine.history.tell("resize waits", self.machine.node, uid)
                return False
        resident.pod = pod
        taken = [podfiles.pod(self.machine, resident, self.author, shrink=False)]
        taken += [podfiles.container(self.machine, group, bodies[name], self.author) for name, group in resident.containers.items()]
        taken += [podfiles.pod(self.machine, resident, self.author)]
        podfiles.levels(self.machine, self.author)
        if not all(taken):
            return False
        self._applied[uid] = _resources(pod)
        self._waits.pop(uid, None)
        self.machine.history.tell("resized", self.machine.node, uid, {name: body.get("resources") for name, body in bodies.items()})
        return True

    def stop(self, uid: str) -> None:
        """A pod is gone."""
        if uid in self.machine.residents:
            self.machine.stop(uid)
            self._applied.pop(uid, None)
            self._waits.pop(uid, None)
            podfiles.levels(self.machine, self.author)
            if self.cpus is not None:
                self.cpus.release(uid)
                self._save()

    # -- CPUs ----------------------------------------------------------------------------------------------------------------

    def reconcile(self, now: float) -> None:
        """Every so often containers get the CPUs that they should have by now. It compares with what it wrote, not with the files."""
        if self.cpus is None or now - self._looked < RECONCILE:
            return
        self._looked = now
        self.set_cpus()

    def set_cpus(self) -> None:
        """Give containers the CPUs of the checkpoint."""
        for uid, resident in self.machine.residents.items():
            for name, group in resident.containers.items():
                self._pin(uid, name, group)

    def _pin(self, uid: str, name: str, group: str) -> None:
        if self.cpus is None:
            return
        text = cpu_text(self.cpus.held.get((uid, name), self.cpus.shared))
        if self._set.get(group) != text and self.machine.set(group, CPUS, text, self.author, "cpu manager"):
            self._set[group] = text

    def _save(self) -> None:
        if self.cpus is None:
            return
        target = self.machine.root / STATE
        target.with_suffix(".new").write_bytes(self.cpus.checkpoint())
        target.with_suffix(".new").rename(target)
        pinned = {uid: self.cpus.of_pod(uid) for uid, _ in self.cpus.held}
        if pinned != self.machine.pinned:
            self.machine.pinned = pinned
            told = {uid: cpu_text(cpus) for uid, cpus in sorted(pinned.items())}
            self.machine.history.tell("pinned", self.machine.node, "", told)


def _statuses(pod: Obj) -> list[Obj]:
    return (pod.get("status") or {}).get("containerStatuses") or []


def _resources(pod: Obj) -> bytes:
    """What the containers of a pod request and are limited to, to tell whether it is still the same."""
    found = [(body["name"], body.get("resources")) for body in pod["spec"].get("containers") or []]
    return orjson.dumps(found, option=orjson.OPT_SORT_KEYS)
