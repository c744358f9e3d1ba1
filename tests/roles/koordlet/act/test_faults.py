"""Rubbish from every side, restarts and kills: the agent goes on with what is good, and everything can be put back."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from koord.api.kinds import NODESLOS
from tests.support import patience
from tests.support.koordlet import BE_TIER, GI, OFF, Cluster, kubelet, run, until

KOORD = (sys.executable, "-m", "koord.cli", "koordlet")


class Agent:
    """koordlet as an operator runs it; killed and started again."""

    def __init__(self, c: Cluster, port: int, *gates: str) -> None:
        self.log = c.base / "log"
        self.process: asyncio.subprocess.Process | None = None
        off = [f"{gate}=false" for gate in OFF if gate not in gates]
        self.flags = [
            f"--host-root={c.base}", "--node-name=n1", f"--kubeconfig={c.kubeconfig}", "--addr=127.0.0.1:0", "--kubelet-insecure-tls",
            f"--kubelet-read-only-port={port}", "--kubelet-sync-interval=1s", "--tsdb-path=", f"--audit-log-dir={c.base}/audit",
            f"--prediction-checkpoint-filepath={c.base}/checkpoints", f"--runtime-hooks-addr={c.base}/var/run/koordlet/k.sock",
            "--feature-gates=" + ",".join([*off, *(f"{gate}=true" for gate in gates)]),
        ]  # fmt: skip

    async def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(*KOORD, *self.flags, stderr=log)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def end(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None
        if self.alive:
            self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), patience.seconds(20))

    async def restore(self) -> tuple[int, str]:
        done = await asyncio.create_subprocess_exec(
            *KOORD, *self.flags, "--restore", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        out, _ = await asyncio.wait_for(done.communicate(), patience.seconds(30))
        return done.returncode or 0, out.decode()


@contextlib.asynccontextmanager
async def counting(c: Cluster) -> AsyncIterator[None]:
    async def count() -> None:
        while True:
            c.counters()
            await asyncio.sleep(0.1)

    mover = asyncio.create_task(count())
    try:
        yield
    finally:
        mover.cancel()


@pytest.mark.feature("BEY-JRN-01")
@pytest.mark.feature("KLO-LIFE-01")
@pytest.mark.feature("KA-EXE-01")
def test_rubbish_restarts_and_kills(tmp_path: Path) -> None:
    async def story(c: Cluster) -> None:
        spec = {
            "resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota"},
            "resourceQOSStrategy": {"lsClass": {"memoryQOS": {"enable": True, "minLimitPercent": 50}}},
        }
        await c.node(spec)
        wanted = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "2Gi"}}
        ls = await c.pod("ls", qos="LS", kube_qos="Burstable", quota=100_000, resources=wanted)
        await c.pod("be", qos="BE", kube_qos="BestEffort")
        c.use.update({"node": 6.4, "ls": 5.0, "be": 1.0})
        before = c.values()

        def quota() -> int:
            return int(c.read("cpu", BE_TIER, "cpu.cfs_quota_us"))

        def about(cores: float) -> bool:
            return abs(quota() - cores * 100_000) < 0.8 * 100_000

        async with kubelet(c) as port, counting(c):
            agent = Agent(c, port, "BECPUSuppress", "CgroupReconcile")
            await agent.start()
            await until(lambda: about(5.0), "the quota of the tier", 30)
            await until(lambda: c.read("memory", c.dirs(ls)[1], "memory.min") == str(GI // 2), "what memory QoS protects", 30)

            # rubbish in kernel files, from the kubelet, in the NodeSLO: what is good goes on
            for text in ("\0\xff", "", "max max max", "9" * 40):
                c.cgroup("memory", c.dirs(ls)[0], "memory.stat", text)
                c.cgroup("memory", c.dirs(ls)[1], "memory.min", text)
                c.file("proc/meminfo", text)
                await asyncio.sleep(0.5)
            for answer in ((500, b"oops"), (200, b"{"), (200, b"[]"), (200, b'{"items": [{"metadata": 3}]}')):
                c.kubelet_says = answer
                await asyncio.sleep(1.2)
            with contextlib.suppress(Exception):
                await c.client.patch(NODESLOS, "n1", {"spec": {"resourceUsedThresholdWithBE": {"cpuSuppressThresholdPercent": "most"}}})
            c.use.update({"node": 8.4, "ls": 7.0})
            await until(lambda: about(3.0), "the quota that follows the load", 30)
            assert agent.alive, agent.log.read_text()[-2000:]
            c.kubelet_says = None
            c.memory(10)
            c.directory(c.dirs(ls)[0], 100_000)

            # killed and started again, twice: the first values stay on record
            starts = 1
            for cores, node in ((5.0, 6.4), (4.0, 7.4)):
                assert await agent.end() == -signal.SIGKILL
                assert agent.process is not None
                c.use.update({"node": node, "ls": node - 1.4})
                await agent.start()
                starts += 1
                await until(lambda starts=starts: agent.log.read_text().count("all states are synced") == starts, "a whole restart", 30)
                await until(lambda cores=cores: about(cores), "the quota after the restart", 30)
            status, said = await agent.restore()
            assert (status, "koordlet" in said) == (1, True), "a running koordlet holds the lock"
            await agent.end()
            c.cgroup("memory", c.dirs(ls)[1], "memory.min", str(GI // 2))
            status, said = await agent.restore()
            assert status == 0, said
            assert c.values() == before
            assert (await agent.restore())[0] == 0, "nothing left to do"

        told = agent.log.read_text()
        assert "Traceback" not in told
        assert "meminfo" in told
        assert len([line for line in told.splitlines() if "meminfo" in line]) < 20, "told once, not each second"

    run(tmp_path, story)


@pytest.mark.feature("KLO-LIFE-01")
@pytest.mark.root
def test_files_that_cannot_be_written_are_told_once_and_the_others_go_on(tmp_path: Path) -> None:
    async def story(c: Cluster) -> None:
        await c.node({"resourceQOSStrategy": {"lsClass": {"memoryQOS": {"enable": True, "minLimitPercent": 50}}}})
        wanted = {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}}
        pods = [await c.pod(name, qos="LS", kube_qos="Burstable", resources=wanted) for name in ("one", "two")]
        # a directory where a file should be, a dangling link, and one out of the tree
        broken = c.base / "sys/fs/cgroup/memory" / c.dirs(pods[0])[1]
        for name in ("memory.min", "memory.low", "memory.high"):
            (broken / name).unlink()
        (broken / "memory.min").mkdir()
        (broken / "memory.low").symlink_to("/nowhere/at/all")
        outside = c.base / "outside"
        outside.write_text("untouched")
        (broken / "memory.high").symlink_to(outside)
        async with kubelet(c) as port, counting(c):
            agent = Agent(c, port, "CgroupReconcile")
            await agent.start()
            await until(lambda: c.read("memory", c.dirs(pods[1])[1], "memory.min") == str(GI // 2), "the other pod", 30)
            await asyncio.sleep(2)
            assert agent.alive
            assert outside.read_text() == "untouched", "no link leads out of the cgroup tree"
            assert await agent.end(signal.SIGTERM) == 0
        told = agent.log.read_text()
        assert "Traceback" not in told
        assert 1 <= len([line for line in told.splitlines() if f"{c.dirs(pods[0])[1]}/memory.min" in line]) <= 3

    run(tmp_path, story)
