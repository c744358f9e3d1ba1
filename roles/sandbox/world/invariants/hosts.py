"""What must hold on modelled hosts, whatever goes wrong: what agents may write, in what time, and what they leave behind."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from roles.sandbox.world.history import FILE
from roles.sandbox.world.host.layout import allocated_cpus, cpu_list
from roles.sandbox.world.invariants.base import (
    EVENTS,
    POD,
    RESOURCE_STATUS,
    WORLD,
    Invariant,
    Obj,
    annotations_of,
    bound_by,
    finished,
    leaves,
    node_of,
    requests,
    role_of,
)

if TYPE_CHECKING:
    from roles.sandbox.world.history import Entry, History

NODE_SLO = "nodeslo.slo.koordinator.sh"
SUPPRESSING = "BECPUSuppress"
TIER = "besteffort"
BATCH_CPU = "kubernetes.io/batch-cpu"


@dataclass(slots=True)
class _Known:
    """A file that an agent has written: what it held before, what others made of it since, and what it holds."""

    first: str
    now: str
    theirs: str | None = None
    doubted: set[str] = field(default_factory=set)  # others set what an agent had written, and nobody can tell: what it goes back to then
    unsaved: float | None = None  # when an agent wrote it while its disk was full
    lost: bool = False  # … and died before it could say so anywhere
    wider: str | None = None  # what it would have held: its group was made under one that an agent had narrowed
    ours: set[str] = field(default_factory=set)


class FilesArePutBack(Invariant):
    """After an uninstall every file of a host holds what it held before an agent first wrote it, or what others made of it since.

    Of a value that an agent wrote while its disk was full, and ended before there was room again, nobody knows that it was the agent's.
    What a kubelet gave a container may come back, too, where somebody else has meddled with it: the kubelet may have given it again.
    """

    hears = frozenset({WORLD, FILE})
    soon = 3.0  # seconds after which there being room was noticed

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._files: dict[str, _Known] = {}
        self._kubelets: dict[str, str] = {}  # what a kubelet set last
        self._room: dict[str, float] = {}  # node -> since when there is room on its disk again
        self._frozen: dict[str, tuple[float, float]] = {}  # node -> since when its agent is frozen, and until when

    def see(self, entry: Entry) -> Iterator[str]:
        if not entry.bucket:
            if entry.verb == "restored":
                yield from self._judge(entry.key)
            elif entry.verb == "room":
                self._room[entry.key] = entry.time
            elif entry.verb == "fault" and entry.key in ("disk-full", "write-error"):
                self._filled(entry.text.partition(" of koordlet-")[2].partition(" ")[0], entry.time)
            elif entry.verb == "crash" or (entry.verb == "ended" and role_of(entry.key) == "koordlet"):
                self._died(entry.key.partition("-")[2], entry.time)
            elif entry.verb == "fault" and entry.key in ("kill", "remount") and " of koordlet-" in entry.text:
                self._died(entry.text.partition(" of koordlet-")[2].partition(" ")[0], entry.time)
            elif entry.verb == "fault" and entry.key == "freeze" and " of koordlet-" in entry.text:
                node, _, seconds = entry.text.partition(" of koordlet-")[2].partition(" for ")
                self._frozen[node] = entry.time, entry.time + float(seconds.partition("s")[0])
            return
        if entry.bucket != FILE or entry.verb == "REFUSED":
            return
        if entry.verb == "GONE":
            node, _, group = entry.key.partition("/")
            for key in [key for key in {**self._files, **self._kubelets} if key.startswith(f"{node}/") and f"/{group}/" in key]:
                self._files.pop(key, None)
                self._kubelets.pop(key, None)
            return
        assert entry.old is not None
        assert entry.new is not None
        known, value = self._files.get(entry.key), entry.new["value"]
        if role_of(entry.author) == "kubelet":
            self._kubelets[entry.key] = value
        if role_of(entry.author) == "koordlet":
            if known is None:
                known = self._files[entry.key] = _Known(
                    entry.old["value"], value, wider=self._without_agents(entry.key, entry.old["value"])
                )
            known.ours.add(value)
            wanted = known.first if known.theirs is None else known.theirs
            known.unsaved = entry.time if entry.new["full"] and value != wanted else None
        elif known is not None:
            known.doubted = {*known.doubted, known.first, known.theirs or known.first} if value in known.ours else set()
            known.theirs = value
        if known is not None:
            known.now = value

    def _meets(self, key: str, known: _Known) -> bool:
        """Whether a quota of cgroup v1 comes as near as it can to one above or below it: others have set one of the two so that the kernel
        would refuse what was before beside it."""
        above, name = key.rpartition("/")[0], key.rpartition("/")[2]
        near = [other for at, other in self._files.items() if at.endswith(f"/{name}") and at.split("/")[:-2] == above.split("/")]
        near += [other] if (other := self._files.get(f"{above.rpartition('/')[0]}/{name}")) is not None else []
        return name == "cpu.cfs_quota_us" and any(known.now == other.now and (known.theirs or other.theirs) for other in near)

    def _without_agents(self, key: str, value: str) -> str | None:
        """What a group that was made under one that an agent had narrowed would hold without it."""
        above = self._files.get(self._written_above(key)) if key.endswith("/cpuset.cpus") else None
        if above is None or not (value in above.ours or (above.wider is not None and value == above.first)):
            return None
        return above.first if above.wider is None else above.wider

    def _written_above(self, key: str) -> str:
        """The nearest file of that name further up that was written: sets are narrowed from below, so it need not be the next one."""
        directory, _, name = key.rpartition("/")
        while directory:
            directory = directory.rpartition("/")[0]
            if f"{directory}/{name}" in self._files:
                return f"{directory}/{name}"
        return ""

    def _is_lost(self, key: str, known: _Known) -> bool:
        """Whether nobody can know what the file is to hold: of a CPU set, because nobody knows it of a group further up."""
        if known.lost or not key.endswith("/cpuset.cpus"):
            return known.lost
        path = self._written_above(key)
        above = self._files.get(path)
        return above is not None and known.first in (*above.ours, above.first) and self._is_lost(path, above)

    def _filled(self, node: str, time: float) -> None:
        """There is no room on a node's disk any more: what was written before there was some has been said, if that was noticed."""
        room = self._room.pop(node, time)
        for key, known in self._files.items():
            if key.startswith(f"{node}/") and known.unsaved is not None and known.unsaved <= room and self._noticed(node, room, time):
                known.unsaved = None

    def _died(self, node: str, time: float) -> None:
        room = self._room.get(node, 0.0)
        noticed = self._noticed(node, room, time)
        for key, known in self._files.items():
            if key.startswith(f"{node}/") and known.unsaved is not None:
                known.lost = known.lost or room < known.unsaved or not noticed
                known.unsaved = None

    def _noticed(self, node: str, room: float, time: float) -> bool:
        """Whether a node's agent has noticed by then that there is room since: not while it was frozen."""
        frozen, until = self._frozen.get(node, (time, time))
        since = max(room, until) if frozen < room + self.soon else room
        return since + self.soon <= time

    def _judge(self, node: str) -> Iterator[str]:
        for key, known in sorted(self._files.items()):
            if not key.startswith(f"{node}/") or self._is_lost(key, known):
                continue
            wanted = known.first if known.theirs is None else known.theirs
            if known.now not in (wanted, known.wider, self._kubelets.get(key), *known.doubted) and not self._meets(key, known):
                whose = "it held before" if known.theirs is None else "others had set"
                yield f"{key} holds {known.now!r}; {whose} {wanted!r}"


