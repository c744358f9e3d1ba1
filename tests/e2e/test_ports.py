"""Every role as a process on an address that others reach, and the manifests: nothing but health without credentials (BEY-SEC-01)."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.apiserver.testing import running_server
from koord.process import certificates
from roles.tools import manifests
from tests.support import patience
from tests.support.processes import free_port, process, roles, until_healthy

pytestmark = pytest.mark.feature("BEY-SEC-01")
ASKED = ("/metrics", "/configz", "/debug/decisions", "/debug/tasks", "/debug/cache", "/events", "/version", "/elasticQuota")


def ask(url: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(url, method=method, headers=headers, data=b"10" if method == "PUT" else None)
    try:
        with urllib.request.urlopen(request, timeout=patience.seconds(10), context=ssl._create_unverified_context()) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("role", ["scheduler", "manager", "descheduler", "koordlet"])
def test_a_role_tells_strangers_its_health_and_nothing_else(role: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with running_server(crds=True) as server, server.client() as admin:
            await admin.raw("POST", "/api/v1/namespaces", {"metadata": {"name": manifests.NAMESPACE}})
            _, arguments, health, environment = next(row for row in roles(tmp_path, server.kubeconfig_path) if row[0] == role)
            for file in tmp_path.glob("*.yaml"):
                file.write_text(file.read_text().replace("127.0.0.1:", "0.0.0.0:") if role in file.name else file.read_text())
            arguments = [argument.replace("127.0.0.1", "0.0.0.0") for argument in arguments]
            with process(*arguments, f"--kubeconfig={server.kubeconfig_path}", **environment) as child:
                await asyncio.to_thread(until_healthy, health, child)
                base = health.removesuffix("/healthz")
                await asyncio.to_thread(look, base)
                if role == "manager":
                    hooks = f"https://127.0.0.1:{environment['WEBHOOK_PORT']}"
                    assert (await asyncio.to_thread(ask, f"{hooks}/elasticQuota"))[0] == 403
                    assert (await asyncio.to_thread(ask, f"{hooks}/elasticQuota", Authorization="Bearer any"))[0] == 200

    def look(base: str) -> None:
        secure = base.replace("http:", "https:")
        for path in ASKED:
            for url in (base, secure):
                assert ask(url + path)[0] == 403, (url, path)
        assert ask(f"{secure}/debug/flags/v", "PUT")[0] == 403
        assert ask(f"{secure}/metrics", Authorization="Bearer any")[0] == 200
        assert ask(f"{secure}/debug/tasks", Authorization="Bearer any")[0] == 404, "profiling is off unless it is asked for"
        assert ask(f"{base}/metrics", Authorization="Bearer any")[0] == 403

    asyncio.run(main())


def test_the_runtime_proxy_has_nobody_to_ask_and_refuses(tmp_path: Path) -> None:
    port = free_port()
    arguments = [
        "runtime-proxy",
        f"--koord-runtimeproxy-endpoint={tmp_path}/proxy.sock",
        f"--remote-runtime-service-endpoint={tmp_path}/engine.sock",
        f"--runtime-hooks-config-path={tmp_path}",
        f"--addr=0.0.0.0:{port}",
    ]

    def until_up(path: str, wanted: int, *more: str) -> None:
        with process(*arguments, *more) as child:
            for _ in patience.tries(400):
                try:
                    ask(f"http://127.0.0.1:{port}/livez")
                    break
                except OSError:
                    assert child.poll() is None
                    asyncio.run(asyncio.sleep(0.05))
            assert ask(f"http://127.0.0.1:{port}{path}")[0] == wanted

    until_up("/metrics", 403)
    until_up("/metrics", 200, "--authorization-always-allow-paths=/metrics")


@pytest.mark.feature("SCH-FW-01")
def test_no_dump_shows_a_key_and_the_written_file_is_its_owners(tmp_path: Path) -> None:
    made = certificates.ensure(tmp_path / "certs", "127.0.0.1")
    key, certificate = (base64.b64encode(file.read_bytes()).decode() for file in (made.key_file, made.cert_file))
    extender = {
        "urlPrefix": "https://user:hunter2@127.0.0.1:1/", "filterVerb": "filter", "weight": 1, "enableHTTPS": True, "ignorable": True,
        "tlsConfig": {"insecure": True, "keyData": key, "certData": certificate},
    }  # fmt: skip

    async def main() -> None:
        async with running_server(crds=True) as server:
            _, arguments, health, _ = next(row for row in roles(tmp_path, server.kubeconfig_path) if row[0] == "scheduler")
            file = tmp_path / "scheduler.yaml"
            file.write_text(json.dumps(yaml.safe_load(file.read_text()) | {"extenders": [extender]}))
            with process(*arguments, f"--kubeconfig={server.kubeconfig_path}") as child:
                await asyncio.to_thread(until_healthy, health, child)
                status, text = await asyncio.to_thread(ask, health.replace("healthz", "configz"))
            assert status == 200
            shown = json.loads(text)["kubescheduler.config.k8s.io"]["extenders"][0]
            assert (shown["tlsConfig"]["keyData"], shown["tlsConfig"]["insecure"]) == ("<hidden>", True)
            assert shown["urlPrefix"] == "https://<hidden>@127.0.0.1:1/"
            assert key[:40] not in text
            written = tmp_path / "written.yaml"
            written.touch(0o644)
            with process(*arguments, f"--write-config-to={written}") as child:
                assert await asyncio.to_thread(child.wait, 30) == 0
            assert yaml.safe_load(written.read_text())["extenders"][0]["tlsConfig"]["keyData"] == key, "it is read back"
            assert written.stat().st_mode & 0o777 == 0o600

    asyncio.run(main())


def installed(*overlays: str) -> list[dict[str, Any]]:
    return manifests.rendered(crds=False, overlays=overlays)


@pytest.mark.parametrize("overlay", ["", *(name for name in manifests.OVERLAYS if name != "open-ports")])
def test_manifests_open_no_port_to_strangers(overlay: str) -> None:
    objects = installed(*filter(None, [overlay]))
    fenced = {d["spec"]["podSelector"]["matchLabels"]["koord-app"]: d["spec"] for d in objects if d["kind"] == "NetworkPolicy"}
    for document in objects:
        if document["kind"] not in ("Deployment", "DaemonSet"):
            continue
        [container] = document["spec"]["template"]["spec"]["containers"]
        assert not [a for a in container["args"] if "always-allow" in a or "pprof=true" in a or a == "--secure-port=0"]
        names = {port["name"] for port in container["ports"]}
        policy = fenced[document["metadata"]["name"]]
        assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == names
        probes = [container[name]["httpGet"] for name in ("livenessProbe", "readinessProbe") if name in container]
        assert all(probe["port"] in names and (probe.get("scheme") == "HTTPS") == (probe["port"] == "https") for probe in probes)
    config = next(d["data"]["koord-descheduler-config"] for d in objects if d["metadata"]["name"] == "koord-descheduler-config")
    assert yaml.safe_load(config)["healthzBindAddress"].startswith("127.0.0.1:")


def test_who_wants_open_ports_says_so() -> None:
    for document in installed("open-ports"):
        if document["kind"] in ("Deployment", "DaemonSet"):
            [container] = document["spec"]["template"]["spec"]["containers"]
            assert container["args"].count("--authorization-always-allow-paths=/*") == 1


def test_nobody_holds_nodes_proxy_unless_it_is_asked_for() -> None:
    def holders(*overlays: str) -> list[str]:
        rules = [(d["metadata"]["name"], rule) for d in installed(*overlays) for rule in d.get("rules") or ()]
        return [name for name, rule in rules if {"nodes/proxy", "*", "nodes/*", "*/proxy"} & set(rule.get("resources") or ())]

    for overlay in manifests.OVERLAYS:
        assert holders(overlay) == []
    assert holders("older-kubelets") == ["koordlet-older-kubelets"]
