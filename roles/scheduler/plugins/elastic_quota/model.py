"""An ElasticQuota as the plugin understands it (SCH-EQ-01). Amounts are integers: milli-CPU, bytes, counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from koord.accounting.resources import ResourceVector, parse
from koord.api import names
from koord.api.annotations import parse_quota_resources, quota_namespaces, shared_weight
from koord.api.deprecated import rewrite_elastic_quota
from koord.api.objects import ElasticQuota

DEFAULT_TREE = ""
ROOT, SYSTEM, DEFAULT = names.QUOTA_ROOT, names.QUOTA_SYSTEM, names.QUOTA_DEFAULT
OUTSIDE = frozenset((SYSTEM, DEFAULT))  # children of the root that take what they use off the total instead of competing for it


@dataclass(frozen=True, slots=True)
class QuotaSpec:
    """What an ElasticQuota says. `weight` is the shared weight (max when none is given). `total` and `unschedulable` are set on the root
    quota of a tree of its own; `outside_default` keeps its total from being taken off the default tree's."""

    name: str
    namespace: str = ""
    parent: str = ROOT
    is_parent: bool = False
    lends: bool = True
    min: ResourceVector = field(default_factory=dict)
    max: ResourceVector = field(default_factory=dict)
    weight: ResourceVector = field(default_factory=dict)
    tree: str = DEFAULT_TREE
    tree_root: bool = False
    total: ResourceVector = field(default_factory=dict)
    unschedulable: ResourceVector = field(default_factory=dict)
    outside_default: bool = False
    namespaces: tuple[str, ...] = ()


def spec_of(quota: ElasticQuota, *, trees: bool) -> QuotaSpec:
    """The spec of an ElasticQuota; `trees` is the gate MultiQuotaTree. Raises ValueError that says what is malformed."""
    rewrite_elastic_quota(quota)
    labels, annotations = quota.metadata.labels, quota.metadata.annotations
    name = quota.metadata.name
    maximum, weight = quota.spec.max, shared_weight(annotations, quota.spec.max)
    tree_root = trees and labels.get(names.LABEL_QUOTA_IS_ROOT) == "true"
    return QuotaSpec(
        name=name,
        namespace=quota.metadata.namespace,
        parent="" if name == ROOT else labels.get(names.LABEL_QUOTA_PARENT) or ROOT,
        is_parent=labels.get(names.LABEL_QUOTA_IS_PARENT) == "true",
        lends=labels.get(names.LABEL_QUOTA_ALLOW_LENT_RESOURCE) != "false",
        min=parse(quota.spec.min),
        max=parse(maximum),
        weight=parse(weight),
        tree=labels.get(names.LABEL_QUOTA_TREE_ID, DEFAULT_TREE) if trees else DEFAULT_TREE,
        tree_root=tree_root,
        total=_amounts(annotations, names.ANNOTATION_QUOTA_TOTAL_RESOURCE) if tree_root else {},
        unschedulable=_amounts(annotations, names.ANNOTATION_QUOTA_UNSCHEDULABLE_RESOURCE) if tree_root else {},
        outside_default=labels.get(names.LABEL_QUOTA_IGNORE_DEFAULT_TREE) == "true",
        namespaces=quota_namespaces(annotations),
    )


def _amounts(annotations: Mapping[str, str], key: str) -> ResourceVector:
    return parse(parse_quota_resources(dict(annotations), key))
