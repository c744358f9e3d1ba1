"""The same allocations as kube-scheduler's: generated nodes with devices, each with one pod and its claims, given to both (SCH-DRA-01).

Needs a kube-scheduler in KOORD_REAL_SCHEDULER beside the API server. KOORD_CLAIM_WORLDS says how many worlds there are (default 100),
KOORD_CLAIM_SEED which is the first.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from koord.api.kinds import DEVICECLASSES, NAMESPACES, NODES, PODS, RESOURCECLAIMS, RESOURCESLICES
from koord.kube.client import Client
from roles.scheduler.testing import World, node, pod
from tests.support import patience, real_apiserver
from tests.support.claims import alternative, claim, device, device_class, of_claim, request, results, slice_of

pytestmark = [pytest.mark.realapi, pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.feature("SCH-DRA-01")]
Obj = dict[str, Any]
MODELS = ("a", "b")
POLICIES: tuple[Obj, ...] = (
    {"default": "4Gi", "validRange": {"min": "4Gi", "max": "16Gi", "step": "4Gi"}},
    {"default": "10Gi", "validValues": ["10Gi", "12Gi"]},
    {"default": "16Gi", "validRange": {"min": "16Gi"}},
)
ADMIN = "resource.kubernetes.io/admin-access"
#: kube-scheduler gives a pod up when a request for all devices meets a constraint, whatever else might do, and when any alternative asks
#: for all devices while a pool of the node is incomplete, whichever alternative can be had: errors, as it says.
GIVEN_UP = ("because a claim constraint would not be satisfied", "asks for all devices, but resource pool w{0}.example.com")


def devices(rng: random.Random, driver: str, pool: str, node_name: str) -> list[Obj]:
    """The slices of one pool, with partitions now and then."""
    total = rng.randint(1, 3)
    parts = rng.random() < 0.3
    slices = []
    for number in range(total):
        found = []
        for at in range(rng.randint(1, 4)):
            more: Obj = {}
            if rng.random() < 0.2:
                more["taints"] = [{"key": "t", "value": "v", "effect": rng.choice(("NoSchedule", "NoExecute"))}]
            if parts and rng.random() < 0.7:
                more["consumesCounters"] = [{"counterSet": "c", "counters": {"m": {"value": rng.choice(("10Gi", "20Gi", "40Gi"))}}}]
            elif rng.random() < 0.2:
                more["allowMultipleAllocations"] = True
            attributes = {"model": {"string": rng.choice(MODELS)}, "numa": {"int": rng.randint(0, 1)}}
            capacity = {"memory": {"value": rng.choice(("16Gi", "40Gi", "80Gi"))}}
            if "allowMultipleAllocations" in more and rng.random() < 0.6:
                capacity["memory"]["requestPolicy"] = rng.choice(POLICIES)
            found.append(device(f"d-{number}-{at}", attributes=attributes, capacity=capacity, **more))
        rng.shuffle(found)
        slices.append(found)
    count = total + parts
    names = [f"{pool}-{chr(97 + number)}" for number in range(total)]
    rng.shuffle(names)
    made = [
        slice_of(node_name, *found, name=name, driver=driver, pool=pool, count=count) for name, found in zip(names, slices, strict=True)
    ]
    if parts:
        counters = [{"name": "c", "counters": {"m": {"value": rng.choice(("40Gi", "80Gi"))}}}]
        made.append(slice_of(node_name, name=f"{pool}-z", driver=driver, pool=pool, count=count, sharedCounters=counters))
    return made


def wanted(rng: random.Random, name: str, driver: str) -> Obj:
    """One request."""

    def selectors() -> list[str]:
        found = [f'device.attributes["{driver}"].model == "{rng.choice(MODELS)}"'] if rng.random() < 0.4 else []
        big = f'device.capacity["{driver}"].memory.compareTo(quantity("40Gi")) >= 0'
        return [*found, big] if rng.random() < 0.3 else found

    def more() -> Obj:
        found: Obj = {"allocationMode": "All"} if rng.random() < 0.15 else {"count": rng.randint(1, 3)} if rng.random() < 0.5 else {}
        if rng.random() < 0.3:
            found["tolerations"] = [{"key": "t", "operator": "Exists"}]
        if rng.random() < 0.2:
            found["capacity"] = {"requests": {"memory": rng.choice(("8Gi", "20Gi"))}}
        return found

    if rng.random() < 0.3:
        return {"name": name, "firstAvailable": [alternative(f"s{at}", *selectors(), cls=driver, **more()) for at in range(2)]}
    return request(name, *selectors(), cls=driver, **more())


def single(asked: Obj) -> bool:
    """Whether a request is for one device."""
    return all(one.get("count", 1) == 1 and "allocationMode" not in one for one in asked.get("firstAvailable") or [asked["exactly"]])


def world(seed: int) -> tuple[Obj, list[Obj], list[Obj]]:
    """A node's name, its slices, and the claims of one pod."""
    rng = random.Random(seed)
    name, driver = f"w{seed}", f"w{seed}.example.com"
    pools = [f"w{seed}-{letter}" for letter in "pq"[: rng.randint(1, 2)]]
    slices = [one for pool in pools for one in aged(rng, devices(rng, driver, pool, name))]
    other = f"v{seed}.example.com" if rng.random() < 0.3 else ""
    if other:
        slices += devices(rng, other, f"v{seed}-p", name)
    claims = []
    for number in range(rng.randint(1, 2)):
        requests = [wanted(rng, f"r{at}", driver) for at in range(rng.randint(1, 3))]
        if other and rng.random() < 0.7:
            requests.insert(rng.randint(0, len(requests)), wanted(rng, "other", other))
        for asked in requests:
            if "exactly" in asked and rng.random() < 0.08:
                asked["exactly"] |= {"adminAccess": True}
        # of several devices of one request kube-scheduler compares the last one only, other than the API says
        key = rng.choice(("matchAttribute", "distinctAttribute") if all(map(single, requests)) else ("matchAttribute",))
        more: Obj = {"constraints": [{key: f"{driver}/numa"}]} if rng.random() < 0.3 else {}
        claims.append(claim(f"w{seed}-{number}", *requests, **more))
    return {"name": name, "driver": driver, "other": other}, slices, claims


