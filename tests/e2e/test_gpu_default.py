"""A GPU pod in a cluster as installed: the webhook writes its request, the manager what the node offers, the scheduler binds it, in a
Reservation too."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.api.kinds import CONFIGMAPS, DEVICES, MUTATINGWEBHOOKCONFIGURATIONS, NAMESPACES, NODES, PODS, RESERVATIONS
from koord.apiserver.testing import running_server
from tests.support import patience
from tests.support.processes import free_port, process

INSTALL = Path(__file__).resolve().parents[2] / "configs/install"
GPU = "koordinator.sh/gpu"
READY = [{"type": "Ready", "status": "True"}]


def shipped(kind: str, name: str) -> dict[str, Any]:
    """An object of the install manifests."""
    found = (obj for file in sorted(INSTALL.glob("*.yaml")) for obj in yaml.safe_load_all(file.read_text()))
    return next(obj for obj in found if obj and (obj["kind"], obj["metadata"]["name"]) == (kind, name))


def card(minor: int) -> dict[str, Any]:
    resources = {f"{GPU}-core": "100", f"{GPU}-memory-ratio": "100", f"{GPU}-memory": "80Gi"}
    return {"type": "gpu", "minor": minor, "id": f"GPU-{minor}", "health": True, "resources": resources}


def pod(name: str, **amounts: str) -> dict[str, Any]:
    wanted = {"cpu": "1", **{GPU + key.replace("_", "-"): value for key, value in amounts.items()}}
    container = {"name": "main", "image": "i", "resources": {"requests": wanted, "limits": wanted}}
    return {"metadata": {"name": name}, "spec": {"schedulerName": "koord-scheduler", "containers": [container]}}


def reservation(name: str, **amounts: str) -> dict[str, Any]:
    """For the pod of the same name."""
    template = {"spec": pod(name, **amounts)["spec"]}
    spec = {"template": template, "owners": [{"object": {"name": name}}], "allocateOnce": False, "allocatePolicy": "Restricted"}
    return {"apiVersion": RESERVATIONS.api_version, "kind": RESERVATIONS.kind, "metadata": {"name": name}, "spec": spec}


@pytest.mark.feature("MGR-POD-M-05")
@pytest.mark.feature("MGR-NR-GPU-01")
@pytest.mark.feature("SCH-DEV-01")
@pytest.mark.timeout(150)
def test_a_gpu_pod_is_bound_with_all_defaults(tmp_path: Path) -> None:
    config = yaml.safe_load(shipped("ConfigMap", "koord-scheduler-config")["data"]["koord-scheduler-config"])
    config |= {"leaderElection": {"leaderElect": False}}
    (tmp_path / "scheduler.yaml").write_text(json.dumps(config))

    async def main() -> None:
        async with running_server(crds=True) as server, server.client() as client:
            await client.create(NAMESPACES, {"metadata": {"name": "koordinator-system"}})
            await client.create(CONFIGMAPS, shipped("ConfigMap", "slo-controller-config"), "koordinator-system")
            amounts = {"cpu": "32", "memory": "128Gi", "pods": "110"}
            for name in ("plain", "gpu"):
                await client.create(NODES, {"metadata": {"name": name}, "spec": {}})
                status = {"capacity": amounts, "allocatable": amounts, "conditions": READY}
                await client.patch(NODES, name, {"status": status}, subresource="status")
            await client.create(
                DEVICES,
                {
                    "apiVersion": DEVICES.api_version,
                    "kind": DEVICES.kind,
                    "metadata": {"name": "gpu"},
                    "spec": {"devices": [card(0), card(1), card(2)]},
                },
            )
            flags = [f"--kubeconfig={server.kubeconfig_path}"]
            environment = {"WEBHOOK_HOST": "127.0.0.1", "WEBHOOK_PORT": str(free_port()), "WEBHOOK_CERT_DIR": str(tmp_path / "certs")}
            manager = ["manager", *flags, "--metrics-addr=0", "--enable-pprof=false", f"--health-probe-addr=127.0.0.1:{free_port()}",
                       "--shutdown-delay-duration=0s"]  # fmt: skip
            scheduler = ["scheduler", *flags, f"--config={tmp_path / 'scheduler.yaml'}", "--address=127.0.0.1", f"--port={free_port()}",
                         "--secure-port=0"]  # fmt: skip
            with process(*manager, **environment), process(*scheduler):

                async def offered() -> Any:
                    return (await client.get(NODES, "gpu"))["status"]["allocatable"].get(GPU) == "300" and (
                        await client.get(MUTATINGWEBHOOKCONFIGURATIONS, "koordinator-mutating-webhook-configuration")
                    )["webhooks"]

                await until(offered, "the node offers its cards, and the webhook is registered")
                await client.create(RESERVATIONS, reservation("owner", **{"": "100"}))

                async def available() -> Any:
                    return (await client.get(RESERVATIONS, "owner"))["status"].get("phase") == "Available"

                await until(available, "one card is reserved")
                for name, wanted in (("one", {"": "100"}), ("half", {"": "50"}), ("core", {"_core": "50", "_memory_ratio": "50"})):
                    await client.create(PODS, pod(name, **wanted), "default")

                    async def bound(name: str = name) -> Any:
                        return (await client.get(PODS, name, "default"))["spec"].get("nodeName")

                    assert await until(bound, f"{name} is bound") == "gpu"
                    made = await client.get(PODS, name, "default")
                    assert made["spec"]["containers"][0]["resources"]["requests"][f"{GPU}.shared"] == "1", "the webhook was asked"
                    assert len(json.loads(made["metadata"]["annotations"]["scheduling.koordinator.sh/device-allocated"])["gpu"]) == 1
                owner = pod("owner", **{"": "100"})
                owner["metadata"]["annotations"] = {"scheduling.koordinator.sh/reservation-affinity": "{}"}
                await client.create(PODS, owner, "default")

                async def allocated() -> Any:
                    return (await client.get(RESERVATIONS, "owner"))["status"].get("allocated")

                shown = await until(allocated, "the owner is bound in its reservation, which is written as the user wrote it")
                assert shown == {"cpu": "1", GPU: "100"}
                await client.create(PODS, pod("late", **{"": "100"}), "default")

                async def refused() -> Any:
                    conditions = (await client.get(PODS, "late", "default"))["status"].get("conditions") or ()
                    return next((one["message"] for one in conditions if one["type"] == "PodScheduled"), None)

                assert "Insufficient" in await until(refused, "a whole card more is refused")

    asyncio.run(main())


async def until(look: Any, what: str) -> Any:
    end = time.monotonic() + patience.seconds(40)
    while time.monotonic() < end:
        with contextlib.suppress(Exception):
            if value := await look():
                return value
        await asyncio.sleep(0.05)
    return pytest.fail(f"never: {what}")
