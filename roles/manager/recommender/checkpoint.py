"""Checkpoints of a Recommendation's histograms in a ConfigMap, so that a restart forgets nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from koord.accounting.histogram import CheckpointError
from koord.api.objects import Recommendation
from roles.manager.recommender.group import ContainerGroup
from roles.manager.recommender.policy import Policy

PREFIX = "recommendation-checkpoint-"
LABEL = "analysis.koordinator.sh/recommendation-checkpoint"
_VERSION = "1"
_TARGET = "target"


def name_of(uid: str) -> str:
    """Name of the ConfigMap of a Recommendation."""
    return PREFIX + uid


def target_of(recommendation: Recommendation) -> str:
    """What a Recommendation is about, as text: what was learnt of one target says nothing of another."""
    return msgspec.json.encode(recommendation.spec.target, order="deterministic").decode()


def is_about(data: Mapping[str, str], target: str) -> bool:
    """Whether a checkpoint was learnt of this target. Earlier versions did not write it down."""
    return data.get(_TARGET, target) == target


def data_of(groups: Mapping[str, ContainerGroup], target: str = "") -> dict[str, str]:
    """`data` of the ConfigMap: a key a container."""
    about = {_TARGET: target} if target else {}
    return {
        "version": _VERSION,
        **about,
        **{f"container.{name}": orjson.dumps(group.to_checkpoint()).decode() for name, group in groups.items()},
    }


def body_of(uid: str, namespace: str, about: str, groups: Mapping[str, ContainerGroup], target: str = "") -> dict[str, Any]:
    """The whole ConfigMap; `about` is the Recommendation's namespace and name, for people; `target` what it is about."""
    metadata = {"name": name_of(uid), "namespace": namespace, "labels": {LABEL: "true"}, "annotations": {LABEL: about}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data_of(groups, target)}


def groups_of(data: Mapping[str, str], half_life: float, policy: Policy | None = None) -> tuple[dict[str, ContainerGroup], list[str]]:
    """Groups by container name, and what could not be read: one bad container does not lose the others."""
    if data.get("version") != _VERSION:
        return {}, [f"version {data.get('version')!r} is not {_VERSION!r}"]
    groups, errors = {}, []
    for key, text in data.items():
        name = key.removeprefix("container.")
        if name == key:
            continue
        try:
            found = orjson.loads(text)
            if not isinstance(found, dict):
                raise CheckpointError("a map is wanted")
            groups[name] = ContainerGroup.from_checkpoint(half_life, found, policy)
        except (orjson.JSONDecodeError, CheckpointError) as error:
            errors.append(f"{key}: {error}")
    return groups, errors
