"""What would become of a cluster: the scheduler's own cycle on the changed objects, and the sums before and after. Pure (BEY-SIM-01)."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import msgspec

from koord.accounting.pods import pod_requests
from koord.accounting.resources import ResourceVector, add_into, parse
from koord.api import kinds, names
from koord.api.objects import Namespace, Node, NodeMetric, Pod, convert
from roles.descheduler.build import Options
from roles.koordlet.qos.cpuevict import CPUEvict
from roles.koordlet.qos.memevict import MemoryEvict
from roles.manager.webhooks.quota_topology import QuotaTopology, resolve
from roles.scheduler.whatif import Placement, Scheduler, Simulation, Snapshot
from roles.tools.quota import topology
from roles.tools.simulate.agent import Agent, Evicted, gates_of
from roles.tools.simulate.changes import Changed, belongs_to_node, clones, described_as, ended, shape_of
from roles.tools.simulate.cluster import Cluster, Obj, Structs, key_of
from roles.tools.simulate.moving import Moved, moves
from roles.tools.simulate.overcommit import Overcommit, admitted, config_of
from roles.tools.simulate.suppression import Suppressed, cpu_of, estimate, suppressed

MOST = 256  # new nodes of a shape that are tried for pods that find no place
SHOWN = ("cpu", "memory", names.RESOURCE_BATCH_CPU, names.RESOURCE_BATCH_MEMORY, names.RESOURCE_MID_CPU, names.RESOURCE_MID_MEMORY)


@dataclass(slots=True)
class Fate:
    """What becomes of a pod. `left` is the node that it had to leave, "" for a pod that was new or waiting."""

    pod: str
    node: str
    message: str = ""
    left: str = ""
    waited: bool = False
    victims: list[str] = field(default_factory=list)
    nominated: str = ""


@dataclass(slots=True)
class Use:
    """Requested and there is, summed over all nodes: milli-cores, bytes, numbers."""

    resource: str
    requested: tuple[int, int]
    available: tuple[int, int]


@dataclass(slots=True)
class Quota:
    """An ElasticQuota's use of one resource, before and after, and its max (None: no bound)."""

    quota: str
    resource: str
    used: tuple[int, int]
    max: int | None


@dataclass(slots=True)
class Hour:
    """The answer in short, for other usage: `hot` and `suppressed` are nodes, `batch` what nodes offer of CPU in milli-cores."""

    usage: float
    fits: bool
    pending: int
    hot: list[str]
    suppressed: list[str]
    batch: int

    @classmethod
    def of(cls, usage: float, answer: Answer) -> Hour:
        """Of an answer for that usage."""
        hot, suppressed_ = [name for name, _, _ in answer.hot], [each.node for each in answer.suppressed]
        return cls(usage, answer.fits, len(answer.pending), hot, suppressed_, _total(answer.offers, names.RESOURCE_BATCH_CPU))


@dataclass(slots=True)
class Answer:
    """Everything that the command tells. `free` nodes carry DaemonSet pods at most; `hot` are (node, percent before, percent after)."""

    fates: list[Fate] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    not_simulated: list[str] = field(default_factory=list)
    """Objects that were added and whose pods are not known."""
    helps: list[str] = field(default_factory=list)
    free: list[str] = field(default_factory=list)
    hot: list[tuple[str, int, int]] = field(default_factory=list)
    suppressed: list[Suppressed] = field(default_factory=list)
    evicted: list[Evicted] = field(default_factory=list)
    """Pods that koordlet evicts, where its feature gates let it."""
    moved: list[Moved] = field(default_factory=list)
    """Pods that the descheduler moves, where its rounds are asked for."""
    hot_then: list[str] = field(default_factory=list)
    """Nodes that are hot after that."""
    worse: list[str] = field(default_factory=list)
    """Those of them that it would not evict without the changes."""
    hours: list[Hour] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    quotas: list[Quota] = field(default_factory=list)
    admitted: dict[str, Obj] = field(default_factory=dict)
    """New pods by key, as admission let them in."""
    offers: dict[str, ResourceVector] = field(default_factory=dict)
    """What nodes offer with the changes."""
    where: dict[str, str] = field(default_factory=dict)
    """Nodes of the pods that stay."""
    agents: Callable[[str], Agent | None] = lambda node: None
    """koordlet of a node, with the changes."""

    @property
    def placed(self) -> list[Fate]:
        return [fate for fate in self.fates if fate.node]

    @property
    def pending(self) -> list[Fate]:
        return [fate for fate in self.fates if not fate.node]

    @property
    def fits(self) -> bool:
        """Whether everybody who is to run runs, and nobody has to go for it or is lost."""
        return not (self.lost or self.refused or self.worse or any(not fate.node and not fate.waited for fate in self.fates))

    def as_json(self) -> dict[str, Any]:
        """What the command prints. Pods and nodes that the change does not concern are left out."""
        found = asdict(replace(self, admitted={}, offers={}, where={}, agents=lambda node: None))
        return {"fits": self.fits} | {key: value for key, value in found.items() if key not in ("admitted", "offers", "where", "agents")}

    def fate(self, pod: str) -> Fate | None:
        """What becomes of a pod; None for one that stays where it is, or is not there."""
        return next((fate for fate in self.fates if fate.pod == pod), None)

    def node_of(self, pod: str) -> str:
        """Where a pod is or goes; "" for nowhere."""
        fate = self.fate(pod)
        return fate.node if fate is not None else self.where.get(pod, "")

    def told(self, pod: str) -> str:
        """The same in words."""
        if pod in self.refused:
            return f"it is refused: {self.refused[pod]}"
        if pod in self.lost:
            return "it is lost: no controller recreates it"
        fate = self.fate(pod)
        if fate is None:
            return "there is no such pod, or it stays where it is"
        return f"it goes to {fate.node}" if fate.node else f"it has no node: {fate.message}"


