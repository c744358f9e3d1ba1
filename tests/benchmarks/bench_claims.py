"""Pods with resource claims made of templates, through the whole scheduler in process: claims allocated, reserved and bound.

The baseline is kube-scheduler's own gate for such pods on 500 nodes: 40 to 70 pods/s.
"""

from __future__ import annotations

from typing import Any

import msgspec

from koord.api.kinds import DEVICECLASSES, RESOURCECLAIMS, RESOURCESLICES, Kind
from koord.api.objects import Pod
from koord.process import tuning
from roles.scheduler import testing
from tests.benchmarks.scheduling import Informers, StubClient, encode, run_app
from tests.benchmarks.table import Row, script
from tests.support.claims import DRIVER, claim, device, device_class, request, slice_of

DEVICES = 8
BIG = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0'


class ClaimServer(StubClient):
    """Takes patches of claims as well, and shows them a moment later."""

    async def patch(self, kind: Kind, name: str, body: Any, namespace: str | None = None, **_: Any) -> dict[str, Any]:
        if kind != RESOURCECLAIMS:
            return {}
        shown = CLAIMS[name]
        for part in ("metadata", "status"):
            shown[part] = {**shown.get(part, {}), **body.get(part, {})}
        shown["metadata"]["resourceVersion"] = str(int(shown["metadata"]["resourceVersion"]) + 1)
        self.informers.put(RESOURCECLAIMS, f"default/{name}", encode(shown))
        return shown


CLAIMS: dict[str, dict[str, Any]] = {}


def claimed(number: int, distinct: bool) -> Pod:
    """A pod with the claim that was made for it."""
    name = f"p{number}-gpu"
    wanted = f"{BIG} && {number} >= 0" if distinct else BIG
    pod = testing.pod(f"p{number}", cpu="100m", memory="64Mi", resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one"}])
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid, "controller": True}
    shown = claim(name, request("gpu", wanted))
    shown["metadata"] |= {"uid": name, "resourceVersion": "1", "ownerReferences": [owner]}
    CLAIMS[name] = shown
    status = msgspec.convert({"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": name}]}, type(pod.status))
    return msgspec.structs.replace(pod, status=status)


def throughput(nodes: int, pods: int, *, distinct: bool = False) -> Row:
    CLAIMS.clear()
    wanted = [claimed(number, distinct) for number in range(pods)]

    def before(informers: Informers) -> None:
        informers.put(DEVICECLASSES, "gpu", encode(device_class()))
        for number in range(nodes):
            devices = [
                device(f"gpu-{at}", memory="80Gi", attributes={"uuid": {"string": f"{number}-{at}"}}) for at in range(DEVICES)
            ]  # fmt: skip
            informers.put(RESOURCESLICES, f"s{number}", encode(slice_of(f"n{number}", *devices)))
        for name, shown in CLAIMS.items():
            informers.put(RESOURCECLAIMS, f"default/{name}", encode(shown))

    ran = run_app(nodes, wanted, before=before, stub=ClaimServer)
    what = "claims that all differ" if distinct else "claims of one template"
    note = f"{1e6 * ran.cpu / pods:.0f} µs CPU a pod"
    return Row(f"throughput in process, {nodes} nodes, {what}", pods / ran.seconds, "pods/s", 600.0, "higher", note)


def rows(quick: bool) -> list[Row]:
    tuning.keep_memory()
    tuning.relax_collector()
    pods = 500 if quick else 2000
    found = [throughput(500, pods), throughput(500, 100 if quick else 500, distinct=True)]
    return found if quick else [*found, throughput(5000, pods)]


if __name__ == "__main__":
    script(rows)