class SuppressedInTime(Invariant):
    """Best-effort pods get what services leave below the threshold, within seconds: no more while services need it, no less when not.

    It counts while nothing is in the agent's way. A CPU more is no fault: sets consist of whole ones, and the least set has two.
    """

    hears = frozenset({WORLD})
    threshold = 0.65
    patience = 12.0  # seconds: a reading, a decision; growth goes by a tenth of the node a second
    slack = 1200  # milli-CPU
    least = 2000

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._since: dict[tuple[str, str], float] = {}
        self._told: set[tuple[str, str]] = set()

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket or entry.verb != "host" or entry.new is None:
            return
        node, now = entry.key, entry.new
        capacity = now["capacity"]
        allowed = capacity * self.threshold - now["others"]
        wrong = {
            "more": now["tier"] > 0 and now["room"] > max(allowed, self.least) + self.slack,
            "less": now["room"] < min(allowed, now["free"]) - self.slack,
        }
        for kind, is_wrong in wrong.items():
            asked = node in self.history.of(NODE_SLO)
            if not is_wrong or not asked or now["undisturbed"] < 2 * self.patience or not now["tier_pods"]:
                self._since.pop((node, kind), None)
                self._told.discard((node, kind))
            elif entry.time - self._since.setdefault((node, kind), entry.time) > self.patience and (node, kind) not in self._told:
                self._told.add((node, kind))
                yield (
                    f"{node}: best-effort pods may use {now['room']}m, {kind} than the {allowed:.0f}m that others leave, "
                    f"since {self._since[node, kind]:.0f}s"
                )


