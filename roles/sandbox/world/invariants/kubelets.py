"""What must hold between an agent and the kubelet of its host: starts, restarts, resizes in place and pinned CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from roles.sandbox.process_kubelet import podspec
from roles.sandbox.process_kubelet.limits import shares_of, weight_of
from roles.sandbox.world.history import FILE
from roles.sandbox.world.host.layout import container_group, cpu_list, pod_group
from roles.sandbox.world.invariants.base import (
    POD,
    RESOURCE_STATUS,
    WORLD,
    Invariant,
    Obj,
    annotations_of,
    finished,
    node_of,
    requests,
    role_of,
)

if TYPE_CHECKING:
    from roles.sandbox.world.history import Entry, History

TIER = "besteffort"
BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
NODE_SLO = "nodeslo.slo.koordinator.sh"
GIVEN_BACK = ("restore", "give back")


class _Hosts(Invariant):
    """What rules need to know of hosts: since when nothing is in an agent's way there."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._calm: dict[str, tuple[float, float]] = {}  # node -> when it was said, and for how long it had been so
        self._leaving = False

    def _follow(self, entry: Entry) -> None:
        if entry.verb == "host" and not entry.bucket and entry.new is not None:
            self._calm[entry.key] = entry.time, entry.new["undisturbed"]
        elif entry.verb == "phase" and entry.key == "uninstall":
            self._leaving = True

    def _undisturbed(self, node: str, seconds: float, now: float) -> bool:
        """Whether nothing has been in the way of a node's agent for so long."""
        at, calm = self._calm.get(node, (now, 0.0))
        return not self._leaving and node in self.history.of(NODE_SLO) and calm + now - at >= seconds and now - at < 3.0

    def _pod(self, uid: str) -> Obj | None:
        return next((pod for pod in self.history.of("pod").values() if pod["metadata"]["uid"] == uid), None)


class PinnedIsLeftAlone(_Hosts):
    """CPUs that a kubelet has given to a container alone are not given to best-effort pods, and its CPU set stays as the kubelet set it.

    Pods of class LS or BE, and those to which the scheduler gave CPUs, are koordinator's, whatever the kubelet thinks.
    """

    hears = frozenset({WORLD, FILE})
    notice = 10.0  # seconds until an agent has seen the kubelet's checkpoint

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._pinned: dict[str, dict[str, tuple[frozenset[int], float]]] = {}  # node -> uid -> CPUs, since when

    def see(self, entry: Entry) -> Iterator[str]:
        self._follow(entry)
        if entry.verb == "pinned" and not entry.bucket:
            known = self._pinned.get(entry.key, {})
            now = {uid: cpu_list(text) for uid, text in (entry.new or {}).items()}
            kept = {uid: known[uid] for uid, cpus in now.items() if uid in known and known[uid][0] == cpus}
            self._pinned[entry.key] = {uid: kept.get(uid, (cpus, entry.time)) for uid, cpus in now.items()}
            return
        if entry.bucket != FILE or entry.verb != "WRITTEN" or not entry.key.endswith("/cpuset.cpus") or role_of(entry.author) != "koordlet":
            return
        if entry.request in GIVEN_BACK or entry.new is None:
            return
        node = entry.key.partition("/")[0]
        wanted = cpu_list(entry.new["value"])
        for uid, (cpus, since) in self._pinned.get(node, {}).items():
            pod = self._pod(uid)
            if pod is None or (pod["metadata"].get("labels") or {}).get("koordinator.sh/qosClass") in ("LS", "BE"):
                continue
            if RESOURCE_STATUS in annotations_of(pod):
                continue
            name = pod["metadata"]["name"]
            if TIER not in entry.key:
                if f"pod{uid.replace('-', '_')}.slice/" in entry.key and wanted != cpus:
                    yield f"{entry.author} ({entry.request}) gave {name} CPUs {sorted(wanted)}; the kubelet had pinned it to {sorted(cpus)}"
            elif cpus & wanted and self._undisturbed(node, self.notice, entry.time) and entry.time - since > self.notice:
                yield f"{entry.key} has CPUs {sorted(cpus & wanted)}, which the kubelet gave to {name} alone"


