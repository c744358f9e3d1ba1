"""koord uninstall while a manager runs: its webhook configurations go and stay away, with the rights of the chart's Job alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from koord.apiserver.config import ServerConfig
from koord.apiserver.testing import running_server
from roles.tools.install import uninstall
from tests.e2e.test_rbac import NAMESPACE, Processes, account, get, install, until
from tests.support.processes import free_port

CONFIGURATIONS = tuple(
    f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/koordinator-{kind}-webhook-configuration"
    for kind in ("mutating", "validating")
)
RULES = [
    {
        "apiGroups": ["rbac.authorization.k8s.io"],
        "resources": ["clusterrolebindings"],
        "resourceNames": ["koord-manager"],
        "verbs": ["delete"],
    },
    *(
        {
            "apiGroups": ["admissionregistration.k8s.io"],
            "resources": [f"{kind}webhookconfigurations"],
            "resourceNames": [f"koordinator-{kind}-webhook-configuration"],
            "verbs": ["delete"],
        }
        for kind in ("mutating", "validating")
    ),
]


async def allow(admin: Any) -> None:
    """The account of the chart's Job; test_chart.py says that its rules are these."""
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    subject = {"kind": "ServiceAccount", "name": "koord-uninstall", "namespace": NAMESPACE}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "koord-uninstall"}
    for path, body in (
        (f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": "koord-uninstall"}}),
        (f"{rbac}/clusterroles", {"metadata": {"name": "koord-uninstall"}, "rules": RULES}),
        (f"{rbac}/clusterrolebindings", {"metadata": {"name": "koord-uninstall"}, "roleRef": reference, "subjects": [subject]}),
    ):
        status, raw = await admin.raw("POST", path, body)
        assert status == 201, raw


@pytest.mark.feature("BEY-SEC-01")
def test_webhooks_stay_away_although_the_manager_runs(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running_server(crds=True, config=ServerConfig(token="secret", authorization_mode="RBAC")) as server,
            server.client() as admin,
        ):
            await install(admin)
            await allow(admin)
            manager = await account(server, admin, "koord-manager", tmp_path)
            job = await account(server, admin, "koord-uninstall", tmp_path)
            processes = Processes(tmp_path)
            try:
                processes.start(
                    "koord-manager", "manager", f"--kubeconfig={manager}", "--metrics-addr=0", "--enable-pprof=false",
                    f"--health-probe-addr=127.0.0.1:{free_port()}", WEBHOOK_PORT=str(free_port()), POD_NAMESPACE=NAMESPACE,
                    WEBHOOK_CERT_DIR=str(tmp_path / "certs"), WEBHOOK_TIMEOUT_SECONDS="7",
                    WEBHOOK_FAILURE_POLICY="elasticquotas=Ignore,pods=Fail",
                )  # fmt: skip

                async def registered() -> bool:
                    return all([await get(admin, path) for path in CONFIGURATIONS])

                await until("both configurations are there", registered, processes)
                entries = [entry for path in CONFIGURATIONS for entry in (await get(admin, path))["webhooks"]]
                policies = {entry["name"]: entry["failurePolicy"] for entry in entries}
                assert policies["vpod.koordinator.sh"] == "Fail"
                assert policies["velasticquota.koordinator.sh"] == "Ignore"
                assert policies["vpodbinding.koordinator.sh"] == "Ignore", "what is not named stays as registered"
                assert {entry["timeoutSeconds"] for entry in entries} == {7}

                done = await asyncio.to_thread(CliRunner().invoke, uninstall, [f"--kubeconfig={job}", "--webhooks-only", "--yes"])
                assert done.exit_code == 0, done.output
                assert done.output.splitlines()[0] == "deleted ClusterRoleBinding koord-manager"
                assert [await get(admin, path) for path in CONFIGURATIONS] == [None, None]
                assert processes.running["koord-manager"].poll() is None, "a manager that ended proves nothing"
            finally:
                await asyncio.to_thread(processes.stop)

    asyncio.run(main())
