"""One tree of quotas with what is requested, used and due in it (SCH-EQ-03..06).

Every change is passed up as a difference and stops where nothing changes any more; shares are worked out anew only for the resources
and below the parents that a change touched, when somebody asks. Amounts are integers in base units (milli-CPU, bytes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from koord.accounting.resources import ResourceVector, add_into, max_, sub
from roles.scheduler.plugins.elastic_quota.model import OUTSIDE, ROOT, QuotaSpec
from roles.scheduler.plugins.elastic_quota.waterfill import Claim, fill, scaled_mins

_CYCLE = ""  # no quota has this name


@dataclass(slots=True, eq=False, repr=False)
class Quota:
    """A quota and its sums. `self_*` is of pods directly in it, `used` and `non_preemptible_*` include the quotas below.

    `child_request` is what pods and children ask for, `request` that or at least min for a quota that does not lend, `limited` is request
    cut to max, which the parent sees. `runtime` is the share by resource; one that is missing is not limited. `version` moves with any
    of these.
    """

    spec: QuotaSpec
    parent: Quota | None = None
    children: dict[str, Quota] = field(default_factory=dict)
    self_request: ResourceVector = field(default_factory=dict)
    self_used: ResourceVector = field(default_factory=dict)
    self_non_preemptible_request: ResourceVector = field(default_factory=dict)
    self_non_preemptible_used: ResourceVector = field(default_factory=dict)
    child_request: ResourceVector = field(default_factory=dict)
    request: ResourceVector = field(default_factory=dict)
    limited: ResourceVector = field(default_factory=dict)
    used: ResourceVector = field(default_factory=dict)
    non_preemptible_request: ResourceVector = field(default_factory=dict)
    non_preemptible_used: ResourceVector = field(default_factory=dict)
    allocated: ResourceVector = field(default_factory=dict)
    guaranteed: ResourceVector = field(default_factory=dict)
    scaled_min: ResourceVector = field(default_factory=dict)
    runtime: ResourceVector = field(default_factory=dict)
    dirty: set[str] = field(default_factory=set)  # resources to be shared out anew among the children
    version: int = 0

    @property
    def name(self) -> str:
        """The quota's name, unique in the cluster."""
        return self.spec.name

    def path(self) -> list[Quota]:
        """The quota and its ancestors up to the root, itself first."""
        chain: list[Quota] = []
        quota: Quota | None = self
        while quota is not None:
            chain.append(quota)
            quota = quota.parent
        return chain

    def limit(self) -> ResourceVector:
        """The runtime as admission holds pods to it: of the resources in max; none for the quotas outside the competition."""
        if self.name in OUTSIDE:
            return {}
        return {name: self.runtime[name] for name in self.spec.max if name in self.runtime}

    def told(self) -> dict[str, ResourceVector]:
        """The sums that annotations and metrics tell, by the names that both give them."""
        return {
            "runtime": self.limit(), "request": self.request, "child-request": self.child_request, "guaranteed": self.guaranteed,
            "allocated": self.allocated, "non-preemptible-request": self.non_preemptible_request,
            "non-preemptible-used": self.non_preemptible_used,
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"Quota({self.name})"


class QuotaTree:
    """Quotas below one root. `scale_min` shrinks mins that do not fit into their parent together; `guarantee` keeps what is used and min
    from being lent (gate ElasticQuotaGuaranteeUsage)."""

    def __init__(self, *, scale_min: bool = True, guarantee: bool = False) -> None:
        self.scale_min = scale_min
        self.guarantee = guarantee
        self.root = Quota(QuotaSpec(ROOT, parent="", is_parent=True, lends=False))
        self.total: ResourceVector = {}
        self._quotas: dict[str, Quota] = {ROOT: self.root}
        self._waiting: dict[str, dict[str, Quota]] = {}  # by what they wait for, quotas without a parent: its name, or the end of a cycle
        self._stale = False

    # ---------------------------------------------------------------- shape

    def get(self, name: str) -> Quota | None:
        """A quota of this tree."""
        return self._quotas.get(name)

    def quotas(self) -> Iterator[Quota]:
        """All quotas, the root included."""
        return iter(self._quotas.values())

    def __len__(self) -> int:
        return len(self._quotas)

    def set_quota(self, spec: QuotaSpec) -> Quota:
        """Add a quota or take over its new spec. One whose parent is not there (yet) is held to its max and competes with nobody."""
        if spec.name == ROOT:
            self.root.spec = spec
            self._restate(self.root)
            self.root.version += 1
            return self.root
        quota = self._quotas.get(spec.name)
        if quota is None:
            quota = self._quotas[spec.name] = Quota(spec)
        else:
            self._detach(quota)
            self._mark(quota, quota.spec.max)
            quota.spec, quota.runtime, quota.scaled_min = spec, {}, {}
        self._restate(quota)
        self._mark(quota, (*spec.max, *quota.child_request))
        self._attach(quota)
        self._attach_waiting(spec.name)
        return quota

    def remove_quota(self, name: str) -> None:
        """A quota went. Its pods must have been taken off before; its children compete with nobody until their parent is back."""
        quota = self._quotas.pop(name, None)
        if quota is None or quota is self.root:
            return
        for child in list(quota.children.values()):
            self._detach(child)
            self._stand_alone(child, name)
        self._detach(quota)
        self._attach_waiting()

    def _attach_waiting(self, *parents: str) -> None:
        """Attach quotas that may have a parent now: of those that were in a cycle any, wherever that was cut."""
        for parent in (*parents, _CYCLE):
            for quota in self._waiting.pop(parent, {}).values():
                self._attach(quota)

    def _attach(self, quota: Quota) -> None:
        parent = self._quotas.get(quota.spec.parent)
        if parent is None or quota in parent.path():
            self._stand_alone(quota, quota.spec.parent if parent is None else _CYCLE)
            return
        quota.parent = parent
        parent.children[quota.name] = quota
        self._pass(quota, parent, dict)

    def _detach(self, quota: Quota) -> None:
        parent = quota.parent
        if parent is None:
            for key in (quota.spec.parent, _CYCLE):
                waiting = self._waiting.get(key, {})
                if waiting.pop(quota.name, None) is not None and not waiting:
                    del self._waiting[key]
            return
        self._pass(quota, parent, negative)
        quota.parent = None
        del parent.children[quota.name]
        quota.runtime = {}

    def _pass(self, quota: Quota, parent: Quota, signed: Callable[[ResourceVector], ResourceVector]) -> None:
        """All that a quota has counts in its parent from now on, or (negative) no longer."""
        self._pass_used(parent, signed(quota.used), signed(quota.non_preemptible_used))
        self._pass_non_preemptible_request(parent, signed(quota.non_preemptible_request))
        self._pass_request(parent, signed(quota.limited))
        self._pass_allocated(parent, signed(quota.guaranteed))
        self._mark(parent, quota.spec.max)
        self._mark_outside(quota, quota.used)

    def _stand_alone(self, quota: Quota, until: str) -> None:
        self._waiting.setdefault(until, {})[quota.name] = quota
        quota.runtime = dict(quota.spec.max)
        quota.scaled_min = dict(quota.spec.min)
        quota.version += 1
        self._mark(quota, quota.spec.max)

    def _restate(self, quota: Quota) -> None:
        """Work request, limited, allocated and guaranteed out from scratch; the quota is detached, or the root."""
        names = quota.child_request.keys() | quota.spec.min.keys()
        quota.request, quota.limited = {}, {}
        self._limit(quota, names)
        quota.allocated, quota.guaranteed = {}, {}
        if self.guarantee:
            quota.allocated = dict(quota.self_used)
            for child in quota.children.values():
                add_into(quota.allocated, child.guaranteed)
            quota.guaranteed = max_(quota.allocated, quota.spec.min)

    # ---------------------------------------------------------------- sums

    def charge_request(self, quota: Quota, amount: ResourceVector, *, preemptible: bool = True) -> None:
        """A pod in the quota asks for so much more (negative: less)."""
        add_into(quota.self_request, amount)
        self._pass_request(quota, amount)
        if not preemptible:
            add_into(quota.self_non_preemptible_request, amount)
            self._pass_non_preemptible_request(quota, amount)

    def charge_used(self, quota: Quota, amount: ResourceVector, *, preemptible: bool = True) -> None:
        """A pod in the quota uses so much more (negative: less)."""
        add_into(quota.self_used, amount)
        self._pass_used(quota, amount, {} if preemptible else amount)
        if not preemptible:
            add_into(quota.self_non_preemptible_used, amount)
        self._pass_allocated(quota, amount)
        self._mark_outside(quota, amount)

    def set_total(self, total: ResourceVector) -> None:
        """What there is to be shared by the root's children, before what the quotas outside the competition use is taken off."""
        changed = [name for name, amount in sub(total, self.total).items() if amount or (name in total) != (name in self.total)]
        self.total = dict(total)
        if changed:
            self.root.version += 1
            self._mark(self.root, changed)

    def _pass_request(self, start: Quota, amount: ResourceVector) -> None:
        quota, change = start, amount
        while change:
            add_into(quota.child_request, change)
            change = self._limit(quota, change)
            quota.version += 1
            parent = quota.parent
            if parent is None:
                return
            if quota.name not in OUTSIDE:
                self._mark(parent, change)
            quota = parent

    def _limit(self, quota: Quota, names: Iterable[str]) -> ResourceVector:
        """Bring request and limited up to date; returns by how much limited changed, only what did."""
        lends = quota.spec.lends and not self.guarantee
        change: ResourceVector = {}
        for name in names:
            wanted = quota.child_request.get(name, 0)
            if not lends:
                wanted = max(wanted, quota.spec.min.get(name, 0))
            quota.request[name] = wanted
            limited = min(wanted, quota.spec.max.get(name, wanted))
            before = quota.limited.get(name, 0)
            quota.limited[name] = limited
            if limited != before:
                change[name] = limited - before
        return change

    def _pass_used(self, start: Quota, used: ResourceVector, non_preemptible: ResourceVector) -> None:
        for quota in start.path():
            add_into(quota.used, used)
            add_into(quota.non_preemptible_used, non_preemptible)
            quota.version += 1

    def _pass_non_preemptible_request(self, start: Quota, amount: ResourceVector) -> None:
        if amount:
            for quota in start.path():
                add_into(quota.non_preemptible_request, amount)
                quota.version += 1

    def _pass_allocated(self, start: Quota, amount: ResourceVector) -> None:
        quota, change = start, amount
        while change and self.guarantee:
            add_into(quota.allocated, change)
            after: ResourceVector = {}
            for name in change:
                guaranteed = max(quota.allocated[name], quota.spec.min.get(name, 0))
                before = quota.guaranteed.get(name, 0)
                quota.guaranteed[name] = guaranteed
                if guaranteed != before:
                    after[name] = guaranteed - before
            parent = quota.parent
            if parent is None:
                return
            self._mark(parent, after)
            quota, change = parent, after

    def _mark(self, quota: Quota, names: Iterable[str]) -> None:
        quota.dirty.update(names)
        self._stale = True

    def _mark_outside(self, quota: Quota, names: Iterable[str]) -> None:
        if quota.name in OUTSIDE:
            self._mark(self.root, names)

    # ---------------------------------------------------------------- shares

    @property
    def shared_total(self) -> ResourceVector:
        """What the root's children share: the total less what the quotas outside the competition use."""
        total = dict(self.total)
        for name in OUTSIDE:
            quota = self.root.children.get(name)
            if quota is not None:
                for resource, amount in quota.used.items():
                    if resource in total:
                        total[resource] -= amount
        return total

    def refresh(self, quota: Quota) -> None:
        """Bring the runtime of a quota and its ancestors up to date. Those outside the competition are held to none."""
        if self._stale and quota.name not in OUTSIDE:
            for member in reversed(quota.path()):
                self._share_out(member)

    def refresh_all(self) -> None:
        """Bring every runtime up to date."""
        if not self._stale:
            return
        todo = [self.root, *(quota for waiting in self._waiting.values() for quota in waiting.values())]
        while todo:
            quota = todo.pop()
            self._share_out(quota)
            todo.extend(quota.children.values())
        self._stale = False

    def _share_out(self, parent: Quota) -> None:
        """Share the resources that changed among the children of a parent."""
        if not parent.dirty:
            return
        total = self.shared_total if parent is self.root else {**parent.spec.max, **parent.runtime}
        if parent is self.root:
            parent.runtime = dict(total)
        for resource in sorted(parent.dirty):
            children = [child for child in parent.children.values() if child.name not in OUTSIDE]
            if parent is not self.root and resource not in parent.spec.max:
                for child in children:
                    self._take(child, resource, None, 0)
                continue
            self._share(parent, resource, children, total)
        parent.dirty.clear()

    def _share(self, parent: Quota, resource: str, children: list[Quota], total: ResourceVector) -> None:
        sharing = [child for child in children if resource in child.spec.max]
        mins = [child.spec.min.get(resource, 0) for child in sharing]
        if self.scale_min and resource in total:
            mins = scaled_mins(total[resource], mins)
        claims = [
            Claim(
                child.name,
                child.spec.weight.get(resource, 0),
                max(low, child.guaranteed.get(resource, 0)),
                child.limited.get(resource, 0),
                child.spec.lends and not self.guarantee,
            )
            for child, low in zip(sharing, mins, strict=True)
        ]
        for child, low, share in zip(sharing, mins, fill(total.get(resource, 0), claims), strict=True):
            self._take(child, resource, share, low)
        for child in children:
            if resource not in child.spec.max:
                self._take(child, resource, None, 0)

    def _take(self, child: Quota, resource: str, share: int | None, low: int) -> None:
        """The child's new share; None: the resource is not limited here any more."""
        if share is None:
            if child.runtime.pop(resource, None) is None:
                return
            child.scaled_min.pop(resource, None)
        else:
            if child.scaled_min.get(resource) != low:
                child.scaled_min[resource] = low
                child.version += 1
            if child.runtime.get(resource) == share:
                return
            child.runtime[resource] = share
        child.version += 1
        self._mark(child, (resource,))


def negative(amounts: ResourceVector) -> ResourceVector:
    """So much less."""
    return sub({}, amounts)
