"""Annotations of ElasticQuotas and their profiles. See ``koord.api.annotations``."""

from __future__ import annotations

from koord.api import names, quantity
from koord.api.annotations_core import AnnotationError, Annotations, check_resource_list, read_json
from koord.api.deprecated import rewrite_resource_list
from koord.api.objects_meta import ResourceList


def parse_quota_resources(annotations: Annotations, key: str) -> ResourceList | None:
    """Any of the quota annotations that hold a ResourceList, by its key; deprecated names rewritten."""
    resources = read_json(annotations, key, ResourceList)
    if resources is not None:
        rewrite_resource_list(resources)
        check_resource_list(key, resources)
    return resources


def shared_weight(annotations: Annotations, maximum: ResourceList) -> ResourceList:
    """``shared-weight``; the quota's max when it is missing, bad or all zero."""
    try:
        weight = parse_quota_resources(annotations, names.ANNOTATION_QUOTA_SHARED_WEIGHT)
    except AnnotationError:
        return maximum  # said so by the contract
    return weight if weight and any(quantity.parse_value(amount) for amount in weight.values()) else maximum


def quota_namespaces(annotations: Annotations) -> tuple[str, ...]:
    """``namespaces``: namespaces whose pods belong to the quota; missing or bad is none."""
    try:
        return read_json(annotations, names.ANNOTATION_QUOTA_NAMESPACES, tuple[str, ...]) or ()
    except AnnotationError:
        return ()  # said so by the contract


def parse_resource_keys(annotations: Annotations) -> tuple[str, ...] | None:
    """``resource-keys`` of a profile: resources that the tree is about."""
    return read_json(annotations, names.ANNOTATION_QUOTA_RESOURCE_KEYS, tuple[str, ...])


def parse_max_strict_check_resource_keys(annotations: Annotations) -> tuple[str, ...] | None:
    """``max-strict-check-resource-keys``."""
    return read_json(annotations, names.ANNOTATION_QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS, tuple[str, ...])
