"""`running_server`, as every other test uses it."""

from __future__ import annotations

import asyncio

import pytest

from koord.api import kinds
from koord.apiserver.testing import running_server
from koord.kube.errors import AlreadyExists, NotFound


@pytest.mark.feature("API-CRD-02")
def test_koords_own_client_on_a_running_server() -> None:
    async def main() -> None:
        async with running_server(crds=True) as server, server.client() as client:
            pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}
            await client.create(kinds.PODS, pod, "default")
            with pytest.raises(AlreadyExists):
                await client.create(kinds.PODS, pod, "default")
            await client.bind("default", "p", "n1")
            assert (await client.get(kinds.PODS, "p", "default"))["spec"]["nodeName"] == "n1"
            with pytest.raises(NotFound):
                await client.get(kinds.PODS, "none", "default")
            profile = {"metadata": {"name": "x"}, "spec": {"qosClass": "NOPE"}}
            head = {"apiVersion": kinds.CLUSTERCOLOCATIONPROFILES.api_version, "kind": kinds.CLUSTERCOLOCATIONPROFILES.kind}
            status, body = await client.raw("POST", kinds.CLUSTERCOLOCATIONPROFILES.path(), {**head, **profile})
            assert status == 422
            assert b"spec.qosClass" in body

    asyncio.run(main())
