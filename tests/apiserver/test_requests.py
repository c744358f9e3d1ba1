"""Requests that kube-apiserver takes, or refuses, in ways of its own."""

from __future__ import annotations

from typing import Any

MAPS = "/api/v1/namespaces/default/configmaps"


def test_equal_owner_references_are_kept_once(with_api: Any) -> None:
    async def body(api: Any) -> None:
        ref = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u"}
        other = {**ref, "name": "p"}
        made = await api.post(MAPS, {"metadata": {"name": "m", "ownerReferences": [ref, other, ref]}})
        assert made["metadata"]["ownerReferences"] == [ref, other]
        assert [warning.count("contains duplicate entries; API server dedups") for warning in api.warnings] == [1]
        await api.ok("PUT", MAPS + "/m", {"metadata": {"name": "m", "ownerReferences": [ref, ref]}})
        assert len(api.warnings) == 1
        patched = await api.merge(MAPS + "/m", {"metadata": {"ownerReferences": [other, other]}})
        assert patched["metadata"]["ownerReferences"] == [other]
        assert "after mutating admission happens" in api.warnings[0]
        assert api.warnings[0].endswith('duplicate UID(s) observed: u"')

    with_api(body)