def aged(rng: random.Random, slices: list[Obj]) -> list[Obj]:
    """A pool as it may be found: beside what is left of a former generation, or with a slice that is still missing."""
    pool = slices[0]["spec"]["pool"]
    if rng.random() < 0.2:
        for one in slices:
            one["spec"]["pool"] = {**one["spec"]["pool"], "generation": 2}
        left = {**slices[0]["spec"], "pool": {**pool, "generation": 1, "resourceSliceCount": 1}}
        left["devices"] = [{**one, "name": f"old-{one['name']}", "consumesCounters": []} for one in left["devices"]]
        return [*slices, {**slices[0], "metadata": {"name": f"{pool['name']}-0"}, "spec": left}]
    # one with counters would be of all nodes for kube-scheduler: no pod of any node would have all devices of its own
    if rng.random() < 0.15 and not any("sharedCounters" in one["spec"] for one in slices):
        for one in slices:
            one["spec"]["pool"] = {**one["spec"]["pool"], "resourceSliceCount": len(slices) + 1}
    return slices


def taken(seed: int) -> Obj | None:
    """A claim that has some of a world's devices already, now and then with the rights of an administrator, who takes them from nobody."""
    rng = random.Random(f"taken {seed}")
    about, slices, _ = world(seed)
    free = [
        (one["spec"], found["name"])
        for one in slices
        for found in one["spec"].get("devices") or ()
        if one["spec"]["driver"] == about["driver"] and not found.get("allowMultipleAllocations") and not found["name"].startswith("old-")
    ]
    if rng.random() < 0.5 or not free:
        return None
    chosen = rng.sample(free, min(len(free), rng.randint(1, 2)))
    admin: Obj = {"adminAccess": True} if rng.random() < 0.3 else {}
    rows = [{"request": "had", "driver": spec["driver"], "pool": spec["pool"]["name"], "device": name, **admin} for spec, name in chosen]
    node_of = {"key": "metadata.name", "operator": "In", "values": [about["name"]]}
    selector = {"nodeSelectorTerms": [{"matchFields": [node_of]}]}
    found = claim(f"w{seed}-had", request("had", cls=about["driver"], count=len(chosen), **admin))
    return {**found, "status": {"allocation": {"devices": {"results": rows}, "nodeSelector": selector}}}


def ours(seed: int) -> list[list[str]] | None:
    """What koord allocates; None for nothing."""
    about, slices, claims = world(seed)
    made = World()
    made.add_nodes(node(about["name"]))
    had = taken(seed)
    for item in (*classes(about), *slices, *([had] if had else ()), *claims):
        made.feed(item["kind"], item)
    decision = made.schedule(pod(cpu="1m", resourceClaims=references(claims)))
    if not decision.scheduled:
        return None
    cache = made.framework.plugins["DynamicResources"].cache  # type: ignore[attr-defined]
    return [results({"status": {"allocation": cache.assumed[f"default/{item['metadata']['name']}"].status}}) for item in claims]