class Simulator:
    """Answers for one cluster. `now` in Unix time; the same `seed` gives the same answer. Raises as `Scheduler.simulate`."""

    def __init__(self, scheduler: Scheduler, *, now: float, seed: int = 0, hot: int = 65, agent_gates: str = "") -> None:
        self._gate = gates_of(agent_gates)
        self._scheduler, self._now, self._seed, self._hot = scheduler, now, seed, hot
        self._feeds = scheduler.kinds()
        self.rounds: tuple[Options, int] | None = None
        """How many rounds of which descheduler follow each question."""
        self._structs = Structs()
        self._overcommit = Overcommit(self._structs, now)
        self._known: tuple[Cluster, Simulation] | None = None  # the last one, for questions about the same cluster
        self._counted: dict[int, tuple[Pod, ResourceVector]] = {}

    def ask(self, before: Cluster, changed: Changed, *, helping: bool = True) -> Answer:
        """What the changes lead to. `helping`: look for what would help, too."""
        answer = Answer(lost=changed.lost, not_simulated=changed.not_simulated)
        chance = random.Random(self._seed)
        before, after = self._overcommit.offered(before), self._overcommit.offered(changed.cluster)
        fresh = [pod for pod in changed.new if key_of(pod) not in changed.leave]
        made, answer.refused = admitted(after, fresh, lambda: chance.randrange(100))
        answer.admitted = {key_of(pod): pod for pod in made}
        moved = [pod for pod in changed.new if key_of(pod) in changed.leave]
        waiting = [pod for pod in after.all(kinds.PODS).values() if _waits(pod)]
        pods = [self._structs.of(pod, Pod) for pod in (*moved, *made, *waiting)]
        placements = self._simulation(after).ask(pods)
        keys = {key_of(pod) for pod in waiting}
        answer.fates = [_fate(each, changed.leave, keys) for each in placements]
        nodes = {fate.pod: fate.node for fate in answer.fates if fate.node}
        asked = {pod.key: pod for pod in pods}
        self._books(answer, before, after, [(asked[key], node) for key, node in nodes.items()])
        if self.rounds is not None:
            self._cooler(answer, self._moves(answer, after, {key_of(pod): pod for pod in (*moved, *made, *waiting)}))
        if answer.pending and helping:
            answer.helps = self._helps(after, pods, answer)
        return answer

    def _moves(self, answer: Answer, after: Cluster, asked: dict[str, Obj]) -> Cluster:
        """The cluster after the descheduler's rounds, with the pods that asked for a node where they were placed."""
        assert self.rounds is not None
        options, rounds = self.rounds
        cluster = after.copy()
        for fate in answer.placed:
            pod = asked[fate.pod]
            cluster.put({**pod, "spec": {**pod["spec"], "nodeName": fate.node}, "status": {"phase": "Running"}})
        cluster, answer.moved = moves(
            cluster, options, lambda there, pods: self._simulated(there).ask(pods), self._structs, self._now, rounds
        )
        return cluster

    def help_for(self, changed: Changed, pod: str) -> list[str]:
        """What would give one pending pod ("namespace/name") a node, as the others stand."""
        after = self._overcommit.offered(changed.cluster)
        found = after.all(kinds.PODS).get(pod)
        if found is None or not _waits(found):
            return ["It does not wait for a node."]
        asked = self._structs.of(found, Pod)
        placement = self._simulation(after).fits(asked)
        fate = _fate(placement, {}, {pod})
        if fate.node:
            return [f"Nothing: it fits on {fate.node} as the cluster is now."]
        return self._helps(after, [asked], Answer([fate])) or ["Neither other nodes nor less pods of lower priority: see the reason."]

    def _simulation(self, cluster: Cluster) -> Simulation:
        """What the scheduler would do there; each question leaves it as it was."""
        if self._known is None or not _same(self._known[0], cluster):
            self._known = cluster.copy(), self._simulated(cluster)
        return self._known[1]

    def _simulated(self, cluster: Cluster) -> Simulation:
        of = self._structs.of
        nodes = [of(node, Node) for node in cluster.all(kinds.NODES).values()]
        pods = [of(pod, Pod) for pod in cluster.all(kinds.PODS).values() if (pod.get("spec") or {}).get("nodeName")]
        namespaces = [of(each, Namespace) for each in cluster.all(kinds.NAMESPACES).values()]
        objects = {kind: [of(each, feed.projection) for each in cluster.all(feed.kind).values()] for kind, feed in self._feeds.items()}
        return self._scheduler.simulate(Snapshot(nodes, pods, namespaces, objects), now=self._now, seed=self._seed)

    # ---------------------------------------------------------------- what helps

    def _helps(self, after: Cluster, pods: Sequence[Pod], answer: Answer) -> list[str]:
        """The smallest changes that would give everybody a place: pods that would go, or new nodes of a shape that is there."""
        found = [
            f"{len(fate.victims)} pods of lower priority leave {fate.nominated}: {', '.join(fate.victims)} (for {fate.pod})"
            for fate in answer.pending
            if fate.victims
        ]
        models: dict[tuple[Any, ...], str] = {}
        for name, node in sorted(after.all(kinds.NODES).items()):
            if not (node.get("spec") or {}).get("unschedulable"):
                models.setdefault(shape_of(node), name)
        best: tuple[int, str] | None = None
        for like in models.values():
            bound = best[0] - 1 if best is not None else MOST
            count = self._nodes_needed(after, pods, like, bound)
            if count is not None:
                best = count, like
        if best is not None:
            found.append(f"{best[0]} more {'node' if best[0] == 1 else 'nodes'} like {best[1]} (--more {best[0]}={best[1]})")
        return found

    def _nodes_needed(self, after: Cluster, pods: Sequence[Pod], like: str, most: int) -> int | None:
        low, high = 0, 1
        while high <= most and not self._all_fit(after, pods, like, high):
            low, high = high, high * 2
        if high > most and not (low < most and self._all_fit(after, pods, like, most)):
            return None
        high = min(high, most)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._all_fit(after, pods, like, middle) else (middle, high)
        return high if high <= most else None

    def _all_fit(self, after: Cluster, pods: Sequence[Pod], like: str, count: int) -> bool:
        more = [convert(node, Node) for node in clones(after, like, count)]
        described: dict[str, list[Any]] = defaultdict(list)
        for node in more:
            for kind, obj in described_as(after, like, node.metadata.name):
                if kind.key in self._feeds:
                    described[kind.key].append(convert(obj, self._feeds[kind.key].projection))
        return all(each.placed for each in self._simulation(after).ask(pods, more, described))

    # ---------------------------------------------------------------- books

    def _books(self, answer: Answer, before: Cluster, after: Cluster, placed: list[tuple[Pod, str]]) -> None:
        stays, then_stays = {pod.key: pod for pod in self._bound(before)}, {pod.key: pod for pod in self._bound(after)}
        was = _Books()
        quotas, then_quotas = (cluster.all(kinds.ELASTICQUOTAS) for cluster in (before, after))
        tree, then_tree = topology(quotas.values()), topology(then_quotas.values())
        was.add(self._counts(pod, tree) for pod in stays.values())
        if quotas == then_quotas:
            will = was.copy()
            will.add((self._counts(pod, tree) for key, pod in stays.items() if then_stays.get(key) is not pod), -1)
            will.add(self._counts(pod, tree) for key, pod in then_stays.items() if stays.get(key) is not pod)
        else:  # pods may belong to another quota now
            will = _Books()
            will.add(self._counts(pod, then_tree) for pod in then_stays.values())
        will.add(self._counts(pod, then_tree) for pod, _ in placed)
        there, then = _allocatable(before), _allocatable(after)
        answer.offers = then
        for resource in SHOWN:
            pair = _total(there, resource), _total(then, resource)
            if any(pair):
                answer.uses.append(Use(resource, (was.total.get(resource, 0), will.total.get(resource, 0)), pair))
        answer.quotas = [*_quotas(after, was.quotas, will.quotas)]
        busy = {node for _, node in placed} | {
            pod["spec"]["nodeName"] for pod in after.all(kinds.PODS).values() if (pod.get("spec") or {}).get("nodeName") and not _stays(pod)
        }
        answer.free = sorted(after.all(kinds.NODES).keys() - busy)
        of = self._structs.of
        nodes = {name: of(node, Node) for name, node in after.all(kinds.NODES).items()}
        metrics = {name: of(metric, NodeMetric) for name, metric in after.all(kinds.NODEMETRICS).items()}
        answer.suppressed = [*suppressed(config_of(after), nodes, metrics, then_stays, placed)]
        answer.hot = [*self._hot_nodes(before, after, placed, then_stays.keys())]
        self._evictions(answer, before, after, placed)

    def _evictions(self, answer: Answer, before: Cluster, after: Cluster, placed: list[tuple[Pod, str]]) -> None:
        """Whom node agents evict, and who is so because of the changes."""
        coming: dict[str, list[Obj]] = defaultdict(list)
        new = {**after.all(kinds.PODS), **answer.admitted}
        for pod, node in placed:
            coming[node].append(new.get(pod.key) or msgspec.to_builtins(pod))
        then, was = _by_node(after), _by_node(before)
        answer.where = {key_of(pod): node for node, pods in then.items() for pod in pods if node}

        def agent(cluster: Cluster, name: str, there: list[Obj]) -> Agent | None:
            node, metric = (cluster.all(kind).get(name) for kind in (kinds.NODES, kinds.NODEMETRICS))
            if node is None:
                return None
            read = self._structs.of(metric, NodeMetric) if metric is not None else None
            return Agent(config_of(cluster), self._structs.of(node, Node), read, there, self._now, self._gate)

        answer.agents = lambda name: agent(after, name, [*then[name], *coming[name]])
        if not any(self._gate(gate) for gate in (*MemoryEvict.gates, *CPUEvict.gates)):
            return
        for name in sorted(after.all(kinds.NODEMETRICS)):
            made = answer.agents(name)
            if made is None or not (found := made.evicted()):
                continue
            answer.evicted += found
            earlier = agent(before, name, was[name])
            known = {each.pod for each in earlier.evicted()} if earlier is not None else set()
            answer.worse += [each.pod for each in found if each.pod not in known]

    def _cooler(self, answer: Answer, then: Cluster) -> None:
        """Which nodes are hot when the descheduler has moved what it moves."""
        bound = {pod.key for pod in self._bound(then)}
        coming = [(pod, fate.node) for fate in answer.placed if (pod := self._of(then, fate.pod)) is not None]
        answer.hot_then = [name for name, _, _ in self._hot_nodes(then, then, coming, bound)]

    def _of(self, cluster: Cluster, key: str) -> Pod | None:
        pod = cluster.all(kinds.PODS).get(key)
        return self._structs.of(pod, Pod) if pod is not None else None

    def _counts(self, pod: Pod, quotas: QuotaTopology) -> tuple[str, ResourceVector]:
        """The quota that a pod belongs to, and what it requests, which is worked out once."""
        found = self._counted.get(id(pod))
        if found is None:
            found = self._counted[id(pod)] = pod, pod_requests(pod)
        return resolve(pod.metadata.labels, pod.metadata.namespace, quotas, False), found[1]

    def _bound(self, cluster: Cluster) -> Iterator[Pod]:
        for pod in cluster.all(kinds.PODS).values():
            if (pod.get("spec") or {}).get("nodeName") and not ended(pod):
                yield self._structs.of(pod, Pod)

    def _hot_nodes(
        self, before: Cluster, after: Cluster, placed: Iterable[tuple[Pod, str]], stays: Collection[str]
    ) -> Iterator[tuple[str, int, int]]:
        """Nodes whose CPU use passes the threshold with the changes: measured, and for pods that come or go by measure or estimate."""
        coming: dict[str, int] = defaultdict(int)
        for pod, node in placed:
            coming[node] += estimate(pod)
        allocatable = _allocatable(after)
        for name, plain in after.all(kinds.NODEMETRICS).items():
            room = allocatable.get(name, {}).get("cpu", 0)
            if not room:
                continue
            metric = self._structs.of(plain, NodeMetric)
            was = before.all(kinds.NODEMETRICS).get(name)
            earlier = _measured(self._structs.of(was, NodeMetric)) if was is not None else 0
            gone = (each for each in metric.status.pods_metric if f"{each.namespace}/{each.name}" not in stays)
            usage = _measured(metric) - sum(cpu_of(each.pod_usage) for each in gone) + coming[name]
            if 100 * usage >= self._hot * room:
                yield name, 100 * earlier // room, 100 * usage // room


