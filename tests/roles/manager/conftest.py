"""A manager on an embedded API server, and doors to it: API objects and the webhooks' HTTPS port."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import json
import ssl
import time
from datetime import UTC, datetime

import aiohttp
import pytest

from koord.api.kinds import BY_KIND
from koord.api.priority import BANDS
from koord.apiserver.testing import running_server
from koord.config.gates import MANAGER, FeatureGates
from koord.decisions.recorder import Recorder
from koord.kube.informers import InformerFactory
from koord.kube.patch import apply_json_patch
from koord.process.http import OpsServer
from koord.process.life import Life
from roles.manager.app import App
from roles.manager.options import Options, WebhookOptions
from tests.support import patience

BASE = (
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "koordinator-system"}},
    *(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": str(cls)}, "value": value}
        for cls, (value, _) in BANDS.items()
    ),
)


class Manager:
    """One running manager (a replica) and what tests ask of it."""

    def __init__(self, app, client, life, ops):
        self.app, self.client, self.life, self.ops = app, client, life, ops

    @property
    def port(self):
        return self.app.webhooks.server.port

    async def review(self, path, obj, *, operation="CREATE", old=None, namespace="", name="", sub_resource="", **extra):
        """POST an AdmissionReview; the response with the object after the patch under `object`."""
        request = {
            "uid": "u-1",
            "operation": operation,
            "resource": {"group": "", "version": "v1", "resource": resource_of(path)},
            "namespace": namespace,
            "name": name or ((obj or old or {}).get("metadata") or {}).get("name", ""),
            "object": obj,
            "oldObject": old,
            "subResource": sub_resource,
            **extra,
        }
        status, answer = await self.post(
            path, json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
        )
        assert status == 200
        assert answer["response"]["uid"] == "u-1"
        response = answer["response"]
        if response.get("patch"):
            import base64

            response["operations"] = json.loads(base64.b64decode(response["patch"]))
            response["object"] = apply_json_patch(obj, response["operations"])
        else:
            response["object"] = obj
        return response

    async def post(self, path, body):
        context = ssl.create_default_context(cafile=self.app.webhooks.folder.ca_file)
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session,
            session.post(f"https://127.0.0.1:{self.port}{path}", data=io.BytesIO(body.encode()), server_hostname="localhost") as response,
        ):
            text = await response.read()
            return response.status, json.loads(text) if text.startswith(b"{") else text

    async def get(self, path):
        async with aiohttp.ClientSession() as session, session.get(f"{self.ops.url}{path}") as response:
            return response.status, await response.text()


def resource_of(path):
    return {"pod": "pods", "node": "nodes", "quota": "elasticquotas"}.get(path.split("-")[1], "x")


class Bed:
    """An API server with managers."""

    def __init__(self, server, client, tmp_path, stack):
        self.server, self.client, self.tmp_path, self.stack = server, client, tmp_path, stack
        self.managers = []

    async def create(self, *objects):
        """Create objects; their status through the status sub-resource."""
        for obj in objects:
            kind, namespace = BY_KIND[obj["kind"]], obj["metadata"].get("namespace")
            await self.client.create(kind, {key: value for key, value in obj.items() if key != "status"}, namespace)
            if obj.get("status"):
                sub = "status" if "status" in kind.subresources else None
                body = {"status": obj["status"]}
                await self.client.patch(kind, obj["metadata"]["name"], body, namespace, subresource=sub, field_manager="test")

    async def get(self, kind, name, namespace=None):
        return await self.client.get(BY_KIND[kind], name, namespace)

    async def until(self, look, seconds=30.0):
        """Wait until `await look()` is true; fails with the last value."""
        deadline, value = time.monotonic() + patience.seconds(seconds), None
        while time.monotonic() < deadline:
            with contextlib.suppress(Exception):
                value = await look()
                if value:
                    return value
            await asyncio.sleep(0.03)
        pytest.fail(f"not in {seconds}s; last: {value!r}")

    async def start(self, *, gates="", ready=True, **options):
        """A manager with a client, informers and ports of its own."""
        switches = FeatureGates(MANAGER)
        switches.set_from_flag(gates)
        number = len(self.managers)
        webhook = WebhookOptions(port=0, address="127.0.0.1", cert_dir=str(self.tmp_path / f"certs{number}"), host=options.pop("host", ""))
        webhook = dataclasses.replace(webhook, **options.pop("webhook", {}))
        settings = Options(**{"enable_leader_election": False, "shutdown_delay": 0.0, "gates": switches, "webhook": webhook, **options})
        client = await self.stack.enter_async_context(self.server.client())
        informers, recorder = InformerFactory(client), Recorder("manager")
        ops = OpsServer(recorder=recorder, role="manager")
        app = App(settings, client=client, informers=informers, recorder=recorder, ops=ops)
        await ops.start()
        life = Life()
        task = asyncio.create_task(app.run(life))

        async def end():
            life.stop()
            await asyncio.wait({task}, timeout=3)
            await life.finish()
            await informers.stop()
            await ops.stop()
            task.result()

        self.stack.push_async_callback(end)
        manager = Manager(app, client, life, ops)
        self.managers.append(manager)
        if ready:

            async def well():
                return (await manager.get("/healthz"))[0] == 200

            await self.until(well)
        return manager


@pytest.fixture
def bed(tmp_path):
    """`bed(test)` runs `await test(bed)` on a fresh API server that knows the custom resources."""

    def run(test):
        async def main():
            async with contextlib.AsyncExitStack() as stack:
                server = await stack.enter_async_context(running_server(crds=True))
                client = await stack.enter_async_context(server.client())
                made = Bed(server, client, tmp_path, stack)
                await made.create(*BASE)
                await test(made)

        asyncio.run(main())

    return run


def now(minutes_ago=0.0):
    return datetime.fromtimestamp(time.time() - minutes_ago * 60, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def node(name, *, cpu="32", memory="128Gi", allocatable=None, labels=None, annotations=None, extra=None):
    capacity = {"cpu": cpu, "memory": memory, "pods": "110", **(extra or {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}, "annotations": annotations or {}},
        "spec": {},
        "status": {"capacity": capacity, "allocatable": {**capacity, **(allocatable or {})}},
    }


def pod(name, node_name="", *, namespace="default", requests=None, labels=None, priority=None, phase="Running", **spec):
    body = {"containers": [{"name": "main", "image": "x", "resources": {"requests": requests or {}}}], **spec}
    if node_name:
        body["nodeName"] = node_name
    if priority is not None:
        body["priorityClassName"] = priority
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
        "spec": body,
        "status": {"phase": phase},
    }


def metric(name, *, system=("0", "0"), usage=None, pods=(), hosts=(), minutes_ago=0.0, reclaimable=None):
    def amounts(pair):
        return {"resources": {"cpu": pair[0], "memory": pair[1]}}

    status = {
        "updateTime": now(minutes_ago),
        "nodeMetric": {"nodeUsage": amounts(usage or system), "systemUsage": amounts(system)},
        "podsMetric": [
            {"namespace": ns, "name": pod_name, "priority": priority, "podUsage": amounts(used)} for ns, pod_name, priority, used in pods
        ],
        "hostApplicationMetric": [{"name": host, "priority": priority, "usage": amounts(used)} for host, priority, used in hosts],
    }
    if reclaimable:
        status["prodReclaimableMetric"] = {"resource": amounts(reclaimable)}
    return {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", "metadata": {"name": name}, "spec": {}, "status": status}


def config(**keys):
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "slo-controller-config", "namespace": "koordinator-system"},
        "data": {key.replace("_", "-"): value if isinstance(value, str) else json.dumps(value) for key, value in keys.items()},
    }


@pytest.fixture
def make():
    """Makers of API objects."""

    class Make:
        pass

    for maker in (node, pod, metric, config, now):
        setattr(Make, maker.__name__, staticmethod(maker))
    return Make