class ResizesTakeEffect(_Hosts):
    """A pod that is resized in place gets its new limits: the kubelet is not kept from it, and nobody takes them back.

    An agent may give a service more than its limit for a while, but not less.
    """

    hears = frozenset({WORLD, FILE, POD})
    patience = 20.0  # seconds: the kubelet's list, a round of the agent, the kubelet's next try
    slack = 5.0

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._asked: dict[str, float] = {}  # uid -> when its spec changed
        self._in_force: dict[str, float] = {}  # uid -> when the kubelet had carried the last change out
        self._sizes: dict[str, Obj] = {}  # uid -> the resources of its containers that are in force
        self._told: set[tuple[str, float]] = set()

    def see(self, entry: Entry) -> Iterator[str]:
        self._follow(entry)
        if entry.bucket == "pod" and "/resize" in entry.request and entry.old is not None and entry.new is not None:
            running = (entry.new.get("status") or {}).get("phase") == "Running"  # who starts later starts as it is to be
            if entry.old["spec"] != entry.new["spec"] and running:
                uid = entry.new["metadata"]["uid"]
                self._asked[uid] = entry.time
                self._sizes.setdefault(uid, _sizes(entry.old))
        elif entry.verb == "resized" and not entry.bucket and entry.new is not None:
            self._in_force[entry.text], self._sizes[entry.text] = entry.time, entry.new
        elif entry.verb == "resize waits" and not entry.bucket:
            self._asked.pop(entry.text, None)  # it uses more memory than it is to have: the kubelet does not try
        elif entry.verb == "host" and not entry.bucket:
            yield from self._late(entry.key, entry.time)
        elif entry.bucket == FILE and entry.verb == "WRITTEN" and role_of(entry.author) == "koordlet" and entry.request not in GIVEN_BACK:
            yield from self._less(entry)

    def _late(self, node: str, now: float) -> Iterator[str]:
        for pod in self.pods_of(node):
            uid, status = pod["metadata"]["uid"], pod.get("status") or {}
            asked = self._asked.get(uid)
            # who is resized there and back between two looks of the kubelet has what it asks for
            if asked is None or self._sizes[uid] == _sizes(pod) or (uid, asked) in self._told:
                continue
            if status.get("phase") != "Running" or pod["metadata"].get("deletionTimestamp"):
                continue
            if now - asked > self.patience and self._undisturbed(node, self.patience, now):
                self._told.add((uid, asked))
                yield f"{node}: the kubelet could not resize {pod['metadata']['name']} for {now - asked:.0f}s"

    def _less(self, entry: Entry) -> Iterator[str]:
        node, _, path = entry.key.partition("/")
        name = path.rpartition("/")[2]
        if name not in ("cpu.cfs_quota_us", "cpu.max", "memory.limit_in_bytes", "memory.max") or TIER in path:
            return
        value = str((entry.new or {})["value"]).split()[0]
        if value in ("max", "-1"):
            return
        for uid, since in self._in_force.items():
            pod = self._pod(uid) if f"pod{uid.replace('-', '_')}.slice" in path else None
            if pod is None or entry.time - max(since, self._asked.get(uid, 0.0)) < self.slack or self._sizes[uid] != _sizes(pod):
                continue
            limits = podspec.limits_of_pod(pod["spec"])  # its one container has the same
            least = limits.cpu_quota_us if name.startswith("cpu.") else limits.memory_bytes
            if int(value) < least and self._undisturbed(node, self.slack, entry.time):
                yield f"{entry.author} ({entry.request}) set {entry.key} to {value}, after {pod['metadata']['name']} was resized to {least}"


def _sizes(pod: Obj) -> Obj:
    """The resources of a pod's containers, by their names."""
    return {body["name"]: body.get("resources") for body in pod["spec"].get("containers") or []}


class StartsEnd(_Hosts):
    """A best-effort pod starts within ten seconds, however little its tier is left: sandbox and containers need CPU, too.

    It counts for pods that come one at a time; more share what the tier keeps for starts.
    """

    hears = frozenset({WORLD, POD})
    most = 10.0

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._bound: dict[str, float] = {}
        self._told: set[str] = set()

    def see(self, entry: Entry) -> Iterator[str]:
        self._follow(entry)
        if entry.bucket == "pod":
            uid = entry.obj["metadata"]["uid"]
            pending = (entry.obj.get("status") or {}).get("phase", "Pending") == "Pending" and node_of(entry.new)
            if entry.new is None or entry.new["metadata"].get("deletionTimestamp") or not pending:
                self._bound.pop(uid, None)
            else:
                self._bound.setdefault(uid, entry.time)
        elif entry.verb == "host" and not entry.bucket:
            waiting = [pod for pod in self.pods_of(entry.key) if pod["metadata"]["uid"] in self._bound and self._is_batch(pod)]
            for number, pod in enumerate(waiting):
                uid = pod["metadata"]["uid"]
                since = max(self._bound[uid], self.history.wiped)
                most = self.most * (1 + number)
                if entry.time - since > most and uid not in self._told and self._undisturbed(entry.key, most + 5.0, entry.time):
                    self._told.add(uid)
                    yield f"{entry.key}: {pod['metadata']['name']} has not started in {entry.time - since:.0f}s, beside {len(waiting) - 1}"

    @staticmethod
    def _is_batch(pod: Obj) -> bool:
        return podspec.kubernetes_qos(pod["spec"]) == "BestEffort"