class NothingFromOldReadings(Invariant):
    """Nobody takes CPU from best-effort pods, or gives it back, by readings of the node that are older than 10 s."""

    hears = frozenset({FILE})
    oldest = 10.0

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket != FILE or entry.request != SUPPRESSING or entry.new is None or role_of(entry.author) != "koordlet":
            return
        age = entry.new.get("age", 0.0)
        if age > self.oldest and (entry.old or {}).get("value") != entry.new["value"]:
            yield f"{entry.author} wrote {entry.key} by readings that are {age:.0f} s old"


class ExclusiveFromBestEffort(Invariant):
    """A best-effort pod is not put on a CPU that a pod of class LSE has for itself.

    What a set holds within one moment does not count: on the way from one set to another it is widened to both.
    """

    notice = 10.0  # seconds until an agent has heard of a pod

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._since: dict[str, float] = {}
        self._written: dict[str, tuple[float, str]] = {}  # file -> when it was written, and what is wrong with it

    def see(self, entry: Entry) -> Iterator[str]:
        for key in [key for key, (at, _) in self._written.items() if at < entry.time]:
            yield self._written.pop(key)[1]
        if entry.bucket == "pod":
            uid = entry.obj["metadata"]["uid"]
            if entry.new is None or finished(entry.new):
                self._since.pop(uid, None)
            elif (entry.new.get("status") or {}).get("phase") == "Running":
                self._since.setdefault(uid, entry.time)
            return
        if entry.bucket != FILE or entry.verb != "WRITTEN" or not entry.key.endswith("/cpuset.cpus") or TIER not in entry.key:
            return
        if role_of(entry.author) != "koordlet" or entry.request == "restore" or entry.new is None:
            return
        wanted = cpu_list(entry.new["value"])
        self._written.pop(entry.key, None)
        for pod in self.pods_of(entry.key.partition("/")[0]):
            meta = pod["metadata"]
            if (meta.get("labels") or {}).get("koordinator.sh/qosClass") != "LSE" or meta.get("deletionTimestamp"):
                continue
            if entry.time - self._since.get(meta["uid"], entry.time) < self.notice:
                continue
            held = allocated_cpus(annotations_of(pod).get(RESOURCE_STATUS, ""))
            if held & wanted:
                self._written[entry.key] = entry.time, f"{entry.key} has CPUs {sorted(held & wanted)} of {meta['name']}"


