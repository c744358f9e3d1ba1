"""Pod annotations that the node agent, the hooks and the webhooks read. See ``koord.api.annotations``.

QoS blocks stay dicts: the agent merges them key by key over the node's strategy, where unset differs from zero.
"""

from __future__ import annotations

from typing import Any, Final

from koord.api import names, quantity
from koord.api.annotations_core import AnnotationError, Annotations, check_resource_list, read_integer, read_json
from koord.api.objects_meta import Projection, ResourceList

OOM_SCORE_ADJ_RANGE: Final = (-1000, 1000)
GROUP_IDENTITY_RANGE: Final = (-1, 2)


class ExtendedContainerResources(Projection):
    """Batch resources of a container."""

    limits: ResourceList = {}
    requests: ResourceList = {}


class ExtendedResourceSpec(Projection):
    """Batch resources by container name."""

    containers: dict[str, ExtendedContainerResources] = {}


class NetworkQOS(Projection):
    """Bandwidth limits of a pod, in bits per second; None is without limit."""

    ingress_limit: int | None = None
    egress_limit: int | None = None


class ResctrlSchemata(Projection):
    """A share of a cache or of memory bandwidth: percent, or a range of percents."""

    percent: int | None = None
    range: tuple[int, ...] = ()


class ResctrlCacheSchemata(ResctrlSchemata, rename={"cache_id": "cacheID"}):
    """The same for one cache."""

    cache_id: int = 0


class ResctrlResource(Projection):
    """Shares of a resctrl resource, for all caches and for single ones."""

    schemata: ResctrlSchemata | None = None
    schemata_per_cache: tuple[ResctrlCacheSchemata, ...] = ()


class ResctrlConfig(Projection):
    """Last-level cache and memory bandwidth of a pod."""

    llc: ResctrlResource | None = None
    mb: ResctrlResource | None = None


def parse_extended_resource_spec(annotations: Annotations) -> ExtendedResourceSpec | None:
    """``node.koordinator.sh/extended-resource-spec``."""
    key = names.ANNOTATION_EXTENDED_RESOURCE_SPEC
    spec = read_json(annotations, key, ExtendedResourceSpec)
    for container in spec.containers.values() if spec else ():
        check_resource_list(key, container.limits)
        check_resource_list(key, container.requests)
    return spec


def parse_cpu_burst(annotations: Annotations) -> dict[str, Any] | None:
    """``koordinator.sh/cpuBurst``: policy, cpuBurstPercent, cfsQuotaBurstPercent, cfsQuotaBurstPeriodSeconds as given."""
    return _block(
        annotations,
        names.ANNOTATION_CPU_BURST,
        integers=("cpuBurstPercent", "cfsQuotaBurstPercent", "cfsQuotaBurstPeriodSeconds"),
        texts=("policy",),
    )


def parse_cpu_qos(annotations: Annotations) -> dict[str, Any] | None:
    """``koordinator.sh/cpuQOS``; a groupIdentity outside -1..2 is an error."""
    key = names.ANNOTATION_CPU_QOS
    block = _block(annotations, key, integers=("groupIdentity", "schedIdle"), booleans=("enable", "coreExpeller"))
    identity = block.get("groupIdentity") if block else None
    if identity is not None and not GROUP_IDENTITY_RANGE[0] <= identity <= GROUP_IDENTITY_RANGE[1]:
        raise AnnotationError(key, f"groupIdentity: {identity} is not in -1..2")
    return block


def parse_memory_qos(annotations: Annotations) -> dict[str, Any] | None:
    """``koordinator.sh/memoryQOS``: policy (default, none, auto) and memoryQOS fields as given."""
    return _block(
        annotations,
        names.ANNOTATION_MEMORY_QOS,
        integers=(
            "minLimitPercent", "lowLimitPercent", "throttlingPercent", "wmarkRatio", "wmarkScalePermill", "wmarkMinAdj",
            "priorityEnable", "priority", "oomKillGroup", "pageCacheLimitSize", "pageCacheLimitPercent",
        ),
        booleans=("enable", "pageCacheEnable", "pageCacheReclaimSync"),
        texts=("policy",),
    )  # fmt: skip


