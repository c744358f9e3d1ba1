"""Which nodes can give a pod its volumes: bound volumes' affinity, free volumes to bind, room to provision. Pure (SCH-KS-09)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from koord.api.names import RESOURCE_STORAGE
from koord.api.objects import CSIStorageCapacity, PersistentVolume, PersistentVolumeClaim
from koord.api.quantity import QuantityError, parse_value
from roles.scheduler.cluster.labels import BoolVector
from roles.scheduler.cluster.terms import IN, NodeTerm, Requirement, label_selector, node_term, selects
from roles.scheduler.framework.context import ALL_ROWS, CycleContext
from roles.scheduler.plugins.node_affinity import any_term
from roles.scheduler.plugins.volumes.store import VolumeColumns

FITS, NODE_CONFLICT, NO_VOLUME, NO_SPACE = 0, 1, 2, 3
_NO_PROVISIONER = "kubernetes.io/no-provisioner"


class Choices(NamedTuple):
    """For each unbound claim and row: which of `candidates` it would get, -1 where it would be provisioned. `codes` by row."""

    codes: NDArray[np.int32]
    claims: tuple[str, ...]
    candidates: tuple[tuple[PersistentVolume, ...], ...]
    chosen: tuple[NDArray[np.intp], ...]


def judge(ctx: CycleContext, store: VolumeColumns, keys: tuple[str, ...]) -> Choices:
    """Every row for the claims `keys`, all of which exist."""
    codes = np.zeros(ctx.cluster.capacity, dtype=np.int32)
    waiting = []
    for key in keys:
        name = store.claims[key].spec.volume_name
        volume = store.volumes.get(name) if name else None
        if volume is None:
            waiting.append(key)
        else:
            _mark(codes, ~reachable(ctx, volume), NODE_CONFLICT)
    # The claim with the least choice first, as a larger one could use what a smaller one needs.
    waiting.sort(key=lambda key: (requested(store.claims[key]), key))
    candidates = tuple(_candidates(store, key) for key in waiting)
    chosen: list[NDArray[np.intp]] = []
    taken: list[tuple[dict[str, int], NDArray[np.intp]]] = []
    for key, volumes in zip(waiting, candidates, strict=True):
        one = _choose(ctx, volumes, taken)
        taken.append(({volume.metadata.name: number for number, volume in enumerate(volumes)}, one))
        chosen.append(one)
        _mark_unbound(ctx, store, key, one, codes)
    return Choices(codes, tuple(waiting), candidates, tuple(chosen))


def _mark(codes: NDArray[np.int32], refused: BoolVector, code: int) -> None:
    codes[np.logical_and(refused, codes == FITS)] = code


def reachable(ctx: CycleContext, volume: PersistentVolume) -> BoolVector:
    """Rows from which a volume can be used."""
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return np.ones(ctx.cluster.capacity, dtype=np.bool_)
    return any_term(ctx.cluster, [node_term(term) for term in affinity.required.node_selector_terms], ALL_ROWS)


def _choose(
    ctx: CycleContext, volumes: tuple[PersistentVolume, ...], taken: list[tuple[dict[str, int], NDArray[np.intp]]]
) -> NDArray[np.intp]:
    """By row the first volume that is reachable and that no earlier claim of the pod takes there. Of each of these, `taken` has the
    numbers of its volumes by name, and by row which it takes."""
    chosen = np.full(ctx.cluster.capacity, -1, dtype=np.intp)
    for index, volume in enumerate(volumes):
        free = np.logical_and(chosen == -1, reachable(ctx, volume))
        for others, by_row in taken:
            number = others.get(volume.metadata.name)
            if number is not None:
                np.logical_and(free, by_row != number, out=free)
        chosen[free] = index
    return chosen


def _mark_unbound(ctx: CycleContext, store: VolumeColumns, key: str, chosen: NDArray[np.intp], codes: NDArray[np.int32]) -> None:
    """Rows where a claim finds no volume must be able to provision one."""
    claim = store.claims[key]
    without = chosen == -1
    selected = store.selected_node(claim, key)
    if selected:
        elsewhere = np.ones(len(codes), dtype=np.bool_)
        slot = ctx.cluster.slot_of(selected)
        if slot >= 0:
            elsewhere[slot] = False
        _mark(codes, elsewhere, NO_VOLUME)
    found = store.classes.get(store.class_of(claim))
    if found is None or not found.provisioner or found.provisioner == _NO_PROVISIONER:
        _mark(codes, without, NO_VOLUME)
        return
    if found.allowed_topologies:
        terms = [_topology(term) for term in found.allowed_topologies]
        _mark(codes, np.logical_and(without, ~any_term(ctx.cluster, terms, ALL_ROWS)), NO_VOLUME)
    driver = store.drivers.get(found.provisioner)
    if driver is not None and driver.spec.storage_capacity:
        _mark(codes, np.logical_and(without, ~_has_room(ctx, store, found.metadata.name, requested(claim))), NO_SPACE)


def _topology(term: Any) -> NodeTerm:
    return NodeTerm(tuple(Requirement(item.key, IN, tuple(sorted(item.values))) for item in term.match_label_expressions), ())


def _has_room(ctx: CycleContext, store: VolumeColumns, class_name: str, size: int) -> BoolVector:
    result = np.zeros(ctx.cluster.capacity, dtype=np.bool_)
    for _, rows in roomy(ctx, store, class_name, size):
        np.logical_or(result, True if rows is None else rows, out=result)
    return result


def roomy(ctx: CycleContext, store: VolumeColumns, class_name: str, size: int) -> Iterator[tuple[CSIStorageCapacity, BoolVector | None]]:
    """Capacities of a class of which such a volume could be made, and their rows, None for all."""
    for capacity in store.capacities.values():
        selector = label_selector(capacity.node_topology)
        if capacity.storage_class_name == class_name and selector is not None and largest(capacity) >= size:
            yield capacity, ctx.cluster.labels.match_all(selector, ALL_ROWS)


def largest(capacity: CSIStorageCapacity) -> int:
    """Bytes of the largest volume that could be made; -1 where nothing is said."""
    limit = capacity.maximum_volume_size if capacity.maximum_volume_size is not None else capacity.capacity
    return -1 if limit is None else amount(limit)


def amount(quantity: str | int | float) -> int:
    """Bytes; 0 for what cannot be read."""
    try:
        return parse_value(quantity)
    except QuantityError:
        return 0


def requested(claim: PersistentVolumeClaim) -> int:
    """Bytes that a claim asks for."""
    return amount(claim.spec.resources.requests.get(RESOURCE_STORAGE, 0))


def _candidates(store: VolumeColumns, key: str) -> tuple[PersistentVolume, ...]:
    """Volumes that a claim could be bound to, the smallest first. One that another pod with the claim waits for, or volumes that name the
    claim, leave no other choice."""
    claim = store.claims[key]
    found = [volume for volume in store.volumes.values() if suits(store, volume, claim, key)]
    aside = [volume for volume in found if volume.metadata.name in store.assumed_volumes]
    found = aside or [volume for volume in found if volume.spec.claim_ref is not None] or found
    found.sort(key=lambda v: (amount(v.spec.capacity.get(RESOURCE_STORAGE, 0)), v.metadata.name))
    return tuple(found)


def names(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether a volume is reserved for a claim or bound to it."""
    ref, meta = volume.spec.claim_ref, claim.metadata
    return ref is not None and (ref.namespace, ref.name) == (meta.namespace, meta.name) and ref.uid in ("", meta.uid)


def suits(store: VolumeColumns, volume: PersistentVolume, claim: PersistentVolumeClaim, key: str) -> bool:
    """Whether a claim, "namespace/name", could be bound to a volume."""
    spec, wanted = volume.spec, claim.spec
    if store.selected_node(claim, key):
        return False  # a volume is being made for it
    if volume.metadata.deletion_timestamp is not None or store.assumed_volumes.get(volume.metadata.name, key) != key:
        return False
    if (spec.volume_mode or "Filesystem") != (wanted.volume_mode or "Filesystem"):
        return False
    if (spec.volume_attributes_class_name or "") != (wanted.volume_attributes_class_name or ""):
        return False
    if amount(spec.capacity.get(RESOURCE_STORAGE, 0)) < requested(claim):
        return False
    if spec.claim_ref is not None:
        return names(volume, claim)
    return (
        volume.status.phase in ("Available", "")
        and spec.storage_class_name == store.class_of(claim)
        and set(wanted.access_modes) <= set(spec.access_modes)
        and (wanted.selector is None or selects(label_selector(wanted.selector), volume.metadata.labels))
    )