def _by_node(cluster: Cluster) -> dict[str, list[Obj]]:
    found = cluster.pods_by_node()
    return defaultdict(list, {node: [pod for pod in pods if not ended(pod)] for node, pods in found.items()})


def _waits(pod: Obj) -> bool:
    phase = (pod.get("status") or {}).get("phase", "Pending")
    return not (pod.get("spec") or {}).get("nodeName") and phase == "Pending" and not pod["metadata"].get("deletionTimestamp")


def _stays(pod: Obj) -> bool:
    """Whether the pod does not keep its node from being free."""
    return ended(pod) or belongs_to_node(pod)


def _fate(placement: Placement, leave: dict[str, str], waiting: set[str]) -> Fate:
    fate = Fate(placement.pod, placement.node, left=leave.get(placement.pod, ""), waited=placement.pod in waiting)
    if not placement.placed:
        fate.message, fate.victims, fate.nominated = placement.message, [*placement.victims], placement.nominated
    return fate


def _same(one: Cluster, other: Cluster) -> bool:
    """Whether they have the same objects: nobody changes one in place."""
    if one.objects.keys() != other.objects.keys():
        return False
    return all(
        found.keys() == other.objects[kind].keys() and all(obj is other.objects[kind][key] for key, obj in found.items())
        for kind, found in one.objects.items()
    )


