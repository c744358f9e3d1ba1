"""The end of a manager: it answers reviews while its endpoint leaves the Service, hands the lease over, and closes what it used."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys

import aiohttp
import pytest

from koord.api.kinds import LEASES
from koord.apiserver.testing import running_server
from tests.support import patience
from tests.support.processes import free_port

REVIEW = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "u",
        "operation": "CREATE",
        "namespace": "default",
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "object": {"metadata": {"name": "w"}, "spec": {"containers": [{"name": "main", "image": "x"}]}},
    },
}


class Process:
    """One `koord manager` and its ports."""

    def __init__(self, server, tmp_path, session, number):
        self.session, self.health, self.webhook = session, free_port(), free_port()
        flags = [f"--kubeconfig={server.kubeconfig_path}", "--metrics-addr=0", f"--health-probe-addr=127.0.0.1:{self.health}",
                 "--enable-pprof=false", "--shutdown-delay-duration=4s", "--leader-election-namespace=default"]  # fmt: skip
        environment = {"WEBHOOK_PORT": str(self.webhook), "WEBHOOK_CERT_DIR": str(tmp_path / f"certs{number}"), "POD_NAMESPACE": "default"}
        self.process = subprocess.Popen([sys.executable, "-m", "koord.cli", "manager", *flags], env={**os.environ, **environment})

    async def ready(self):
        with contextlib.suppress(aiohttp.ClientError):
            async with self.session.get(f"http://127.0.0.1:{self.health}/readyz") as response:
                return response.status == 200
        return False

    async def review(self):
        url = f"https://127.0.0.1:{self.webhook}/mutate-pod"
        async with self.session.post(url, data=json.dumps(REVIEW), ssl=False) as response:
            return response.status == 200 and (await response.json())["response"]["allowed"]


async def until(look, what):
    for _ in patience.tries(600):
        if value := await look():
            return value
        await asyncio.sleep(0.05)
    return pytest.fail(f"never: {what}")


@pytest.mark.feature("MGR-PROC-01")
@pytest.mark.feature("MGR-WH-04")
@pytest.mark.timeout(150)
def test_a_leader_that_ends_answers_on_and_the_next_one_leads_meanwhile(tmp_path):
    async def main():
        async with running_server(crds=True) as server, server.client() as client, aiohttp.ClientSession() as session:

            async def holder():
                with contextlib.suppress(Exception):
                    lease = await client.get(LEASES, "koordinator-manager", "default")
                    return (lease.get("spec") or {}).get("holderIdentity")

            first = Process(server, tmp_path, session, 1)
            replicas = [first]
            try:
                await until(first.ready, "the first is ready")
                led = await until(holder, "the first leads")
                replicas.append(second := Process(server, tmp_path, session, 2))
                await until(second.ready, "the second is ready")
                first.process.send_signal(signal.SIGTERM)
                # Whoever still has the old endpoint is answered: the first says that it is not ready, and goes on.
                unready = 0
                while unready < 10:
                    assert await first.review()
                    unready += not await first.ready()

                async def handed_over():
                    assert await first.review(), "the lease has not been handed over yet, and a review is refused"
                    return await holder() not in (None, led)

                await until(handed_over, "the second leads while the first still answers")
                assert await asyncio.to_thread(first.process.wait, 15) == 0
                assert await second.review()
            finally:
                for replica in replicas:
                    if replica.process.poll() is None:
                        replica.process.kill()
                    replica.process.wait()

    asyncio.run(main())
