"""Claims, templates and classes as the API server shows them, and what this scheduler has set out to allocate (SCH-DRA-08, SCH-DRA-09)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from koord.api.objects_pod import NodeSelector
from koord.api.objects_resource import DeviceClass, ResourceClaim, ResourceClaimSpec, ResourceClaimTemplate
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cluster.terms import NodeTerm, node_term
from roles.scheduler.plugins.dynamic_resources.devices import DeviceId
from roles.scheduler.plugins.dynamic_resources.extended import ANNOTATION, classes_by_resource
from roles.scheduler.plugins.dynamic_resources.inventory import DeviceColumns, Use, uses
from roles.scheduler.plugins.dynamic_resources.requests import Wanted, compiled

Obj = dict[str, Any]

_MOST_KEPT = 10_000  # specifications that are remembered


class Assumed(NamedTuple):
    """An allocation that is on its way. `status` is what is written, `uses` what it takes, `pod` the UID of the pod that it is for."""

    claim_uid: str
    pod: str
    status: Obj
    uses: tuple[Use, ...]
    terms: tuple[NodeTerm, ...] | None


class Lent(NamedTuple):
    """What a claim gets in a what-if, and the nodes from which that can be used."""

    uses: tuple[Use, ...]
    terms: tuple[NodeTerm, ...] | None


class Claims(DeviceColumns):
    """What the plugin knows. Claims have keys: "namespace/name"."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: dict[str, ResourceClaim] = {}
        self.templates: dict[str, ResourceClaimTemplate] = {}
        self.classes: dict[str, DeviceClass] = {}
        self.assumed: dict[str, Assumed] = {}
        self.carried: dict[str, Any] = {}  # what pods that are being bound take along, by UID: of all profiles, as is what follows
        self.written: set[str] = set()  # pods of which claims were written, or are being written
        self.releases: Any = None  # gives back what was written for pods that were not bound
        self.releasing: set[tuple[str, str]] = set()  # claims that are being given back, with the UIDs of the pods that had them
        self.backed: dict[str, str] = {}  # extended resources that classes stand for, with the class
        self.leftover: dict[str, str] = {}  # claims that stand for extended resources, by the UID of their pod
        self.class_version = 0
        self._version = 0
        self.settled_version = 0  # as `version`, but what-ifs do not move it
        self._uses: dict[str, tuple[Use, ...]] = {}  # what counts now, by claim
        self._numbers: dict[bytes, int] = {}  # of specifications: equal ones have the same
        self._next = itertools.count(1)
        self._wanted: dict[tuple[int, int], Wanted] = {}
        self._encode = msgspec.msgpack.Encoder(order="deterministic").encode
        self._awaited: dict[str, tuple[PodInfo, Callable[[Iterable[PodInfo]], None]]] = {}
        self._awaiting: dict[str, set[str]] = {}  # by pod
        self._reserved: dict[str, set[str]] = {}  # claims by the UIDs of the pods for which they are reserved
        self._departed: dict[str, tuple[int, float]] = {}  # pods that are gone and have devices still: from which slot, and when
        self._away: set[str] = set()  # pods that a what-if has taken away
        self.lent: dict[str, Lent] = {}  # claims that are allocated in a what-if only
        self._guests: dict[str, Mapping[str, Lent]] = {}  # pods that a what-if has added, with such claims of theirs
        self._guests_of: dict[str, set[str]] = {}  # the same by claim
        self.supposed: Callable[[int, PodInfo], Mapping[str, Lent]] = lambda slot, pod: {}  # what a pod gets in a what-if
        self.told: Callable[[str, tuple[Use, ...]], None] = lambda key, has: None  # what a claim has now
        self.now: Callable[[], float] = lambda: 0.0
        self.released: Callable[[str], None] = lambda uid: None  # told of pods that are gone when they have no devices any more
        self.left: Callable[[int, frozenset[str]], list[DeviceId]] = lambda slot, pods: []  # what pods have without a claim

    # ---------------------------------------------------------------- what the API server shows

    def claim_set(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """A claim appeared, changed or went."""
        shown = new or old
        assert shown is not None
        key = f"{shown.metadata.namespace}/{shown.metadata.name}"
        known = self.claims.pop(key, None)
        self._reserve(key, known, new)
        if new is not None:
            self.claims[key] = new
        if ANNOTATION in shown.metadata.annotations and (owner := shown.metadata.controller) is not None:
            self.leftover.pop(owner.uid, None)
            if new is not None and new.metadata.deletion_timestamp is None:
                self.leftover[owner.uid] = key
        mine = self.assumed.get(key)
        if mine is not None and (new is None or new.metadata.uid != mine.claim_uid or new.status.allocation is not None):
            del self.assumed[key]
        self._count(key)
        self._let_go(consumer.uid for consumer in (known.status.reserved_for if known is not None else ()))
        if mine is not None:
            self._let_go((mine.pod,))
        waiting = self._awaited.pop(key, None) if new is not None else None
        if waiting is not None:
            pod, activate = waiting
            self._awaiting.pop(pod.uid, None)
            activate((pod,))

    def template_set(self, old: ResourceClaimTemplate | None, new: ResourceClaimTemplate | None) -> None:
        """A template: looked at where nobody makes claims of them, in what-ifs."""
        shown = new or old
        assert shown is not None
        key = f"{shown.metadata.namespace}/{shown.metadata.name}"
        self.version += 1
        self.templates.pop(key, None)
        if new is not None:
            self.templates[key] = new

    def class_set(self, old: DeviceClass | None, new: DeviceClass | None) -> None:
        """A DeviceClass."""
        shown = new or old
        assert shown is not None
        self.version += 1
        self.classes.pop(shown.metadata.name, None)
        if new is not None:
            self.classes[shown.metadata.name] = new
        if old is None or new is None or old.spec != new.spec:
            self.class_version += 1
            self._wanted.clear()
            self.backed.clear()  # the same object: others look at it
            self.backed.update(classes_by_resource(self.classes.values()))

    # ---------------------------------------------------------------- what is under way

    def assume(self, key: str, assumed: Assumed) -> None:
        """Count an allocation before it is written."""
        self.assumed[key] = assumed
        self.settled_version += 1  # also beside nominated pods that are supposed to be there
        self._count(key)

    def named(self, before: str, key: str, uid: str) -> None:
        """A claim that was assumed under another name is there."""
        mine = self.assumed.pop(before, None)
        self._count(before)
        if mine is not None:
            self.assume(key, mine._replace(claim_uid=uid))

    def forget(self, key: str, pod: str) -> None:
        """It will not be written: what the API server shows counts again."""
        mine = self.assumed.get(key)
        if mine is not None and mine.pod == pod:
            del self.assumed[key]
            self.settled_version += 1
            self._count(key)
            self._let_go((pod,))

    def hand_over(self, key: str, pod: str, heir: str) -> None:
        """Another pod that shares a claim will have it written."""
        mine = self.assumed.get(key)
        if mine is not None and mine.pod == pod:
            self.assumed[key] = mine._replace(pod=heir)

    def holding(self, uid: str) -> bool:
        """Whether a pod has devices by its claims. It may be gone: others get them once they are given back."""
        return any(self._uses.get(key) for key in self._keys((uid,)))

    def held(self, slot: int, since: float) -> bool:
        """Whether pods that went from a slot since then have devices."""
        return any(where == slot and at >= since for where, at in self._departed.values())

    def _let_go(self, uids: Iterable[str]) -> None:
        """Tell of those that are gone and have nothing any more."""
        for uid in uids:
            if uid in self._departed and not self.holding(uid):
                del self._departed[uid]
                self.released(uid)

    def _count(self, key: str) -> None:
        """Bring the devices in use up to date for one claim."""
        self.version += 1
        mine, claim = self.assumed.get(key), self.claims.get(key)
        shown = claim.status.allocation if claim is not None else None
        now = mine.uses if mine is not None else uses(shown)
        if self._away and self._given_up(mine, claim, self._away):
            now = ()
        before = self._uses.get(key, ())
        if now == before:
            return
        if now:
            self._uses[key] = now
        else:
            del self._uses[key]
        self.use(now, 1)
        self.use(before, -1)
        self.told(key, now)

    def taken_otherwise(self, more: Iterable[DeviceId], less: Iterable[DeviceId]) -> None:
        """Devices that pods have without a claim (SCH-DRA-21)."""
        self.version += 1
        self.use([Use(device, None) for device in more], 1)
        self.use([Use(device, None) for device in less], -1)

    def awaited(self, key: str, pod: PodInfo, activate: Callable[[Iterable[PodInfo]], None]) -> None:
        """A pod waits for a claim to be there."""
        self._awaited[key] = (pod, activate)
        self._awaiting.setdefault(pod.uid, set()).add(key)

    def gone(self, uid: str) -> None:
        """A pod waits no more."""
        for key in self._awaiting.pop(uid, ()):
            self._awaited.pop(key, None)

    def vacate(self, uid: str) -> None:
        """As if a pod were gone (in a what-if): what was allocated for it alone is free, its own claims for their next allocation."""
        for key in [key for key, mine in self.assumed.items() if mine.pod == uid]:
            self.forget(key, uid)
        for key in self._reserved.pop(uid, ()):
            known = self.claims.get(key)
            if known is not None:
                left = tuple(consumer for consumer in known.status.reserved_for if consumer.uid != uid)
                status = replace(known.status, reserved_for=left, allocation=known.status.allocation if left else None)
                self.claims[key] = replace(known, status=status)
                self._count(key)

    def _reserve(self, key: str, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        for consumer in old.status.reserved_for if old is not None else ():
            keys = self._reserved.get(consumer.uid, set())
            keys.discard(key)
            if not keys:
                self._reserved.pop(consumer.uid, None)
        for consumer in new.status.reserved_for if new is not None else ():
            self._reserved.setdefault(consumer.uid, set()).add(key)

    # ---------------------------------------------------------------- what-ifs: a pod's claims are given back when it goes

    def pod_removed(self, slot: int, pod: PodInfo) -> None:
        if not self.cluster.supposing:
            if self.holding(pod.uid):
                self._departed[pod.uid] = (slot, self.now())  # claims are given back when the API server says so
            return
        guest = self._guests.pop(pod.uid, None)
        if guest is not None:
            for key in guest:
                self._take_back(key, pod.uid)
            return
        self._away.add(pod.uid)
        for key in self._held(pod):
            self._count(key)

    def pod_added(self, slot: int, pod: PodInfo) -> None:
        if not self.cluster.supposing:
            self._departed.pop(pod.uid, None)
            return
        if pod.uid in self._away:
            self._away.discard(pod.uid)
            for key in self._held(pod):
                self._count(key)
            return
        gets = self._guests[pod.uid] = self.supposed(slot, pod)  # who gets nothing as well: it is not taken away when it leaves again
        for key, lent in gets.items():
            self._lend(key, pod.uid, lent)

    @property
    def version(self) -> int:
        """Moves with every claim, template, class and assumption, also in a what-if."""
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        self._version = version
        if not self.cluster.supposing:
            self.settled_version += 1

    @property
    def any_guests(self) -> bool:
        """Whether a what-if has added pods."""
        return bool(self._guests)

    def _lend(self, key: str, uid: str, lent: Lent) -> None:
        self._guests_of.setdefault(key, set()).add(uid)
        if key not in self.lent:
            self.lent[key] = lent
            self._told_of(key, lent, 1)

    def _take_back(self, key: str, uid: str) -> None:
        """The last of a claim's pods gives its devices back."""
        left = self._guests_of[key]
        left.discard(uid)
        if not left:
            del self._guests_of[key]
            self._told_of(key, self.lent.pop(key), -1)

    def _told_of(self, key: str, lent: Lent, step: int) -> None:
        self.version += 1
        self.use(lent.uses, step)
        self.told(key, lent.uses if step > 0 else ())

    def left_by(self, slot: int, pods: Sequence[PodInfo]) -> list[Use]:
        """What is free of a slot's devices once these pods have left it, and those that are gone have given back theirs."""
        gone = frozenset((*self._departed, *(pod.uid for pod in pods)))
        found = [Use(device, None) for device in self.left(slot, gone)]
        for key in self._keys(gone):
            if self._given_up(self.assumed.get(key), self.claims.get(key), gone):
                found += self._uses.get(key, ())
        return found

    def _held(self, pod: PodInfo) -> set[str]:
        """Claims that are reserved for a pod, or about to be."""
        claims = pod.shape.template.spec.resource_claims or self.backed
        return self._keys((pod.uid,)) if claims else set(self._reserved.get(pod.uid, ()))

    def _keys(self, uids: Collection[str]) -> set[str]:
        held = {key for uid in uids for key in self._reserved.get(uid, ())}
        held.update(key for key, mine in self.assumed.items() if mine.pod in uids)
        return held

    @staticmethod
    def _given_up(mine: Assumed | None, claim: ResourceClaim | None, away: Container[str]) -> bool:
        """Whether all pods of a claim are away."""
        if mine is not None:
            return mine.pod in away
        reserved = claim.status.reserved_for if claim is not None else ()
        return bool(reserved) and all(consumer.uid in away for consumer in reserved)

    # ---------------------------------------------------------------- what it means

    def number(self, spec: ResourceClaimSpec) -> int:
        """Equal for claims that ask for the same."""
        text = self._encode(spec)
        number = self._numbers.get(text)
        if number is None:
            if len(self._numbers) >= _MOST_KEPT:
                self._numbers.clear()
                self._wanted.clear()
            number = self._numbers[text] = next(self._next)
        return number

    def wanted(self, spec: ResourceClaimSpec) -> tuple[int, Wanted]:
        """What a claim asks for, with its number. Raises RequestError."""
        number = self.number(spec)
        found = self._wanted.get((number, self.class_version))
        if found is None:
            found = self._wanted[number, self.class_version] = compiled(spec, self.classes)
        return number, found


def terms_of(selector: NodeSelector | None) -> tuple[NodeTerm, ...] | None:
    """A node selector, compiled."""
    return None if selector is None else tuple(node_term(term) for term in selector.node_selector_terms)
