"""Checkpoints of a Recommendation's histograms in a ConfigMap, so that a restart forgets nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from koord.accounting.histogram import CheckpointError
from roles.manager.recommender.group import ContainerGroup
from roles.manager.recommender.policy import Policy

PREFIX = "recommendation-checkpoint-"
LABEL = "analysis.koordinator.sh/recommendation-checkpoint"
_VERSION = "1"


def name_of(uid: str) -> str:
    """Name of the ConfigMap of a Recommendation."""
    return PREFIX + uid


def data_of(groups: Mapping[str, ContainerGroup]) -> dict[str, str]:
    """`data` of the ConfigMap: a key a container."""
    return {"version": _VERSION, **{f"container.{name}": orjson.dumps(group.to_checkpoint()).decode() for name, group in groups.items()}}


def body_of(uid: str, namespace: str, about: str, groups: Mapping[str, ContainerGroup]) -> dict[str, Any]:
    """The whole ConfigMap; `about` is the Recommendation's namespace and name, for people."""
    metadata = {"name": name_of(uid), "namespace": namespace, "labels": {LABEL: "true"}, "annotations": {LABEL: about}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data_of(groups)}


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
