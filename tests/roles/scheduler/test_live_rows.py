"""Through the API server: what is else tested on a world without one. One server for inherited filters, one for hooks of quotas."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from koord.api.kinds import ELASTICQUOTAS, NODES, PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, PODS
from roles.scheduler.plugins.elastic_quota import hooks as hooks_module
from roles.scheduler.plugins.elastic_quota.hooks import QuotaHook
from tests.support import patience

Obj = dict[str, Any]
HOST = "kubernetes.io/hostname"


def near(labels: Obj, key: str = HOST) -> list[Obj]:
    return [{"topologyKey": key, "labelSelector": {"matchLabels": labels}}]


async def refused(live: Any, name: str, text: str) -> None:
    pod = await live.until(name, lambda p: any(text in c.get("message", "") for c in p["status"].get("conditions", [])))
    assert not pod["spec"].get("nodeName")


@pytest.mark.feature("SCH-KS-01")
@pytest.mark.feature("SCH-KS-06")
@pytest.mark.feature("SCH-KS-09")
@pytest.mark.feature("SCH-KS-10")
def test_what_pods_ask_of_nodes_of_other_pods_and_of_volumes(scheduler: Any) -> None:
    async def nodes(objects: Any) -> None:
        await objects.node("a", labels={HOST: "a", "zone": "z1"})
        taint = {"key": "only", "value": "x", "effect": "NoSchedule"}
        await objects.node("b", labels={HOST: "b", "zone": "z2"}, taints=[taint])

    async def run() -> None:
        async with scheduler(before=nodes) as live:
            tolerant = {"tolerations": [{"key": "only", "operator": "Exists"}]}
            await live.pod("plain")
            assert await live.bound("plain") == "a"  # NodeUnschedulable, TaintToleration, NodeName below
            await live.pod("named", nodeSelector={"zone": "z2"}, **tolerant, meta={"labels": {"app": "web"}})
            assert await live.bound("named") == "b"
            affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": near({"app": "web"})}}
            await live.pod("friend", affinity=affinity, **tolerant)
            assert await live.bound("friend") == "b"
            anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": near({"app": "web"}, "zone")}}
            await live.pod("rival", affinity=anti, **tolerant)
            assert await live.bound("rival") == "a"
            await live.client.patch(NODES, "a", {"spec": {"unschedulable": True}})
            await live.pod("late", **tolerant, affinity=anti)
            await refused(live, "late", "unschedulable")
            await live.client.patch(NODES, "a", {"spec": {"unschedulable": None}})
            assert await live.bound("late") == "a"
            # A claim that is bound to a volume on one node leads there; one that does not exist leads nowhere.
            terms = [{"matchExpressions": [{"key": HOST, "operator": "In", "values": ["b"]}]}]
            claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}}
            claim["spec"] = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": "disk",
                             "resources": {"requests": {"storage": "1Gi"}}}  # fmt: skip
            volume = {
                "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"},
                "spec": {
                    "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "local": {"path": "/d"}, "storageClassName": "",
                    "claimRef": {"namespace": "default", "name": "data"}, "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
                },
            }  # fmt: skip
            await live.client.create(PERSISTENTVOLUMES, volume)
            made = await live.client.create(PERSISTENTVOLUMECLAIMS, claim, "default")
            done = {"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}}
            await live.client.patch(PERSISTENTVOLUMECLAIMS, "data", done, "default")
            await live.client.patch(PERSISTENTVOLUMECLAIMS, "data", {"status": {"phase": "Bound"}}, "default", subresource="status")
            await live.client.patch(PERSISTENTVOLUMES, "disk", {"spec": {"claimRef": {"uid": made["metadata"]["uid"]}}})
            await live.pod("keeper", **tolerant, volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}])
            assert await live.bound("keeper") == "b"
            await live.pod("lost", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "nothing"}}])
            await refused(live, "lost", 'persistentvolumeclaim "nothing" not found')

    asyncio.run(run())


class Bouncer(QuotaHook):
    """Refuses pods of one name and writes an annotation of its own."""

    def __init__(self, key: str, args: Any) -> None:
        self.bad = args["bad"]

    def annotations(self, quota: Any) -> dict[str, str]:
        return {"example.com/seen": quota.name}

    def check_pod(self, quota: Any, pod: Any) -> str:
        return "it is bad" if pod.name == self.bad else ""


@pytest.mark.feature("SCH-EQ-12")
def test_a_quota_hook_has_a_say_and_writes(scheduler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks_module, "factories", lambda: {"bouncer": Bouncer})
    args = {"quotaGroupNamespace": "default", "hookPlugins": [{"key": "mine", "factoryKey": "bouncer", "factoryArgs": {"bad": "bad"}}]}
    here = {"enabled": [{"name": "ElasticQuota"}]}
    profile = {
        "schedulerName": "koord-scheduler", "pluginConfig": [{"name": "ElasticQuota", "args": args}],
        "plugins": {"preFilter": here, "reserve": here},
    }  # fmt: skip

    async def run() -> None:
        async with scheduler({"profiles": [profile]}, crds=True) as live:
            await live.node("n")
            body = {"apiVersion": ELASTICQUOTAS.api_version, "kind": ELASTICQUOTAS.kind, "metadata": {"name": "team"}}
            await live.client.create(ELASTICQUOTAS, {**body, "spec": {"max": {"cpu": "4"}, "min": {}}}, "default")
            label = {"labels": {"quota.scheduling.koordinator.sh/name": "team"}}
            await live.pod("bad", meta=label)
            await refused(live, "bad", "quota hook mine: it is bad")
            await live.pod("good", meta=label)
            assert await live.bound("good") == "n"
            for _ in patience.tries(200):
                quota = await live.client.get(ELASTICQUOTAS, "team", "default")
                if (quota["metadata"].get("annotations") or {}).get("example.com/seen") == "team":
                    return
                await asyncio.sleep(0.02)
            raise AssertionError("the hook's annotation was not written")

    asyncio.run(run())


PLUGINS = """
from roles.scheduler.framework.interfaces import Permit, PreferNodes, PreFilter, Transformer
from roles.scheduler.framework.status import SKIP, SUCCESS, unschedulable, wait


