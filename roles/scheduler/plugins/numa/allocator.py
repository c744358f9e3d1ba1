"""One allocation on one node: amounts by NUMA node, CPUs inside them (SCH-NUMA-03, 07, 08, 13). Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from koord.accounting.resources import ResourceVector, amplify_value, sub_into
from koord.api import names
from roles.scheduler.framework.restoring import RESTRICTED, RestoredReservation
from roles.scheduler.framework.status import Status, unschedulable
from roles.scheduler.plugins.numa.facts import Facts
from roles.scheduler.plugins.numa.picks import FULL, NOBODY, NOT_ENOUGH, Held, Terms, satisfies, take, usable
from roles.scheduler.plugins.numa.records import Record, Usage, holdings, remainder
from roles.scheduler.plugins.numa.request import Request
from roles.scheduler.plugins.topology_manager.hints import Hint, Policy, bits_of, mask_of, subsets_to_try


@dataclass(frozen=True, slots=True)
class Binding:
    """How a pod's CPUs are bound on a node: so many, under a policy that is `required` there or only preferred."""

    cpus: int
    required: str
    policy: str
    exclusive: str
    most: bool


@dataclass(frozen=True, slots=True)
class Pool:
    """What one allocation may use: free CPUs (preferred ones first), CPUs of others that want to be alone, amounts by NUMA node."""

    free: int = 0
    preferred: int = 0
    held: Held = NOBODY
    amounts: Mapping[int, ResourceVector] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Share:
    """A reservation as this plugin sees it: what it held and what is left of it. `strict` is the Restricted policy."""

    reservation: RestoredReservation
    record: Record
    cpus: int
    amounts: Mapping[int, ResourceVector]
    strict: bool


def share_of(facts: Facts, reservation: RestoredReservation, record: Record, owners: Iterable[Record]) -> Share:
    """What a reservation has left beside its owners."""
    owners = list(owners)
    cpus = record.cpus
    for owner in owners:
        cpus &= ~owner.cpus
    return Share(reservation, record, cpus, remainder(facts.machine, record, owners), reservation.policy == RESTRICTED)


def pool_of(facts: Facts, usage: Usage, exclusive: str, excluded: Iterable[Share] = ()) -> Pool:
    """What a node has left, without what some reservations keep for others."""
    free = usage.free
    amounts = {}
    for node, allocatable in facts.zones.items():
        rest = dict(allocatable)
        sub_into(rest, {name: value for name, value in usage.allocated.get(node, {}).items() if name in rest})
        amounts[node] = rest
    for share in excluded:
        free &= ~share.cpus
        for node, kept in share.amounts.items():
            if node in amounts:
                sub_into(amounts[node], _amplified(facts, share, node, kept, amounts[node]))
    positive = {node: {name: max(0, value) for name, value in rest.items()} for node, rest in amounts.items()}
    return Pool(free, 0, usage.held.get(exclusive, NOBODY), positive)


def _amplified(facts: Facts, share: Share, node: int, kept: ResourceVector, known: ResourceVector) -> ResourceVector:
    found = {name: value for name, value in kept.items() if name in known}
    milli = 1000 * (share.cpus & facts.machine.nodes.get(node, 0)).bit_count()
    if milli and names.RESOURCE_CPU in found:
        found[names.RESOURCE_CPU] += amplify_value(milli, facts.ratio or 1.0) - milli
    return found


def within(pool: Pool, share: Share, facts: Facts) -> Pool:
    """The pool for a pod that uses a reservation: its CPUs first, and for a Restricted one nothing beyond what it has left."""
    restricted = share.reservation.restricted
    free = pool.free
    if share.strict and share.record.cpus and names.RESOURCE_CPU in restricted:
        free &= share.cpus
    amounts = pool.amounts
    if share.strict and share.record.amounts:
        held = {name for part in holdings(facts.machine, share.record).values() for name in part} & restricted
        amounts = {
            node: {name: min(value, share.amounts.get(node, {}).get(name, 0)) if name in held else value for name, value in part.items()}
            for node, part in pool.amounts.items()
        }
    return replace(pool, free=free, preferred=share.cpus, amounts=amounts)