class NoEmptyCpuSet(Invariant):
    """Nobody takes all CPUs from a group: the kernel refuses it, or takes it for all CPUs of the group above."""

    hears = frozenset({FILE})

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket != FILE or not entry.key.endswith("/cpuset.cpus") or role_of(entry.author) != "koordlet":
            return
        empty = not (entry.new or {}).get("value") or entry.text.startswith("refused ''")
        if empty and entry.request not in ("restore", "give back"):
            yield f"{entry.author} ({entry.request}) wrote no CPU to {entry.key}"


class EvictedForAReason(Invariant):
    """An agent evicts best-effort pods only, and while the node lacks memory or the tier lacks CPU, by the thresholds of its NodeSLO.

    The tier asks for what its pods request, those included that are yet to start, or are on their way out, when the kubelet lists them.
    """

    hears = frozenset({WORLD, FILE, POD})
    recent = 9.0  # seconds: a reading, a decision, a request that had to be sent again

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._nodes: dict[str, deque[tuple[float, Obj]]] = defaultdict(lambda: deque(maxlen=32))

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.verb == "host" and not entry.bucket and entry.new is not None:
            self._nodes[entry.key].append((entry.time, entry.new))
        if entry.bucket == FILE:
            self._narrowed(entry)
        if entry.bucket != "pod" or role_of(entry.author) != "koordlet" or "/eviction" not in entry.request:
            return
        node = entry.author.partition("-")[2]
        labels = entry.obj["metadata"].get("labels") or {}
        if labels.get("koordinator.sh/qosClass") != "BE" or node_of(entry.obj) != node:
            yield f"{entry.author} evicted {entry.key}, which is no best-effort pod of its node"
        limits = ((self.history.of(NODE_SLO).get(node) or {}).get("spec") or {}).get("resourceUsedThresholdWithBE") or {}
        bound = sum(requests(pod).get(BATCH_CPU, 0) for pod in self.pods_of(node))
        if not any(self._lacks(now, bound, limits) for at, now in self._nodes[node] if at > entry.time - self.recent):
            yield f"{entry.author} evicted {entry.key}; lately {node} was {self._nodes[node][-1][1] if self._nodes[node] else 'not seen'}"

    def _narrowed(self, entry: Entry) -> None:
        """A quota of the tier holds from the moment in which it is written, and a host is looked at every other second only."""
        node, (above, _, name) = entry.key.partition("/")[0], entry.key.rpartition("/")
        quota = str((entry.new or {}).get("value", "")).split(" ")[0]
        if name in ("cpu.cfs_quota_us", "cpu.max") and above.endswith(f"{TIER}.slice") and quota.isdecimal() and self._nodes[node]:
            last = self._nodes[node][-1][1]
            self._nodes[node].append((entry.time, {**last, "room": min(last["room"], int(quota) // 100)}))

    @staticmethod
    def _lacks(now: Obj, bound: int, limits: Obj) -> bool:
        asked = max(now["tier_asked"], bound)
        lower = limits.get("cpuEvictBESatisfactionLowerPercent", 0)
        starved = asked > 0 and now["room"] * 100 <= lower * asked + 500
        return bool(starved or now["memory"] >= limits.get("memoryEvictThresholdPercent", 70) - 1)


class StoppedOnlyWhenAgreed(Invariant):
    """Containers are stopped when the API server has agreed to evict their pod, or is silent; never when it refused."""

    hears = frozenset({*EVENTS})

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket not in ("event", "event.events.k8s.io") or entry.verb != "ADDED" or role_of(entry.author) != "koordlet":
            return
        if entry.obj.get("reason") not in ("containersStopped", "containersNotStopped"):
            return
        note = str(entry.obj.get("note") or entry.obj.get("message") or "")
        regarding = entry.obj.get("regarding") or entry.obj.get("involvedObject") or {}
        pod = self.history.of("pod").get(f"{regarding.get('namespace')}/{regarding.get('name')}")
        there = pod is not None and pod["metadata"]["uid"] == regarding.get("uid")
        if there and "is silent" not in note and not (pod or {})["metadata"].get("deletionTimestamp"):
            yield f"{entry.author} stopped containers of {regarding.get('name')}, whose eviction was refused: {note}"


class HostsSettle(Invariant):
    """When use stays as it is, no file of a host swings to and fro: a quota by a tenth and more, anything else at all.

    But where CPUBurst steers quotas use does not stay: they go up while there is throttling and down while the node is busy. Nor does it
    where a pod comes or goes, as one does that is evicted for memory and replaced: its start alone takes a core, and readings of the last
    second have a part of it only. What is written in the seconds after that does not count.
    """

    hears = frozenset({WORLD})
    seconds = 30.0
    restless = 3.0  # seconds after a pod came, ran or went
    most = 8
    share = 0.1
    growing = "CPUBurst"

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket or entry.verb != "phase" or entry.key != "uninstall":
            return
        since = entry.time - self.seconds
        late: dict[str, list[Entry]] = defaultdict(list)
        steered: set[str] = set()
        moved: dict[str, list[float]] = defaultdict(list)
        for one in reversed(self.history.entries):
            if one.time <= since - self.restless:
                break
            if one.bucket == "pod" and self._moves(one):
                moved[node_of(one.obj)].append(one.time)
            if one.time > since and one.bucket == FILE and one.verb != "GONE" and role_of(one.author) == "koordlet":
                late[one.key].insert(0, one)
                if one.request == self.growing:
                    steered.add(one.author)
        for key, written in sorted(late.items()):
            times = moved[key.partition("/")[0]]
            entries = [one for one in written if not any(0 <= one.time - time <= self.restless for time in times)]
            swings = self._swings(entries)
            if written[0].author not in steered and swings > self.most:
                values = sorted({(one.new or {})["value"] for one in entries})
                yield f"{key}: {swings} swings in {self.seconds:.0f} s, last by {entries[-1].request}, among {', '.join(values[:4])}"

    @staticmethod
    def _moves(entry: Entry) -> bool:
        """Whether a pod comes to a node, begins to run or to leave there, ends, or is gone."""
        if entry.verb == "DELETED" or bound_by(entry) or leaves(entry):
            return True
        now, before = (((obj or {}).get("status") or {}).get("phase") for obj in (entry.new, entry.old))
        return bool(now != before)

    def _swings(self, entries: list[Entry]) -> int:
        """How often a value went another way than before; a write that was refused counts as one."""
        count = heading = 0
        for one in entries:
            before, after = (str((part or {})["value"]).split(" ")[0] for part in (one.old, one.new))
            if one.verb == "REFUSED" or not (before.lstrip("-").isdigit() and after.lstrip("-").isdigit()):
                count += one.verb == "REFUSED" or before != after
                continue
            step = int(after) - int(before)
            if abs(step) >= self.share * max(abs(int(before)), abs(int(after)), 1):
                count += heading * step < 0
                heading = 1 if step > 0 else -1
        return count


class RestoreSucceeds(FilesArePutBack):
    """Putting back works on a machine that nobody disturbs any more, where what an agent wrote could be said: what is taken for others'
    may not be possible beside them."""

    def _judge(self, node: str) -> Iterator[str]:
        text = self.history.entries[-1].text
        lost = any(known.lost for key, known in self._files.items() if key.startswith(f"{node}/"))
        if not text.startswith("status 0") and not lost:
            yield f"{node}: {text}"


HOST_INVARIANTS: tuple[type[Invariant], ...] = (
    FilesArePutBack,
    SuppressedInTime,
    NothingFromOldReadings,
    ExclusiveFromBestEffort,
    NoEmptyCpuSet,
    EvictedForAReason,
    StoppedOnlyWhenAgreed,
    HostsSettle,
    RestoreSucceeds,
)
