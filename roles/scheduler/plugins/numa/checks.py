"""What refuses a node before any allocation is tried (SCH-NUMA-01, 02, 06, 09): from columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.vocabulary import CPU
from roles.scheduler.framework.context import Rows
from roles.scheduler.framework.interfaces import ASK, Codes
from roles.scheduler.framework.status import Status, unresolvable, unschedulable
from roles.scheduler.framework.tally import Tally
from roles.scheduler.plugins.numa.allocator import Binding
from roles.scheduler.plugins.numa.columns import BIND_CODES, POLICY_CODES, NumaColumns
from roles.scheduler.plugins.numa.facts import Facts
from roles.scheduler.plugins.numa.picks import FULL, NOT_ENOUGH
from roles.scheduler.plugins.numa.request import NOT_INTEGER, Request
from roles.scheduler.plugins.topology_manager.hints import Hint, Policy, merge

MISMATCH, FRACTION, BAD_RATIO, AMPLIFIED, INVALID, CONFLICT, UNALIGNED, SHORT, NO_ZONES, ZONES_SHORT = range(1, 11)
FIRST_DYNAMIC = 11

STATUSES: dict[int, Status] = {
    MISMATCH: unresolvable("node(s) NUMA Topology policy not match"),
    FRACTION: unresolvable(NOT_INTEGER),
    BAD_RATIO: unresolvable("node(s) invalid CPU amplification ratio"),
    AMPLIFIED: unschedulable("Insufficient amplified cpu"),
    INVALID: unresolvable("node(s) invalid CPU Topology"),
    CONFLICT: unresolvable("node(s) cpu bind policy conflicts with pod's required cpu bind policy"),
    UNALIGNED: unresolvable("node(s) requested cpus not multiple cpus per core"),
    SHORT: unschedulable(NOT_ENOUGH),
    NO_ZONES: unresolvable("node(s) missing NUMA resources"),
    ZONES_SHORT: unschedulable("node(s) Insufficient NUMA Node resources"),
}

STRICT = POLICY_CODES[Policy.RESTRICTED]  # this code and those above
_OTHER = 9  # a required policy that no node has


def binds(request: Request, facts: Facts) -> bool:
    """Whether the pod's CPUs are bound on a node: because of the pod, or because the node binds everybody's."""
    return request.binds or (bool(facts.bind_policy) and request.milli > 0)


def binding_of(request: Request, facts: Facts, *, most: bool) -> Binding | None:
    """How they are bound there; None where they are not."""
    if not binds(request, facts):
        return None
    required = facts.bind_policy or request.required
    return Binding(request.cpus, required, required or request.preferred or FULL, request.exclusive, most)


def effective_policy(request: Request, facts: Facts) -> Policy | None:
    """The NUMA policy of the pod on a node; None where node and pod contradict each other."""
    if facts.policy and request.numa_policy and facts.policy is not request.numa_policy:
        return None
    return facts.policy or request.numa_policy


def concerns(request: Request, columns: NumaColumns) -> bool:
    """Whether anything but the amounts of the whole node can matter to a pod on any node."""
    return bool(columns.special or columns.amplified or request.numa_policy or request.binds)


class PlainNodes(Tally):
    """For a pod that asks for nothing special: a node without policies and amplification refuses it nothing."""

    def __init__(self, columns: NumaColumns) -> None:
        self._columns = columns

    def unknown(self, slots: NDArray[np.intp]) -> NDArray[np.bool_]:
        columns = self._columns
        return np.asarray((columns.policy[slots] > 0) | (columns.bind[slots] > 0) | (columns.ratio[slots] != 1.0))


def codes_of(
    request: Request, columns: NumaColumns, cluster: Cluster, rows: Rows, unsatisfied: Callable[[Status], int], restored: NDArray[np.bool_],
    *, alone: bool,
) -> Codes:  # fmt: skip
    """Codes of the rows: 0 passes, ASK wants an allocation to be tried. `unsatisfied` gives the codes of what the topology manager would
    say of rows that hold the request nowhere. On `restored` rows reservations may give what the node lacks: what is free there is not
    counted here but by an allocation. `alone`: no other provider has a say in it."""
    codes: Codes = np.zeros(len(columns.policy[rows]), dtype=np.int32)

    def put(refused: Any, code: int) -> None:
        codes[np.logical_and(refused, codes == 0)] = code

    own = POLICY_CODES[request.numa_policy]
    node_policy, node_bind = columns.policy[rows], columns.bind[rows]
    policy = node_policy if not own else np.where(node_policy > 0, node_policy, own)
    if own:
        put(policy != own, MISMATCH)
    bound = bound_rows(request, columns, rows)
    if request.milli % 1000:
        put(bound, FRACTION)
    if columns.amplified and request.milli:
        _amplified_rows(request, columns, cluster, rows, bound, put)
    if bound.any():
        required = _required_rows(request, columns, rows)
        put(bound & ~columns.valid[rows], INVALID)
        if request.required:
            put((node_bind > 0) & (node_bind != _required_code(request)), CONFLICT)
        full = bound & (required == BIND_CODES[FULL])
        put(full & (request.cpus % columns.per_core[rows] != 0), UNALIGNED)
        anyhow, whole, single = (column[rows] for column in columns.free)
        free = np.where(required == 1, whole, np.where(required == 2, single, anyhow))
        loose = bound & (policy < STRICT)
        put(loose & restored & (policy == 0), ASK)
        put(loose & ~restored & (free < request.cpus), SHORT)
        put(loose & (policy == 0) & (required > 0) & ~columns.uniform[rows], ASK)
    if own or (node_policy > 0).any():
        put((policy > 0) & ~columns.zoned[rows], NO_ZONES)
        put((policy > 0) & restored, ASK)
        _zones_rows(request, columns, rows, policy, bound, unsatisfied, codes, alone=alone)
    return codes


def _zones_rows(
    request: Request, columns: NumaColumns, rows: Rows, policy: Any, bound: Any, unsatisfied: Callable[[Status], int], codes: Codes, *,
    alone: bool,
) -> None:  # fmt: skip
    """Rows with a NUMA policy: refused where no NUMA node, or not even all of them, have enough. Where one has and nobody else has a say,
    the strict policies are kept; the rest is asked."""
    required = _required_rows(request, columns, rows)
    holding = columns.zones.holds(request.amounts, rows, required, bound)
    single = holding.any(axis=0)
    open_rows, strict = (policy > 0) & (codes == 0), policy >= STRICT
    rest = open_rows & ~single  # what one NUMA node holds all of them hold
    if rest.any():
        together = rest & columns.zones.lacks(request.amounts, rows, required, bound)
        apart = rest & ~together & (policy == POLICY_CODES[Policy.SINGLE_NUMA_NODE])
        apart &= columns.zones.everywhere(request.amounts, rows)
        kinds = columns.zones.kinds[rows]
        for refused, wide in ((strict & together, False), (apart, True)):
            for kind in np.unique(kinds[refused]).tolist():
                codes[refused & (kinds == kind)] = unsatisfied(_refusal(request, *columns.zones.sets[kind], wide=wide))
        codes[together & (codes == 0)] = ZONES_SHORT
    asked = open_rows & strict & (codes == 0)
    if alone:
        may_have = _exclusively(request, columns, rows, holding).any(axis=0)
        asked &= ~(may_have & (columns.uniform[rows] | ~bound))
    codes[asked] = ASK


def _refusal(request: Request, resources: frozenset[str], nodes: int, *, wide: bool) -> Status:
    """What the topology manager says of a request that a machine cannot hold at all, or (wide) only on all of its NUMA nodes."""
    hints = {name: [Hint(nodes, True)] if wide else [] for name in resources & request.amounts.keys()}
    return unschedulable(*merge(Policy.SINGLE_NUMA_NODE, nodes, (hints,)).reasons)


def single_nodes(request: Request, columns: NumaColumns, rows: Rows, bound: Any) -> NDArray[np.bool_]:
    """By position and row: NUMA nodes that hold the request alone, and that the pod may have."""
    return _exclusively(request, columns, rows, columns.zones.holds(request.amounts, rows, _required_rows(request, columns, rows), bound))


def _exclusively(request: Request, columns: NumaColumns, rows: Rows, holding: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Those of the NUMA nodes that the pod may have: if it asks for exclusive use not what others have together with more."""
    if not request.exclusive_use:
        return holding
    return holding & columns.zones.exclusively(request.amounts, rows, of_all=request.exclusive_of_all)


