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
from tests.support import patience


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


@pytest.mark.feature("SCH-RSZ-05")
def test_the_kubelet_is_asked_when_it_has_allocated_something_else(host) -> None:
    async def main() -> None:
        tree = host(version=1, driver="systemd")
        root = HostRoot.at(str(tree.root))
        kubelet = Path(root.kubelet)
        kubelet.mkdir(parents=True, exist_ok=True)
        calls: list[int] = []
        pleg = Pleg(Cgroups.detect(root), lambda: calls.append(1))
        loop = asyncio.get_running_loop()
        pleg.start(loop)
        for name, wanted in (("actuated_pods_state", 0), ("allocated_pods_state", 1), ("allocated_pods_state", 2)):
            (kubelet / f".{name}-123").write_text("{}")
            (kubelet / f".{name}-123").rename(kubelet / name)  # as the kubelet writes its checkpoints
            await asyncio.sleep(0.03)
            assert len(calls) == wanted
        pleg.stop(loop)

    asyncio.run(main())


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0 or not os.access("/sys/fs/cgroup/cpu", os.W_OK), reason="needs root and cgroup v1")
def test_groups_that_are_gone_are_watched_no_more(host) -> None:
    """On the kernel's own groups, which do not always tell the watch of a group that it is gone."""

    async def main() -> None:
        tree = host(version=1, driver="systemd")
        cgroups = Cgroups.detect(HostRoot.at(str(tree.root)))
        level = Path(cgroups.subsystem_dir("cpu", cgroups.qos_dir("Burstable")))
        shutil.rmtree(level)
        real = Path(f"/sys/fs/cgroup/cpu/koord-test-pleg-{os.getpid()}")
        real.mkdir()
        pod = level / os.path.basename(cgroups.pod_dir("Burstable", "a"))
        loop, calls = asyncio.get_running_loop(), asyncio.Event()
        pleg = Pleg(cgroups, calls.set)
        try:
            level.symlink_to(real)
            pleg.start(loop)
            assert pleg._inotify is not None
            before = len(pleg._inotify.paths)
            for appears in (True, False) * 10:
                calls.clear()
                if appears:
                    pod.mkdir()
                    (pod / "cri-containerd-c.scope").mkdir()
                else:
                    (pod / "cri-containerd-c.scope").rmdir()
                    pod.rmdir()
                await asyncio.wait_for(calls.wait(), patience.seconds(10))
            await asyncio.sleep(0)
            assert len(pleg._inotify.paths) == before
        finally:
            pleg.stop(loop)
            level.unlink()
            for left in (real / pod.name / "cri-containerd-c.scope", real / pod.name, real):
                if left.is_dir():
                    left.rmdir()

    asyncio.run(main())
