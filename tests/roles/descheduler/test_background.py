"""Evictions in background (gate EvictionsInBackground): a webhook refuses, says that it was triggered, and moves the pod itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from koord.api import kinds, names
from koord.kube import errors
from koord.kube.client import Client
from tests.roles.descheduler.support import configuration, descheduling, node, pod

TAINTS = [{"key": "leave", "effect": "NoSchedule"}]
GATE = "EvictionsInBackground"


@pytest.mark.feature("DS-K8S-11")
@pytest.mark.parametrize(
    ("on", "annotated", "message", "asked_once"),
    [
        (True, True, "admission webhook: Eviction triggered evacuation of VMI d/vm", True),
        (True, True, "Cannot evict pod as it would violate the pod's disruption budget.", False),
        (True, False, "admission webhook: Eviction triggered evacuation of VMI d/vm", False),
        (False, True, "admission webhook: Eviction triggered evacuation of VMI d/vm", False),
    ],
)
def test_a_pod_that_is_moved_in_background_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, on: bool, annotated: bool, message: str, asked_once: bool
) -> None:
    asked: list[str] = []

    async def evict(self: Client, namespace: str, name: str, **more: Any) -> None:
        asked.append(name)
        raise errors.TooManyRequests(429, "TooManyRequests", message)

    monkeypatch.setattr(Client, "evict", evict)
    meta = {"annotations": {names.ANNOTATION_REQUEST_EVICT_ONLY: "true"}} if annotated else {}
    text = configuration({"deschedule": ["RemovePodsViolatingNodeTaints"]}, deschedulingInterval="50ms", maxNoOfPodsToEvictTotal=1)

    async def scenario() -> None:
        async with descheduling([node("n1", taints=TAINTS), node("n2"), pod("vm", "n1", meta=meta)], text, {GATE: on}) as running:
            await running.wait_rounds(4)
            assert (len(asked) == 1) == asked_once
            assert bool(running.records("Evicted")) == asked_once
            if asked_once:
                assert "its eviction in background has begun" in running.records("Evicted")[0].message

    asyncio.run(scenario())


@pytest.mark.feature("DS-K8S-11")
def test_a_pod_that_says_it_is_on_its_way_is_not_asked_after_a_restart() -> None:
    """Nothing is remembered by a new process: the annotation tells."""
    on_its_way = {"annotations": {names.ANNOTATION_REQUEST_EVICT_ONLY: "true", names.ANNOTATION_EVICTION_IN_PROGRESS: "kubevirt"}}
    text = configuration({"deschedule": ["RemovePodsViolatingNodeTaints"]}, deschedulingInterval="50ms")

    async def scenario() -> None:
        objects = [node("n1", taints=TAINTS), node("n2"), pod("vm", "n1", meta=on_its_way), pod("other", "n1")]
        async with descheduling(objects, text, {GATE: True}) as running:
            await running.wait_rounds(2)
            assert await running.pods() == {"vm"}
            assert (await running.client.get(kinds.PODS, "vm", "default"))["metadata"].get("deletionTimestamp") is None

    asyncio.run(scenario())