def bound_rows(request: Request, columns: NumaColumns, rows: Rows) -> NDArray[np.bool_]:
    """Rows on which the pod's CPUs are bound."""
    if request.binds:
        return np.ones(len(columns.bind[rows]), dtype=np.bool_)
    return np.logical_and(columns.bind[rows] > 0, request.milli > 0)


def _required_rows(request: Request, columns: NumaColumns, rows: Rows) -> NDArray[Any]:
    return np.where(columns.bind[rows] > 0, columns.bind[rows], _required_code(request))


def _amplified_rows(request: Request, columns: NumaColumns, cluster: Cluster, rows: Rows, bound: Any, put: Any) -> None:
    """Nodes whose CPU is amplified: a bound CPU takes its ratio of what they promise."""
    ratio, held = columns.ratio[rows], columns.bound[rows]
    put(np.isnan(ratio), BAD_RATIO)
    ratio = np.maximum(np.nan_to_num(ratio, nan=1.0), 1.0)
    need = np.where(bound, np.ceil(request.milli * ratio), float(request.milli))
    allocatable, free = cluster.allocatable[CPU][rows], cluster.free[CPU][rows]
    more = np.where((held > 0) & (allocatable - free >= held), columns.extra[rows], 0.0)
    put((ratio > 1.0) & (need > free - more), AMPLIFIED)


def _required_code(request: Request) -> int:
    return BIND_CODES.get(request.required, _OTHER)
