"""All quotas: which pod counts where, and what there is to share (SCH-EQ-02, SCH-EQ-03, SCH-EQ-11).

Follows pods, nodes and quotas as they are told; no I/O.
"""

from __future__ import annotations

import logging
from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from koord.accounting.resources import ResourceVector, add_into, only, parse, sub, sub_into
from koord.api import names
from koord.api.objects import ElasticQuota
from koord.api.times import parse_time
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.columns import Columns
from roles.scheduler.cluster.nodeview import NodeView
from roles.scheduler.cluster.podinfo import PodInfo, PodShape
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.plugins.elastic_quota.hooks import Hooks
from roles.scheduler.plugins.elastic_quota.model import DEFAULT, DEFAULT_TREE, ROOT, SYSTEM, QuotaSpec, spec_of
from roles.scheduler.plugins.elastic_quota.tree import Quota, QuotaTree, negative

log = logging.getLogger(__name__)

_AMOUNT = "ElasticQuota/amount"


@dataclass(frozen=True, slots=True)
class Rules:
    """How the cache is kept: arguments of the plugin and feature gates of the role."""

    default_max: ResourceVector
    system_max: ResourceVector
    namespace: str
    scale_min: bool = True
    guarantee: bool = False
    trees: bool = False
    label_only: bool = False  # DisableDefaultQuota
    ignore_overhead: bool = False
    drop_terminating: bool = False  # as soon as they are deleted
    drop_overdue: bool = False  # when their grace period is over too


class _Age(NamedTuple):
    """Sorts quotas, the oldest first (RFC 3339 in UTC sorts as text). Of the objects, not of when they were seen: a restart or another
    leader sees them in another order, and has to find the same."""

    created: str
    namespace: str
    name: str


@dataclass(slots=True, eq=False)
class Member:
    """A pod in the cache. `amount` is what it counts with: its request, of the resources in its quota's max."""

    pod: PodInfo
    tree: QuotaTree
    quota: Quota
    amount: ResourceVector
    preemptible: bool
    seen: bool
    assigned: bool


def is_preemptible(pod: PodInfo) -> bool:
    """Whether the pod may use more than its quota's min, and be preempted for it."""
    return pod.shape.labels.get(names.LABEL_PREEMPTIBLE) != "false"