class NobodyIsKilledByLimits(Invariant):
    """No container is ended by the kernel because an agent left it less memory than it uses."""

    hears = frozenset({WORLD})

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.verb == "oom" and not entry.bucket and entry.text.startswith("koordlet-"):
            yield f"{entry.key}: {entry.text}"


class BatchIsHeld(_Hosts):
    """Each running container of a batch pod has the weight and the memory limit of what it requests, also after it was started again."""

    hears = frozenset({WORLD, FILE, POD})
    patience = 25.0  # seconds: the kubelet's list, a round of the agent's hooks

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._values: dict[str, str] = {}
        self._since: dict[str, float] = {}  # container id -> since when it runs
        self._told: set[str] = set()

    def see(self, entry: Entry) -> Iterator[str]:
        self._follow(entry)
        if entry.bucket == FILE:
            if entry.verb == "GONE":
                node, _, group = entry.key.partition("/")
                self._values = {key: text for key, text in self._values.items() if not (key.startswith(f"{node}/") and f"/{group}/" in key)}
            elif entry.author == "administrator":
                self._values.pop(entry.key, None)  # what people set there stays theirs
            elif entry.new is not None:
                self._values[entry.key] = str(entry.new["value"])
        elif entry.bucket == "pod" and entry.new is not None:
            for status in (entry.new.get("status") or {}).get("containerStatuses") or ():
                self._since.setdefault(status["containerID"], entry.time)
        elif entry.verb == "host" and not entry.bucket:
            for pod in self.pods_of(entry.key):
                yield from self._judge(entry.key, pod, entry.time)

    def _judge(self, node: str, pod: Obj, now: float) -> Iterator[str]:
        meta, asked = pod["metadata"], requests(pod)
        if BATCH_CPU not in asked or meta.get("deletionTimestamp") or finished(pod):
            return
        for status in (pod.get("status") or {}).get("containerStatuses") or ():
            number = status["containerID"]
            if number in self._told or now - self._since[number] < self.patience or not self._undisturbed(node, self.patience, now):
                continue
            group = container_group(pod_group("BestEffort", meta["uid"]), number)
            shares = shares_of(asked[BATCH_CPU])
            # a page more or less is the kernel's rounding
            wanted = {"cpu.shares": shares, "cpu.weight": weight_of(shares), "memory.limit_in_bytes": asked[BATCH_MEMORY]}
            for key, value in self._values.items():
                name = key.rpartition("/")[2]
                if key.startswith(f"{node}/") and f"/{group}/" in key and name in wanted and int(value) != wanted[name]:
                    self._told.add(number)
                    yield f"{key} is {value} {now - self._since[number]:.0f}s after the container began; its pod requests {wanted[name]}"


class ServicesAreNotHeldUp(_Hosts):
    """Where there is room for services and the least that best-effort pods get, these do not hold services up: within seconds their work
    takes hardly longer than alone."""

    hears = frozenset({WORLD})
    patience = 12.0
    most = 25  # percent
    least = 2000 + 1200  # milli-CPU that best-effort pods may have in any case, with a CPU more for whole ones

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._since: dict[str, float] = {}

    def see(self, entry: Entry) -> Iterator[str]:
        self._follow(entry)
        if entry.bucket or entry.verb != "host" or entry.new is None:
            return
        node, now = entry.key, entry.new
        held_up = now["held_up"] > self.most and now["wanted"] + self.least <= now["capacity"] and now["tier_pods"]
        if not held_up or not self._undisturbed(node, 2 * self.patience, entry.time):
            self._since.pop(node, None)
        elif entry.time - self._since.setdefault(node, entry.time) > self.patience:
            self._since[node] = float("inf")
            yield f"{node}: work of services has taken {now['held_up']} % longer for long; best-effort pods use {now['tier']}m"


KUBELET_INVARIANTS: tuple[type[Invariant], ...] = (
    PinnedIsLeftAlone,
    ResizesTakeEffect,
    StartsEnd,
    NobodyIsKilledByLimits,
    BatchIsHeld,
    ServicesAreNotHeldUp,
)
