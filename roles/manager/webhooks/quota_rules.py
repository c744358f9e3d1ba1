"""The rules that keep a quota tree sound (MGR-EQ-V-01); pure. Each rule yields what is wrong, naming quota and key."""

from __future__ import annotations

from collections.abc import Iterator

from koord.accounting.resources import add, max_, sum_
from koord.api import names
from roles.manager.webhooks.quota_topology import Quota, QuotaTopology


def self_errors(quota: Quota) -> Iterator[str]:
    """What is wrong with a quota by itself (shared weight and used are checked where the object is at hand)."""
    for field, amounts in (("spec.max", quota.max), ("spec.min", quota.min)):
        for key, amount in amounts.items():
            if amount < 0:
                yield f"quota {quota.name}: {field}[{key}] must not be negative"
    for key, amount in quota.min.items():
        if key not in quota.max:
            yield f"quota {quota.name}: spec.min has {key}, spec.max does not"
        elif amount > quota.max[key]:
            yield f"quota {quota.name}: spec.min[{key}] ({amount}) is greater than spec.max[{key}] ({quota.max[key]})"


def tree_errors(quota: Quota, old: Quota | None, tree: QuotaTopology, has_pods: bool, *, subset_of_parent: bool) -> Iterator[str]:
    """What is wrong with a quota among its relatives. `has_pods`: pods are bound to it now."""
    if quota.name == names.QUOTA_ROOT:
        return
    children = [child for child in tree.children(quota.name) if child.name != quota.name]
    if old is not None and old.is_parent and not quota.is_parent and children:
        yield f"quota {quota.name}: cannot stop being a parent, it has children: {_names(children)}"
    if old is not None and not old.is_parent and quota.is_parent and has_pods:
        yield f"quota {quota.name}: cannot become a parent, pods are bound to it"
    cycle = tree.cycle_of(quota.name, quota.parent)
    if cycle:
        yield f"quota {quota.name}: cannot be its own ancestor: {' -> '.join([*cycle, quota.name])}"
        return
    parent = tree.get(quota.parent) if quota.parent != names.QUOTA_ROOT else None
    yield from _tree_id_errors(quota, old, parent, children)
    at_top = quota.parent == names.QUOTA_ROOT
    if at_top and not quota.is_parent:
        return
    if not at_top:
        if parent is None:
            yield f"quota {quota.name}: parent {quota.parent} does not exist"
            return
        if not parent.is_parent:
            yield f"quota {quota.name}: {parent.name} is not a parent quota ({names.LABEL_QUOTA_IS_PARENT} is not true)"
    yield from _key_errors(quota, parent, children, subset_of_parent)
    if not quota.force_update and not quota.is_root:
        yield from _sum_errors(quota, parent, children, tree)
    if tree.guarantee_usage and quota.tree_id and not quota.is_root and not quota.force_update:
        yield from _guarantee_errors(quota, tree)


def _names(quotas: list[Quota]) -> str:
    return ", ".join(quota.name for quota in quotas[:3])


def _tree_id_errors(quota: Quota, old: Quota | None, parent: Quota | None, children: list[Quota]) -> Iterator[str]:
    if old is not None and old.tree_id != quota.tree_id:
        yield f"quota {quota.name}: tree id is immutable, {old.tree_id!r} cannot become {quota.tree_id!r}"
    if parent is not None and parent.tree_id != quota.tree_id:
        yield f"quota {quota.name}: tree id {quota.tree_id!r} must equal that of its parent {parent.name} ({parent.tree_id!r})"
    for child in children:
        if child.tree_id != quota.tree_id:
            yield f"quota {quota.name}: tree id {quota.tree_id!r} must equal that of its child {child.name} ({child.tree_id!r})"


def _key_errors(quota: Quota, parent: Quota | None, children: list[Quota], subset: bool) -> Iterator[str]:
    pairs = [(quota, parent)] if parent else []
    for low, high in [*pairs, *((child, quota) for child in children)]:
        extra = sorted(set(low.max) - set(high.max))
        lacking = [] if subset else sorted(set(high.max) - set(low.max))
        if extra or lacking:
            keys = ", ".join(extra + lacking)
            rule = "be among" if subset else "equal"
            yield f"quota {quota.name}: spec.max keys of {low.name} must {rule} those of its parent {high.name}; {keys} differ"
        beyond = sorted(set(low.min) - set(high.min))
        if beyond:
            keys = ", ".join(beyond)
            yield f"quota {quota.name}: spec.min keys of {low.name} must be among those of its parent {high.name}; {keys} are not"


def _sum_errors(quota: Quota, parent: Quota | None, children: list[Quota], tree: QuotaTopology) -> Iterator[str]:
    if parent is not None:
        siblings = sum_(other.min for other in tree.children(parent.name) if other.name != quota.name)
        for key, total in add(siblings, quota.min).items():
            if total > parent.min.get(key, 0):
                yield (
                    f"quota {quota.name}: the sum of spec.min[{key}] of all children of parent {parent.name} would be {total}, "
                    f"more than the parent's {parent.min.get(key, 0)}"
                )
    for key, total in sum_(child.min for child in children).items():
        if total > quota.min.get(key, 0):
            yield f"quota {quota.name}: spec.min[{key}] is {quota.min.get(key, 0)}, less than the sum of its children's ({total})"


def _guarantee_errors(quota: Quota, tree: QuotaTopology) -> Iterator[str]:
    """Walk up until an ancestor's guarantee already covers what this quota would need; reaching the root refuses."""
    if all(amount <= quota.guaranteed.get(key, 0) for key, amount in quota.min.items()):
        return
    wanted, name, seen = max_(quota.min, quota.guaranteed), quota.name, {quota.name}
    parent = tree.get(quota.parent)
    while parent is not None and parent.name not in seen:
        seen.add(parent.name)
        total = add(wanted, sum_(other.guaranteed for other in tree.children(parent.name) if other.name != name))
        new = max_(parent.min, total)
        if all(amount <= parent.guaranteed.get(key, 0) for key, amount in new.items()):
            return
        wanted, name, parent = new, parent.name, tree.get(parent.parent)
    yield f"quota {quota.name}: spec.min cannot be guaranteed, no ancestor has enough guaranteed resources left"