class QuotaCache(Columns):
    """Trees, quotas and pods. As columns it follows nodes and the pods that count on them, also within what-ifs; `pod_seen` and
    `pod_gone` tell of all others. `clock` gives the time of the event in seconds."""

    def __init__(self, rules: Rules, clock: Callable[[], float], hooks: Hooks | None = None) -> None:
        self.rules = rules
        self.hooks = hooks if hooks is not None else Hooks(())
        self._clock = clock
        self.trees: dict[str, QuotaTree] = {}
        self._tree_of: dict[str, str] = {}
        self._specs: dict[str, dict[str, QuotaSpec]] = {}  # by name and namespace, the one that holds first: the oldest
        self._ages: dict[tuple[str, str], _Age] = {}  # by name and namespace
        self._objects: dict[tuple[str, str], ElasticQuota] = {}
        self._members: dict[str, Member] = {}
        self._by_quota: dict[str, dict[str, Member]] = {}
        self._deleting: set[str] = set()  # UIDs of members
        self._homes: dict[str, str] = {}  # by namespace the quota of its pods that name none, where that is not the default one
        self._lists: dict[str, tuple[_Age, tuple[str, ...]]] = {}  # by quota, its age and the namespaces that it lists
        self._listed: dict[str, list[_Age]] = {}  # by namespace, the quotas that list it
        self._roots: dict[str, QuotaSpec] = {}  # root quotas of other trees than the default one
        self._taken: ResourceVector = {}  # what they take off the nodes
        self._node_total: ResourceVector = {}
        self._node_amounts: dict[int, ResourceVector] = {}
        self._unsettled: set[str] = set()  # quotas of which pods may belong to others by now
        self.refused: Callable[[str, str], None] = lambda quota, problem: log.error("quota %s: %s", quota, problem)
        # Pods that are subject to no quota (DisableDefaultQuota): kept in sight, because their quota may appear.
        self._limbo = QuotaTree()
        self._free = self._limbo.set_quota(QuotaSpec("", parent=""))
        tree = self._tree(DEFAULT_TREE)
        for spec in self._built_in():
            tree.set_quota(spec)
            self._tree_of[spec.name] = DEFAULT_TREE

    def _built_in(self) -> tuple[QuotaSpec, ...]:
        where, rules = self.rules.namespace, self.rules
        return (
            QuotaSpec(ROOT, where, parent="", is_parent=True, lends=False),
            QuotaSpec(SYSTEM, where, max=rules.system_max, weight=rules.system_max),
            QuotaSpec(DEFAULT, where, max=rules.default_max, weight=rules.default_max),
        )

    def _tree(self, name: str) -> QuotaTree:
        tree = self.trees.get(name)
        if tree is None:
            tree = self.trees[name] = QuotaTree(scale_min=self.rules.scale_min, guarantee=self.rules.guarantee)
        return tree

    # ---------------------------------------------------------------- looking up

    def quota(self, name: str) -> tuple[QuotaTree, Quota] | None:
        """A quota with its tree."""
        tree = self.trees.get(self._tree_of.get(name, ""))
        quota = tree.get(name) if tree is not None and name in self._tree_of else None
        return (tree, quota) if tree is not None and quota is not None else None

    def tree_name(self, quota: str) -> str:
        """The tree that a quota is in."""
        return self._tree_of.get(quota, DEFAULT_TREE)

    def quotas(self) -> Iterable[tuple[str, Quota]]:
        """All quotas with the names of their trees; of the roots only the default tree's."""
        for name, tree in self.trees.items():
            for quota in tree.quotas():
                if quota is not tree.root or name == DEFAULT_TREE:
                    yield name, quota

    def member(self, uid: str) -> Member | None:
        """A pod's entry."""
        return self._members.get(uid)

    def members(self, quota: str) -> Iterable[Member]:
        """Pods directly in a quota."""
        return self._by_quota.get(quota, {}).values()

    @contextmanager
    def once_through(self, ctx: CycleContext, quota: Quota, *, parents: bool) -> Iterator[bool]:
        """Inside, as if all were done that is under way in a quota (with `parents` in its tree) and comes before a pod: pods that are
        nominated to nodes use what they request, and those on their way out nothing. Gives whether there are such nominations."""
        state, mine = ctx.state, ctx.state.gangs.of(ctx.pod)

        def concerns(member: Member) -> bool:
            path = member.quota.path()
            return quota in path or (parents and quota.path()[-1] is path[-1])

        ahead = [self._members.get(pod.uid) for _, pod in state.nominations.all_ahead_of(ctx.pod) if pod.uid != ctx.pod.uid]
        coming = [member for member in ahead if member is not None and not member.assigned and concerns(member)]
        coming = [member for member in coming if not mine or state.gangs.of(member.pod) != mine]
        gone = [self._members.get(uid) for uid in {*self._deleting, *state.evictions.all_leaving()}] if coming else ()
        going = [member for member in gone if member is not None and member.assigned and concerns(member) and state.leaving(member.pod)]
        steps = [(member, 1) for member in coming] + [(member, -1) for member in going]
        for member, sign in steps:
            self._use(member, sign)
        try:
            yield bool(coming)
        finally:
            for member, sign in steps:
                self._use(member, -sign)

    def resolve(self, shape: PodShape) -> str:
        """The quota that pods of a shape belong to; "" for none."""
        label = shape.labels.get(names.LABEL_QUOTA_NAME, "")
        if self.rules.label_only:
            return label if label in self._tree_of and label != ROOT else ""
        name = label or self._homes.get(shape.namespace, DEFAULT)
        return name if name in self._tree_of and name != ROOT else DEFAULT

    def amount(self, pod: PodInfo, quota: Quota) -> ResourceVector:
        """What a pod counts with in a quota. Not to be changed: pods of one shape share it."""
        known: tuple[QuotaSpec, ResourceVector] | None = pod.shape.memo.get(_AMOUNT)
        if known is None or known[0] is not quota.spec:
            amounts: ResourceVector = pod.shape.amounts
            if self.rules.ignore_overhead and pod.pod.spec.overhead:
                amounts = sub(amounts, parse(pod.pod.spec.overhead))
            known = pod.shape.memo[_AMOUNT] = (quota.spec, only(amounts, quota.spec.max))
        return known[1]

    # ---------------------------------------------------------------- quotas

    def show(self, quota: ElasticQuota) -> None:
        """Remember how an object looks, unless a newer version of it was seen."""
        key = (quota.metadata.name, quota.metadata.namespace)
        known = self._objects.get(key)
        if known is None or known.metadata.uid != quota.metadata.uid or _version(quota) >= _version(known):
            self._objects[key] = quota

    def shown(self, name: str) -> ElasticQuota | None:
        """The object of a quota as it was seen last; of several of that name the one that holds."""
        known = self._specs.get(name)
        return self._objects.get((name, next(iter(known)))) if known else None

    def quota_event(self, old: ElasticQuota | None, new: ElasticQuota | None) -> None:
        """An ElasticQuota appeared, changed or went. A malformed one is reported and keeps its last good spec."""
        if new is None:
            if old is not None:
                self._objects.pop((old.metadata.name, old.metadata.namespace), None)
                self._remove(old.metadata.name, old.metadata.namespace)
            return
        self.show(new)
        try:
            spec = spec_of(new, trees=self.rules.trees)
        except ValueError as error:
            self.refused(f"{new.metadata.namespace}/{new.metadata.name}", f"{error}; its last good state stays")
            return
        known, key, age = self._specs.get(spec.name, {}), (spec.name, spec.namespace), _age(new)
        held = next(iter(known), "")
        if spec.namespace in known:
            spec = replace(spec, tree=known[spec.namespace].tree)  # a quota's tree is fixed at first sight
        if known.get(spec.namespace) == spec and self._ages[key] == age:
            hooks = self.hooks.tell(spec.tree, "IsQuotaUpdated", lambda hook: hook.is_updated(old or new, new))
            if held != spec.namespace or not any(hooks):
                return
        self._ages[key] = age
        known = dict(sorted({**known, spec.namespace: spec}.items(), key=lambda item: self._ages[spec.name, item[0]]))
        self._specs[spec.name] = known
        holds = next(iter(known))
        if spec.namespace in (held, holds):
            self._apply(known[holds])
        else:
            self._map_namespaces(spec.name)
        for other in {held, spec.namespace} - {holds, ""}:
            self.refused(f"{other}/{spec.name}", f"quota {holds}/{spec.name} has that name and is older; it is used instead")

    def _apply(self, spec: QuotaSpec) -> None:
        tree_name = DEFAULT_TREE if spec.name in (ROOT, SYSTEM, DEFAULT) else spec.tree
        if self._tree_of.get(spec.name, tree_name) != tree_name:  # another object of that name holds from now on
            self._drop(spec.name)
        tree = self._tree(tree_name)
        before = tree.get(spec.name)
        old, state = before.spec if before is not None else None, dict[str, Any]()
        self.hooks.tell(tree_name, "PreQuotaUpdate", lambda hook: hook.pre_update(old, spec, state))
        # Its pods count with what they request of the resources in max, whatever the amounts there.
        members = list(self.members(spec.name)) if old is not None and old.max.keys() != spec.max.keys() else []
        for member in members:
            self._charge(member, -1)
        quota = tree.set_quota(spec)
        for member in members:
            member.amount = self.amount(member.pod, quota)
            self._charge(member, 1)
        if spec.name not in self._tree_of:
            self._tree_of[spec.name] = tree_name
            self._unsettled.update((self._free.name, DEFAULT))  # pods may have named it before
        self._map_namespaces(spec.name)
        self._set_root(spec.name, spec if spec.tree_root and tree_name != DEFAULT_TREE else None)
        self.hooks.tell(tree_name, "PostQuotaUpdate", lambda hook: hook.post_update(old, spec, state))

    def _remove(self, name: str, namespace: str) -> None:
        known = self._specs.get(name, {})
        held = next(iter(known), "") == namespace
        known.pop(namespace, None)
        self._ages.pop((name, namespace), None)
        if not known:
            self._specs.pop(name, None)
        if not held:
            self._map_namespaces(name)
            return
        built_in = next((spec for spec in self._built_in() if spec.name == name), None)
        if known or built_in is not None:
            self._apply(next(iter(known.values())) if known else built_in)  # type: ignore[arg-type]
            return
        self._drop(name)

    def _drop(self, name: str) -> None:
        """Take a quota out of its tree. Its pods go where they belong without it."""
        tree_name = self._tree_of[name]
        tree, state = self.trees[tree_name], dict[str, Any]()
        quota = tree.get(name)
        old = quota.spec if quota is not None else None
        self.hooks.tell(tree_name, "PreQuotaUpdate", lambda hook: hook.pre_update(old, None, state))
        orphans = list(self.members(name))
        for member in orphans:
            self._forget(member.pod.uid)
        tree.remove_quota(name)
        del self._tree_of[name]
        if len(tree) == 1 and tree_name != DEFAULT_TREE:
            del self.trees[tree_name]
        self._map_namespaces(name)
        self._set_root(name, None)
        for member in orphans:
            self._enter(member.pod, seen=member.seen, assigned=member.assigned)
        self.hooks.tell(tree_name, "PostQuotaUpdate", lambda hook: hook.post_update(old, None, state))

    def _map_namespaces(self, name: str) -> None:
        """What a quota says of namespaces may have changed: find anew which quota those have. It is the one in a namespace that is named
        like it, or else the oldest of those that list it. Pods leave the former one."""
        spec, nothing = next(iter(self._specs.get(name, {}).values()), None), (_Age("", "", name), ())
        before = self._lists.pop(name, nothing)
        after = (self._ages[name, spec.namespace], spec.namespaces) if spec is not None and spec.namespaces else nothing
        concerned = {name}
        if after != before:
            concerned.update(before[1], after[1])
            for namespace in before[1]:
                self._listed[namespace].remove(before[0])
            for namespace in after[1]:
                insort(self._listed.setdefault(namespace, []), after[0])
        if after is not nothing:
            self._lists[name] = after
        for namespace in concerned:
            listed, own = self._listed.get(namespace), namespace in self._specs.get(namespace, ())
            home = namespace if own else listed[0].name if listed else ""
            former = self._homes.pop(namespace, "")
            if home:
                self._homes[namespace] = home
            if not listed:
                self._listed.pop(namespace, None)
            if home != former:
                self._unsettled.add(DEFAULT if former in ("", ROOT) else former)

    def _set_root(self, name: str, spec: QuotaSpec | None) -> None:
        """Whether a quota is the root of a tree of its own, and how. Of several in a tree the youngest has its total."""
        before = self._roots.pop(name, None)
        if spec is not None:
            self._roots[name] = spec
        if spec is before:
            return
        totals: dict[str, ResourceVector] = {key: {} for key in self.trees}
        self._taken = {}
        for root in sorted(self._roots, key=lambda root: self._ages[root, self._roots[root].namespace]):
            totals[self._tree_of[root]] = self._roots[root].total
            if not self._roots[root].outside_default:
                add_into(self._taken, self._roots[root].total)
        for tree in self.trees.keys() - {DEFAULT_TREE}:
            self.trees[tree].set_total(totals[tree])
        self._retotal()

    def _retotal(self) -> None:
        """The default tree has the nodes, less what the root quotas of other trees took out."""
        self.trees[DEFAULT_TREE].set_total(sub(self._node_total, only(self._taken, self._node_total)))

    # ---------------------------------------------------------------- nodes

    def attach(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def node_set(self, slot: int, old: NodeView | None, new: NodeView) -> None:
        before = self._node_amounts.get(slot)
        if before is None and new.node.metadata.deletion_timestamp:
            return
        if before != new.allocatable:
            self._offer(slot, dict(new.allocatable))

    def node_removed(self, slot: int, old: NodeView) -> None:
        self._offer(slot, {})

    def _offer(self, slot: int, amounts: ResourceVector) -> None:
        """What a node offers now. A resource that no node has any more is as one that none ever had: after a restart nobody knows of it."""
        before = self._node_amounts.pop(slot, {})
        if amounts:
            self._node_amounts[slot] = amounts
        sub_into(self._node_total, before)
        add_into(self._node_total, amounts)
        for name in before.keys() - amounts.keys():
            if not self._node_total[name] and not any(name in others for others in self._node_amounts.values()):
                del self._node_total[name]
        self._retotal()

    # ---------------------------------------------------------------- pods

    def pod_seen(self, pod: PodInfo) -> bool:
        """A pod is there, with a node or without. Returns whether it was known."""
        member = self._members.get(pod.uid)
        if not self._counts(pod):
            self._forget(pod.uid)
            return member is not None
        if member is None:
            self._enter(pod, seen=True)
            return False
        member.seen = True
        if member.pod.shape is not pod.shape or self.resolve(pod.shape) != member.quota.name:
            assigned = member.assigned
            self._forget(pod.uid)
            self._enter(pod, seen=True, assigned=assigned)
            member = self._members.get(pod.uid)
        else:
            member.pod = pod
            if pod.deleting:
                self._deleting.add(pod.uid)
        if self.hooks and member is not None and member.assigned:
            quota = member.quota.name
            self.hooks.tell(self.tree_name(quota), "OnPodUpdated", lambda hook: hook.pod_updated(quota, pod))
        return True

    def pod_gone(self, uid: str) -> None:
        """A pod was deleted or has ended."""
        self._forget(uid)

    def pod_added(self, slot: int, pod: PodInfo) -> None:
        member = self._members.get(pod.uid)
        if member is None:
            # One that nobody has seen, and that a what-if puts on a node, may stand for a pod that it tries on many nodes at once.
            if self._counts(pod) and (self.cluster.returning or not self.cluster.supposing):
                self._enter(pod, seen=False, assigned=True)
        elif not member.assigned:
            member.assigned = True
            self._use(member, 1)

    def pod_removed(self, slot: int, pod: PodInfo) -> None:
        member = self._members.get(pod.uid)
        if member is None or not member.assigned:
            return
        if not member.seen:
            self._forget(pod.uid)
            return
        member.assigned = False
        self._use(member, -1)

    def _counts(self, pod: PodInfo, now: float | None = None) -> bool:
        if pod.reservation:
            return False  # what is reserved is charged to the pods that use it
        if not pod.deleting:
            return True
        if self.rules.drop_terminating:
            return False
        return not (self.rules.drop_overdue and (self._clock() if now is None else now) >= overdue_at(pod))

    def sweep(self, now: float) -> None:
        """Let go of deleted pods whose grace period is over (gate ElasticQuotaIgnoreTerminatingPod)."""
        if self.rules.drop_overdue:
            for uid in [uid for uid in self._deleting if not self._counts(self._members[uid].pod, now)]:
                self._forget(uid)

    def settle(self) -> None:
        """Move pods whose proper quota is another one by now: because that appeared, or because quotas list other namespaces."""
        if not self._unsettled:
            return
        homes, self._unsettled = self._unsettled, set()
        for home in sorted(homes):
            for member in list(self.members(home)):
                if self.resolve(member.pod.shape) != home:
                    self._forget(member.pod.uid)
                    self._enter(member.pod, seen=member.seen, assigned=member.assigned)

    def _enter(self, pod: PodInfo, *, seen: bool, assigned: bool = False) -> None:
        tree, quota = self.quota(self.resolve(pod.shape)) or (self._limbo, self._free)
        member = Member(pod, tree, quota, self.amount(pod, quota), is_preemptible(pod), seen, assigned)
        self._members[pod.uid] = member
        self._by_quota.setdefault(quota.name, {})[pod.uid] = member
        if pod.deleting:
            self._deleting.add(pod.uid)
        self._charge(member, 1)

    def _forget(self, uid: str) -> None:
        member = self._members.pop(uid, None)
        if member is None:
            return
        self._charge(member, -1)
        self._deleting.discard(uid)
        members = self._by_quota[member.quota.name]
        del members[uid]
        if not members:
            del self._by_quota[member.quota.name]

    def _charge(self, member: Member, sign: int) -> None:
        amount = member.amount if sign > 0 else negative(member.amount)
        member.tree.charge_request(member.quota, amount, preemptible=member.preemptible)
        if member.assigned:
            self._use(member, sign)

    def _use(self, member: Member, sign: int) -> None:
        amount = member.amount if sign > 0 else negative(member.amount)
        member.tree.charge_used(member.quota, amount, preemptible=member.preemptible)


def _age(quota: ElasticQuota) -> _Age:
    meta = quota.metadata
    return _Age(meta.creation_timestamp or "", meta.namespace, meta.name)


def _version(quota: ElasticQuota) -> int:
    version = quota.metadata.resource_version
    return int(version) if version.isdigit() else 0


def overdue_at(pod: PodInfo) -> float:
    """When a deleted pod should be gone for certain, in seconds since the epoch."""
    meta = pod.pod.metadata
    return parse_time(meta.deletion_timestamp or "") + float(meta.deletion_grace_period_seconds or 0)
