"""Whose pods may use a reservation (SCH-RSV-02), and finding the matching owners of a pod without asking all."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from koord.api.objects import ObjectReference, ReservationControllerReference, ReservationOwner
from koord.api.selectors import Selector, SelectorError, from_label_selector
from roles.scheduler.cluster.podinfo import UNIQUE_LABELS, PodInfo

Bucket = tuple[str, ...]
_ANY: Bucket = ("*",)

_encode = msgspec.msgpack.Encoder().encode


class OwnersError(ValueError):
    """Owners that cannot be read; says which entry and why."""


class Owner:
    """One entry of `spec.owners`: all parts that are given must match."""

    __slots__ = ("controller", "object", "selector")

    def __init__(self, entry: ReservationOwner) -> None:
        self.object: ObjectReference | None = entry.object
        self.controller: ReservationControllerReference | None = entry.controller
        self.selector: Selector | None = None if entry.label_selector is None else from_label_selector(entry.label_selector)

    @property
    def by_template(self) -> bool:
        """Whether it holds for all pods of a template or for none."""
        keys = {requirement.key for requirement in self.selector.requirements} if self.selector is not None else set()
        return self.object is None and self.controller is None and UNIQUE_LABELS.isdisjoint(keys)

    def matches(self, pod: PodInfo) -> bool:
        """Whether a pod is such an owner."""
        if self.object is not None and not _is_object(self.object, pod):
            return False
        if self.controller is not None and not _is_controlled(self.controller, pod):
            return False
        return self.selector is None or self.selector.matches(pod.labels)

    def buckets(self) -> Iterator[Bucket]:
        """Where to look the entry up: a pod that matches is in at least one of these."""
        wanted = self.object
        if wanted is not None and (wanted.uid or wanted.name):
            yield ("uid", wanted.uid) if wanted.uid else ("name", wanted.name)
            return
        controller = self.controller
        if controller is not None and (controller.uid or controller.name):
            yield ("owner uid", controller.uid) if controller.uid else ("owner", controller.name)
            return
        for requirement in self.selector.requirements if self.selector is not None else ():
            if requirement.operator in ("In", "=", "=="):
                for value in requirement.values:
                    yield ("label", requirement.key, value)
                return
        yield _ANY


def _is_object(wanted: ObjectReference, pod: PodInfo) -> bool:
    return (
        wanted.uid in ("", pod.pod.metadata.uid)
        and wanted.name in ("", pod.name)
        and wanted.namespace in ("", pod.namespace)
        and wanted.api_version in ("", "v1")
    )


def _is_controlled(wanted: ReservationControllerReference, pod: PodInfo) -> bool:
    if wanted.namespace not in ("", pod.namespace):
        return False
    return any(
        (wanted.controller is None or wanted.controller == bool(reference.controller))
        and wanted.uid in ("", reference.uid)
        and wanted.name in ("", reference.name)
        and wanted.kind in ("", reference.kind)
        and wanted.api_version in ("", reference.api_version)
        for reference in pod.pod.metadata.owner_references
    )


@dataclass(slots=True, eq=False)
class Owners:
    """The owners of reservations that name the same ones. `number` stands for them in keys. `by_template`: labels alone decide that all
    pods of a template have in common."""

    key: bytes
    number: int
    entries: tuple[Owner, ...]
    by_template: bool
    users: dict[str, Any] = field(default_factory=dict)  # what names them, by the reservation's UID

    def matches(self, pod: PodInfo) -> bool:
        """Whether any entry matches."""
        return any(entry.matches(pod) for entry in self.entries)


class OwnerIndex:
    """All owners in use. A pod is looked up by its UID, names, owner references and labels."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._known: dict[bytes, Owners] = {}
        self._buckets: dict[Bucket, dict[int, Owners]] = {}

    def enter(self, owners: tuple[ReservationOwner, ...], uid: str, user: Any) -> Owners:
        """Add a reservation to its owners. Raises OwnersError for a selector that cannot be read."""
        key = _encode(owners)
        found = self._known.get(key)
        if found is None:
            entries = []
            for index, entry in enumerate(owners):
                try:
                    entries.append(Owner(entry))
                except SelectorError as error:
                    raise OwnersError(f"spec.owners[{index}].labelSelector: {error}") from error
            found = self._known[key] = Owners(key, next(self._numbers), tuple(entries), all(entry.by_template for entry in entries))
            for bucket in _all_buckets(found):
                self._buckets.setdefault(bucket, {})[found.number] = found
        found.users[uid] = user
        return found

    def leave(self, owners: Owners, uid: str) -> None:
        """Take a reservation away from its owners; owners that nobody names are forgotten."""
        owners.users.pop(uid, None)
        if owners.users or owners.key not in self._known:
            return
        del self._known[owners.key]
        for bucket in _all_buckets(owners):
            members = self._buckets[bucket]
            del members[owners.number]
            if not members:
                del self._buckets[bucket]

    def match(self, pod: PodInfo) -> tuple[Owners, ...]:
        """The owners that a pod belongs to, in the order of their numbers."""
        buckets = self._buckets
        if not buckets:
            return ()
        found: dict[int, Owners] = {}
        for bucket in _pod_buckets(pod):
            members = buckets.get(bucket)
            if members:
                found.update(members)
        if not found:
            return ()
        return tuple(found[number] for number in sorted(found) if found[number].matches(pod))

    def __len__(self) -> int:
        return len(self._known)


def _all_buckets(owners: Owners) -> Iterable[Bucket]:
    return {bucket for entry in owners.entries for bucket in entry.buckets()}


def _pod_buckets(pod: PodInfo) -> Iterator[Bucket]:
    yield _ANY
    yield ("uid", pod.pod.metadata.uid)
    yield ("name", pod.name)
    for reference in pod.pod.metadata.owner_references:
        yield ("owner uid", reference.uid)
        yield ("owner", reference.name)
    for key, value in pod.labels.items():
        yield ("label", key, value)
