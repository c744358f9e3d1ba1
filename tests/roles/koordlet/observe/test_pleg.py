"""Pods are noticed by their cgroup directories (KLO-SI-02)."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from roles.koordlet.host.cgroup import Cgroups
from roles.koordlet.host.root import HostRoot
from roles.koordlet.states.pleg import Pleg


@pytest.mark.feature("KLO-SI-02")
@pytest.mark.parametrize(("version", "driver"), [(1, "systemd"), (2, "cgroupfs")])
def test_pods_containers_and_levels_that_come_later(host, version, driver) -> None:
    async def main() -> None:
        tree = host(version=version, driver=driver)
        cgroups = Cgroups.detect(HostRoot.at(str(tree.root)))
        burstable = Path(cgroups.subsystem_dir("cpu", cgroups.qos_dir("Burstable")))
        shutil.rmtree(burstable)
        (Path(cgroups.subsystem_dir("cpu", cgroups.pod_dir("Guaranteed", "old")))).mkdir()
        calls: list[int] = []
        pleg = Pleg(cgroups, lambda: calls.append(1))
        loop = asyncio.get_running_loop()
        pleg.start(loop)

        async def after(action) -> bool:
            """Whether the action led to a call."""
            before = len(calls)
            action()
            await asyncio.sleep(0.03)
            return len(calls) > before

        assert calls == [], "pods that were there give no event"
        guaranteed = Path(cgroups.subsystem_dir("cpu", cgroups.pod_dir("Guaranteed", "old")))
        container = guaranteed / os.path.basename(cgroups.container_dir("x", "containerd://c1"))
        assert await after(container.mkdir), "a container of a pod that was there"
        assert not await after((guaranteed / "file").touch)
        assert not await after((guaranteed.parent / "kubepods-other.slice").mkdir) or driver == "cgroupfs"
        assert not await after(burstable.mkdir)
        assert await after((burstable / os.path.basename(cgroups.pod_dir("Burstable", "new"))).mkdir), "a level that came later"
        assert await after(lambda: shutil.rmtree(guaranteed))
        pleg.stop(loop)
        assert not await after((burstable / os.path.basename(cgroups.pod_dir("Burstable", "late"))).mkdir)

    asyncio.run(main())
