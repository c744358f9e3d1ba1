"""What is written on ElasticQuotas (SCH-EQ-10): numbers that differ from those of the object, and only those."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from koord.accounting.resources import ResourceVector, equal, format, parse
from koord.api import names
from koord.api.objects import ElasticQuota
from roles.scheduler.plugins.elastic_quota.tree import Quota

Patch = dict[str, Any]
_DOMAIN = names.ANNOTATION_QUOTA_RUNTIME.removesuffix("runtime")  # what the annotations' names begin with


def patch_of(quota: Quota, shown: ElasticQuota, extra: Mapping[str, str]) -> Patch | None:
    """The merge patch that brings an object up to date, None when it is. Entries of zero count as missing; `extra` are further
    annotations. The UID in it keeps the patch from an object of the same name that came since."""
    annotations: dict[str, str] = {}
    for name, amounts in quota.told().items():
        key = f"{_DOMAIN}{name}"
        if not _shows(shown.metadata.annotations.get(key), amounts):
            annotations[key] = orjson.dumps(format(amounts), option=orjson.OPT_SORT_KEYS).decode()
    annotations.update({key: value for key, value in extra.items() if shown.metadata.annotations.get(key) != value})
    patch: Patch = {}
    if annotations:
        patch["metadata"] = {"annotations": annotations}
    if not _equals(shown.status.used, quota.used):
        used: dict[str, str | None] = dict.fromkeys(shown.status.used)
        used.update(format(quota.used))
        patch["status"] = {"used": used}
    if patch and shown.metadata.uid:
        patch.setdefault("metadata", {})["uid"] = shown.metadata.uid
    return patch or None


def _shows(text: str | None, amounts: ResourceVector) -> bool:
    if text is None:
        return not any(amounts.values())
    try:
        content = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False  # what is no ResourceList is written anew
    return isinstance(content, dict) and _equals(content, amounts)


def _equals(shown: Mapping[str, Any], amounts: ResourceVector) -> bool:
    try:
        return equal(parse(shown), amounts)
    except ValueError:
        return False  # likewise