class _Books:
    """What pods request: in all, and by the quota that they belong to."""

    def __init__(self) -> None:
        self.total: ResourceVector = {}
        self.quotas: dict[str, ResourceVector] = defaultdict(dict)

    def copy(self) -> _Books:
        """Books of their own with the same sums."""
        made = _Books()
        made.total = dict(self.total)
        made.quotas.update({name: dict(sums) for name, sums in self.quotas.items()})
        return made

    def add(self, counts: Iterable[tuple[str, ResourceVector]], sign: int = 1) -> None:
        """Count pods, or with -1 count them no more."""
        for quota, request in counts:
            amounts = request if sign > 0 else {name: -amount for name, amount in request.items()}
            add_into(self.total, amounts)
            add_into(self.quotas[quota], amounts)


def _allocatable(cluster: Cluster) -> dict[str, ResourceVector]:
    """Of nodes that take pods."""
    nodes = cluster.all(kinds.NODES).items()
    open_ = ((name, node) for name, node in nodes if not (node.get("spec") or {}).get("unschedulable"))
    return {name: parse((node.get("status") or {}).get("allocatable") or {}) for name, node in open_}


def _total(amounts: dict[str, ResourceVector], resource: str) -> int:
    return sum(each.get(resource, 0) for each in amounts.values())


def _quotas(after: Cluster, was: dict[str, ResourceVector], will: dict[str, ResourceVector]) -> Iterable[Quota]:
    """Quotas whose own use changes."""
    for quota in after.all(kinds.ELASTICQUOTAS).values():
        name = quota["metadata"]["name"]
        most = parse((quota.get("spec") or {}).get("max") or {})
        for resource in sorted(most.keys() | will[name].keys()):
            pair = was[name].get(resource, 0), will[name].get(resource, 0)
            if pair[0] != pair[1]:
                yield Quota(name, resource, pair, most.get(resource))


def _measured(metric: NodeMetric) -> int:
    info = metric.status.node_metric
    return 0 if info is None else cpu_of(info.node_usage)