def classes(about: Obj) -> list[Obj]:
    return [device_class(name, f'device.driver == "{name}"') for name in (about["driver"], about["other"]) if name]


def references(claims: list[Obj]) -> list[Obj]:
    return [{**of_claim(item["metadata"]["name"])[0], "name": f"c{number}"} for number, item in enumerate(claims)]


async def theirs(client: Client, seeds: range) -> tuple[dict[int, list[list[str]] | None], dict[int, str]]:
    """What kube-scheduler allocates, and what it says of pods that it does not place."""
    await client.patch(NAMESPACES, "default", {"metadata": {"labels": {ADMIN: "true"}}})
    for seed in seeds:
        about, slices, claims = world(seed)
        for item in classes(about):
            await client.create(DEVICECLASSES, item)
        for item in slices:
            await client.create(RESOURCESLICES, item)
        if had := taken(seed):
            await client.create(RESOURCECLAIMS, had, "default")
            await client.patch(RESOURCECLAIMS, had["metadata"]["name"], {"status": had["status"]}, "default", subresource="status")
        for item in claims:
            await client.create(RESOURCECLAIMS, item, "default")
        await client.create(
            NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": about["name"], "labels": {"name": about["name"]}}}
        )
        room = {"cpu": "4", "memory": "8Gi", "pods": "10"}
        await client.patch(NODES, about["name"], {"status": {"capacity": room, "allocatable": room}}, subresource="status")
        await client.patch(NODES, about["name"], {"spec": {"taints": None}})
        spec = {"containers": [{"name": "m", "image": "i"}], "nodeSelector": {"name": about["name"]}, "resourceClaims": references(claims)}
        await client.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": about["name"]}, "spec": spec}, "default")
    for _ in patience.tries(6000):
        pods = (await client.list(PODS, "default")).items
        if all(item["spec"].get("nodeName") or item.get("status", {}).get("conditions") for item in pods):
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(3.0)  # what was tried before its slices were seen is tried again
    found: dict[int, list[list[str]] | None] = {}
    pods = (await client.list(PODS, "default")).items
    bound = {item["metadata"]["name"]: bool(item["spec"].get("nodeName")) for item in pods}
    said = {int(item["metadata"]["name"][1:]): str(item.get("status", {}).get("conditions")) for item in pods}
    shown = {item["metadata"]["name"]: item for item in (await client.list(RESOURCECLAIMS, "default")).items}
    for seed in seeds:
        names = [item["metadata"]["name"] for item in world(seed)[2]]
        found[seed] = [results(shown[name]) for name in names] if bound[f"w{seed}"] else None
    return found, said


def test_the_same_devices_as_kube_scheduler(tmp_path: Path) -> None:
    program, scheduler = real_apiserver.binary(), os.environ.get("KOORD_REAL_SCHEDULER")
    if program is None or scheduler is None or shutil.which("etcd") is None:
        pytest.skip("needs kube-apiserver, kube-scheduler (KOORD_REAL_SCHEDULER) and etcd")
    first = int(os.environ.get("KOORD_CLAIM_SEED", "0"))
    seeds = range(first, first + int(os.environ.get("KOORD_CLAIM_WORLDS", "100")))

    async def run(server: real_apiserver.RealApiServer) -> tuple[dict[int, list[list[str]] | None], dict[int, str]]:
        async with Client(server.client_config()) as client:
            return await theirs(client, seeds)

    with real_apiserver.real_api_server(tmp_path, program) as server, (tmp_path / "scheduler.log").open("wb") as log:
        command = [scheduler, f"--kubeconfig={server.kubeconfig}", "--leader-elect=false", "--secure-port=0"]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            found, said = asyncio.run(run(server))
        finally:
            process.terminate()
            process.wait(patience.seconds(40))
    answers = {seed: ours(seed) for seed in seeds}
    differing = {seed: (answer, answers[seed]) for seed, answer in found.items() if answer is not None and answer != answers[seed]}
    assert not differing, differing
    more = {seed: said[seed] for seed, answer in found.items() if answer is None and answers[seed] is not None}
    unexplained = {seed: text for seed, text in more.items() if not any(one.format(seed) in text for one in GIVEN_UP)}
    assert not unexplained, "\n".join(f"{seed}: {text} {answers[seed]}" for seed, text in unexplained.items())
    print(f"{len(found)} worlds: {len(more)} given up by kube-scheduler with an error, the others the same")
    assert sum(answer is not None for answer in found.values()) > len(seeds) / 4