def allocate(
    facts: Facts, request: Request, binding: Binding | None, pool: Pool, nodes: Sequence[int] | None, *, pick: bool = True
) -> Record | Status:
    """CPUs and amounts for a pod on these NUMA nodes, on any without a restriction when None. `pick` False only finds out whether it can be
    had, without choosing CPUs where counting them is enough."""
    shares: dict[int, ResourceVector] = {}
    if nodes is not None:
        available = _available(facts, binding, pool, nodes)
        shares, lacking = _split(request.amounts, nodes, available, facts.resources, _cpu_step(facts, binding))
        if lacking:
            return unschedulable(*lacking)
    if binding is None:
        return Record("", 0, shares, request.exclusive)
    machine = facts.machine
    reachable = pool.free
    if nodes is not None:
        inside = 0
        for node in nodes:
            inside |= machine.nodes.get(node, 0)
        reachable &= inside
    candidates = usable(machine, reachable, binding.required)
    if candidates.bit_count() < binding.cpus:
        return unschedulable(NOT_ENOUGH)
    if not pick and machine.uniform:
        return Record("", 0, shares, request.exclusive)
    chosen = 0
    parts = {n: s[names.RESOURCE_CPU] // 1000 for n, s in shares.items() if names.RESOURCE_CPU in s}
    terms = Terms(binding.policy, binding.exclusive, binding.most)
    wanted = [(machine.nodes.get(node, 0), count) for node, count in parts.items()] if parts else [(machine.all, binding.cpus)]
    for mask, count in wanted:
        taken = take(machine, candidates & mask, count, terms, pool.held, pool.preferred)
        if taken.reason:
            return unschedulable(taken.reason)
        chosen |= taken.cpus
    if chosen.bit_count() != binding.cpus:
        return unschedulable(NOT_ENOUGH)
    if binding.required and not satisfies(machine, chosen, binding.required):
        return unschedulable(f"insufficient CPUs to satisfy required cpu bind policy {binding.required}")
    return Record("", chosen, shares, request.exclusive)


def _split(
    amounts: ResourceVector, nodes: Sequence[int], available: Mapping[int, Mapping[str, int]], known: frozenset[str], cpu_step: int
) -> tuple[dict[int, ResourceVector], tuple[str, ...]]:
    """Shares by NUMA node of what these have left (SCH-NUMA-08), and reasons where something is left over. `known` are resources that NUMA
    nodes have at all: others are ignored. `cpu_step` is the step in which CPU is dealt out.

    The node with the least left gives first, everybody an equal part of what is still wanted, so that those with more fill up.
    """
    shares: dict[int, ResourceVector] = {}
    lacking: list[str] = []
    for name in sorted(amounts):
        if name not in known:
            continue
        wanted, step = amounts[name], cpu_step if name == names.RESOURCE_CPU else 1
        order = sorted(nodes, key=lambda node: (available.get(node, {}).get(name, 0), node))
        for index, node in enumerate(order):
            part = min(available.get(node, {}).get(name, 0), wanted // (len(order) - index)) // step * step
            if part > 0:
                shares.setdefault(node, {})[name] = part
                wanted -= part
        if wanted > 0:
            lacking.append(f"Insufficient NUMA {name}")
    return dict(sorted(shares.items())), tuple(lacking)


def _available(facts: Facts, binding: Binding | None, pool: Pool, nodes: Sequence[int]) -> Mapping[int, ResourceVector]:
    """Amounts by NUMA node, CPU no more than a bound pod can be bound to there."""
    if binding is None:
        return pool.amounts
    found = {}
    for node in nodes:
        amounts = dict(pool.amounts.get(node, {}))
        if names.RESOURCE_CPU in amounts:
            cpus = usable(facts.machine, pool.free & facts.machine.nodes.get(node, 0), binding.required)
            amounts[names.RESOURCE_CPU] = min(amounts[names.RESOURCE_CPU], 1000 * cpus.bit_count())
        found[node] = amounts
    return found


def _cpu_step(facts: Facts, binding: Binding | None) -> int:
    """In which steps CPU is dealt out, in milli-CPU: whole CPUs or whole cores for bound pods."""
    whole_cores = binding is not None and binding.required == FULL
    return 1 if binding is None else 1000 * (facts.machine.per_core if whole_cores else 1)


def masks_to_try(facts: Facts, policy: Policy, available: Mapping[int, ResourceVector]) -> list[int]:
    """Subsets of the NUMA nodes worth a hint, small ones first. Under SingleNUMANode only single nodes can be admitted. With many NUMA
    nodes not every subset is tried: beyond pairs only those with the most CPU left."""
    nodes = list(facts.zones)
    if policy is Policy.SINGLE_NUMA_NODE:
        return [mask_of((node,)) for node in nodes]
    return subsets_to_try(nodes, _most_free(nodes, available))


def _most_free(nodes: Sequence[int], available: Mapping[int, ResourceVector]) -> Iterator[Sequence[int]]:
    """Three NUMA nodes with the most CPU left, four, and so on."""
    order = sorted(nodes, key=lambda node: (-available.get(node, {}).get(names.RESOURCE_CPU, 0), node))
    yield from (order[:size] for size in range(3, len(nodes) + 1))


def enough_on(facts: Facts, wanted: ResourceVector, available: Mapping[int, ResourceVector]) -> Callable[[Sequence[int]], bool]:
    """Tells of NUMA nodes whether they have as much left in all as is wanted of each known resource: `_split` finds it
    then, unless it deals in steps."""
    lines = [
        (amount, {node: available.get(node, {}).get(name, 0) for node in facts.zones})
        for name, amount in wanted.items()
        if name in facts.resources
    ]
    return lambda nodes: all(sum([left[node] for node in nodes]) >= amount for amount, left in lines)


def wide_masks(facts: Facts, wanted: Iterable[str], available: Mapping[int, ResourceVector]) -> dict[str, int]:
    """By known resource the NUMA nodes that have any of it left: what a request that no single node holds may still be had on together."""
    known = (name for name in sorted(wanted) if name in facts.resources)
    return {name: mask_of(node for node in facts.zones if available.get(node, {}).get(name, 0) > 0) for name in known}


def hints_of(
    facts: Facts, policy: Policy, wanted: Iterable[str], available: Mapping[int, ResourceVector], feasible: Mapping[int, int]
) -> dict[str, list[Hint]]:
    """Hints by resource. `feasible` are the masks on which the whole request can be had, smallest first, with their scores."""
    found: dict[str, list[Hint]] = {}
    for name in sorted(wanted):
        if name not in facts.resources:
            continue
        masks = [mask for mask in feasible if all(available.get(node, {}).get(name, 0) > 0 for node in bits_of(mask))]
        least = min((mask.bit_count() for mask in masks), default=0)
        strict = policy is Policy.RESTRICTED
        found[name] = [Hint(mask, strict or mask.bit_count() == least, feasible[mask]) for mask in masks]
    return found