class Concierge(PreFilter, Transformer, PreferNodes):
    name = "Concierge"

    def pre_filter(self, ctx):
        return SKIP

    def before_pre_filter(self, ctx):
        if "unwelcome" in ctx.pod.labels:
            return unschedulable("not today"), None
        return SUCCESS, None

    def prefer_nodes(self, ctx, candidates):
        wanted = ctx.pod.labels.get("example.com/node", "")
        return (SUCCESS, (wanted,)) if wanted else (SKIP, ())


class Hold(Permit):
    name = "Hold"

    def permit(self, ctx, slot):
        return wait(60.0) if "hold" in ctx.pod.labels else SUCCESS
"""


@pytest.mark.feature("SCH-FW-07")
@pytest.mark.feature("SCH-FW-12")
def test_own_steps_in_the_cycle_and_the_last_look_before_binding(scheduler: Any, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(PLUGINS)
    plugins = {"preFilter": {"enabled": [{"name": "Concierge"}]}, "permit": {"enabled": [{"name": "Hold"}]}}
    profiles = [{"schedulerName": "koord-scheduler", "plugins": plugins}]

    async def nodes(objects: Any) -> None:
        for name, cpu in (("a", "4"), ("b", "32"), ("c", "4")):
            await objects.node(name, cpu=cpu)

    async def run() -> None:
        async with scheduler({"profiles": profiles}, plugin_paths=(str(tmp_path),), before=nodes) as live:
            await live.pod("led", meta={"labels": {"example.com/node": "c"}})  # b scores best
            assert await live.bound("led") == "c"
            await live.pod("unwelcome", meta={"labels": {"unwelcome": ""}})
            await refused(live, "unwelcome", "not today")
            await live.pod("held", meta={"labels": {"hold": ""}})
            for _ in patience.tries(400):
                if len(live.app.waiting):
                    break
                await asyncio.sleep(0.02)
            (held,) = live.app.waiting.all()
            # Meanwhile it becomes another scheduler's: it must not be bound any more.
            label = {"metadata": {"labels": {"scheduling.koordinator.sh/scheduler-name": "another"}}}
            await live.client.patch(PODS, "held", label, "default")
            for _ in range(400):  # until the scheduler has seen it
                seen = live.app.observer.reread(held.pod)
                if seen is None or seen.shape.scheduler_name == "another":
                    break
                await asyncio.sleep(0.02)
            live.app.waiting.allow(held.pod.uid, "Hold")
            await live.pod("after", meta={"labels": {"example.com/node": "a"}})
            assert await live.bound("after") == "a"
            assert not (await live.get("held"))["spec"].get("nodeName")
            await live.client.delete(PODS, "held", "default", grace_period_seconds=0)

    asyncio.run(run())