def parse_blkio_qos(annotations: Annotations) -> dict[str, Any] | None:
    """``koordinator.sh/blkioQOS``: blocks as given."""
    key = names.ANNOTATION_BLKIO_QOS
    block = _block(annotations, key, booleans=("enable",))
    blocks = block.get("blocks") if block else None
    if blocks is not None and not (isinstance(blocks, list) and all(isinstance(entry, dict) for entry in blocks)):
        raise AnnotationError(key, "blocks: a list of objects is wanted")
    return block


def _block(
    annotations: Annotations, key: str, *, integers: tuple[str, ...] = (), booleans: tuple[str, ...] = (), texts: tuple[str, ...] = ()
) -> dict[str, Any] | None:
    """A JSON object without its nulls, in which the named members have the wanted type. Raises AnnotationError."""
    block = read_json(annotations, key, dict[str, Any])
    if block is None:
        return None
    block = {name: value for name, value in block.items() if value is not None}
    for wanted, members in ((int, integers), (bool, booleans), (str, texts)):
        for name in members:
            if name in block and type(block[name]) is not wanted:
                raise AnnotationError(key, f"{name}: {block[name]!r} is not of type {wanted.__name__}")
    return block


class _RawNetworkQOS(Projection):
    ingress_limit: str | int | float | None = None
    egress_limit: str | int | float | None = None


def parse_network_qos(annotations: Annotations) -> NetworkQOS | None:
    """``koordinator.sh/networkQOS``: quantities in *bits* per second."""
    key = names.ANNOTATION_NETWORK_QOS
    raw = read_json(annotations, key, _RawNetworkQOS)
    if raw is None:
        return None
    try:
        return NetworkQOS(
            ingress_limit=None if raw.ingress_limit in (None, "") else quantity.parse_value(raw.ingress_limit),
            egress_limit=None if raw.egress_limit in (None, "") else quantity.parse_value(raw.egress_limit),
        )
    except quantity.QuantityError as error:
        raise AnnotationError(key, str(error)) from None


def parse_resctrl(annotations: Annotations) -> ResctrlConfig | None:
    """``node.koordinator.sh/resctrl``."""
    return read_json(annotations, names.ANNOTATION_RESCTRL, ResctrlConfig)


def parse_eviction_policies(annotations: Annotations) -> frozenset[str] | None:
    """``koordinator.sh/eviction-policy``: the policies that may evict the pod, None when any may. Invalid text allows none."""
    try:
        policies = read_json(annotations, names.ANNOTATION_EVICTION_POLICY, tuple[str, ...])
    except AnnotationError:
        return frozenset()  # said so by the contract: rather evict too little
    return None if policies is None else frozenset(policies)


def parse_eviction_priority(annotations: Annotations) -> int:
    """``koordinator.sh/eviction-priority``, int32, lower is evicted first; 0 when absent."""
    return read_integer(annotations, names.ANNOTATION_EVICTION_PRIORITY, bits=32)


def _check_oom_score(key: str, where: str, score: int) -> int:
    low, high = OOM_SCORE_ADJ_RANGE
    if not low <= score <= high:
        raise AnnotationError(key, f"{where}{score} is not in {low}..{high}")
    return score


def parse_oom_score_adj(annotations: Annotations) -> int | None:
    """``koordinator.sh/oom-score-adj``, -1000..1000."""
    key = names.ANNOTATION_OOM_SCORE_ADJ
    if not annotations or key not in annotations:
        return None
    return _check_oom_score(key, "", read_integer(annotations, key))


def parse_oom_score_adj_spec(annotations: Annotations) -> dict[str, int] | None:
    """``koordinator.sh/oom-score-adj-spec`` by container name, -1000..1000 each."""
    key = names.ANNOTATION_OOM_SCORE_ADJ_SPEC
    spec = read_json(annotations, key, dict[str, int])
    for container, score in spec.items() if spec else ():
        _check_oom_score(key, f"{container}: ", score)
    return spec
