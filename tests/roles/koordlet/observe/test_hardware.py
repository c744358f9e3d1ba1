"""Collectors that need special hardware or kernels: resctrl monitoring and cold memory, on a machine of files (KLO-COL-09, KLO-COL-12)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from koord.api.kinds import PERSISTENTVOLUMECLAIMS
from koord.apiserver.testing import running_server
from koord.kube.informers import InformerFactory
from roles.koordlet.host.coldpages import cold_bytes
from roles.koordlet.host.errors import ParseError
from roles.koordlet.states.volumes import ClaimVolumes
from roles.koordlet.store import kinds

MIB, GIB = 1 << 20, 1 << 30
FLAGS = "fpu cat_l3 mba cqm_mbm_total cqm_mbm_local cqm_llc cqm_occup_llc"


def monitored(tree: Any, vendor: str = "GenuineIntel", flags: str = FLAGS) -> None:
    """A CPU that can be monitored, and a mounted resctrl with three groups on two caches."""
    tree.write("proc/cpuinfo", f"processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: X\nflags\t\t: {flags}\n\n")
    tree.write("sys/fs/resctrl/schemata", "    L3:0=fff;1=fff\n    MB:0=100;1=100\n")
    for number, group in enumerate(("LSR", "LS", "BE"), 1):
        for cache in ("00", "01"):
            base = f"sys/fs/resctrl/{group}/mon_data/mon_L3_{cache}"
            tree.write(f"{base}/llc_occupancy", f"{number * 1000 + int(cache)}\n")
            tree.write(f"{base}/mbm_local_bytes", f"{number * 10_000}\n")
            tree.write(f"{base}/mbm_total_bytes", f"{number * 20_000}\n")


@pytest.mark.feature("KLO-COL-12")
class TestResctrl:
    def start(self, agent: Any, tree: Any) -> Any:
        return agent(tree=tree, gates="ResctrlCollector=true", flags={"enable_resctrl_collector": True})

    def test_occupancy_and_traffic_by_group_and_cache(self, agent, host) -> None:
        tree = host()
        monitored(tree)
        a = self.start(agent, tree)
        a.tick()
        assert a.view.last(kinds.RESCTRL_LLC, qos="LS", cache_id="01") == 2001
        assert a.view.last(kinds.RESCTRL_MB, qos="BE", cache_id="00", resctrl_mb_type="mbm_total_bytes") == 60_000
        assert a.metrics.resctrl_llc.get("00", "LSR") == 1000
        assert a.metrics.resctrl_mb.get("01", "BE", "mbm_local_bytes") == 30_000

    def test_what_has_no_value_or_is_gone_is_left_out(self, agent, host) -> None:
        tree = host()
        monitored(tree)
        a = self.start(agent, tree)
        a.tick()
        tree.write("sys/fs/resctrl/LS/mon_data/mon_L3_00/mbm_total_bytes", "Unavailable\n")
        tree.write("sys/fs/resctrl/BE/mon_data/mon_L3_01/llc_occupancy", "many\n")
        (tree.root / "sys/fs/resctrl/LSR").rename(tree.root / "sys/fs/gone")
        a.tick(10)
        assert a.metrics.resctrl_mb.get("00", "LS", "mbm_total_bytes") is None
        assert a.metrics.resctrl_mb.get("01", "LS", "mbm_total_bytes") == 40_000
        assert a.metrics.resctrl_llc.get("00", "LSR") is None, "a group that is gone leaves no gauge"
        assert a.metrics.resctrl_mb.get("00", "BE", "mbm_total_bytes") is None, "without occupancy no traffic"

    def test_an_odd_schemata_skips_the_round(self, agent, host) -> None:
        tree = host()
        monitored(tree)
        tree.write("sys/fs/resctrl/schemata", "L3:0\n")
        a = self.start(agent, tree)
        a.tick()
        assert a.store.keys(kinds.RESCTRL_LLC) == []
        tree.write("sys/fs/resctrl/schemata", "MB:0=100\n")
        a.tick(10)
        assert len(a.store.keys(kinds.RESCTRL_LLC)) == 6

    @pytest.mark.parametrize(
        ("vendor", "flags", "said"),
        [("GenuineIntel", "cat_l3 mba", "the CPU lacks cqm_llc"), ("HygonGenuine", FLAGS, "not one of AuthenticAMD, GenuineIntel")],
    )
    def test_a_cpu_that_cannot_is_named(self, agent, host, caplog, vendor, flags, said) -> None:
        tree = host()
        monitored(tree, vendor, flags)
        a = self.start(agent, tree)
        a.tick()
        assert a.store.keys(kinds.RESCTRL_LLC) == []
        assert said in caplog.text


def idle_pages(cold: int, *, rows: tuple[str, ...] = ("cfei", "dfei", "cfui", "dfui")) -> str:
    """An idle_page_stats whose inactive file rows share ``cold`` bytes; other rows and younger pages hold as much again."""
    names = ("csei", "dsei", "cfei", "dfei", "csui", "dsui", "cfui", "dfui", "csea", "dsea", "cfea", "dfea", "csua", "dsua", "cfua", "dfua")
    names = (*names, "slab")
    share = cold // (2 * len(rows)) if rows else 0
    head = ["# version: 1.0", "# page_scans: 9", "# slab_scans: 0", "# scan_period_in_seconds: 5", "# use_hierarchy: 1"]
    head += ["# buckets: 1,2,5,15,30,60,120,240", *["#"] * 7, "# idle ages"]
    lines = [f"  {n} " + " ".join(["7777"] * 5 + [str(share if n in rows else 5555), "0", str(share if n in rows else 1)]) for n in names]
    return "\n".join([*head, *lines]) + "\n"


def kidled(tree: Any) -> None:
    for name in ("scan_period_in_seconds", "use_hierarchy"):
        tree.write(f"sys/kernel/mm/kidled/{name}", "0\n")


@pytest.mark.feature("KLO-COL-09")
class TestColdMemory:
    def test_rows_and_columns_that_count(self) -> None:
        text = idle_pages(8 * MIB)
        assert cold_bytes("f", text.encode()) == 8 * MIB
        for broken in (
            text + "x 1\n",
            text.replace("# page_scans", "# scans"),
            text.replace("dfui", "zzzz"),
            text.replace(f" {MIB}", " x"),
        ):
            with pytest.raises(ParseError):
                cold_bytes("f", broken.encode())

    def test_hot_page_use_is_reported(self, agent, world, kubelet, make_node, make_pod, host) -> None:
        async def main() -> None:
            tree = host()
            kidled(tree)
            directory = tree.pod_dir("Burstable", "u-1")
            for path, anon, cache, cold in (("", 0, 0, GIB), (directory, 300 * MIB, 100 * MIB, 64 * MIB)):
                tree.cgroup(path, anon=anon, cache=cache)
                tree.write(tree.file("memory", path, "memory.idle_page_stats"), idle_pages(cold))
            policy = {"metricCollectPolicy": {"nodeMemoryCollectPolicy": "usageWithHotPageCache"}}
            async with world(agent, kubelet, make_node(), metric=policy, tree=tree, gates="ColdPageCollector=true") as w:
                w.agent.list(make_pod("web", "u-1"))
                for _ in range(12):
                    w.agent.tick()
                    tree.burn({0: 1.0}, 1.0)
                status = await w.metric()
                assert tree.read("sys/kernel/mm/kidled/scan_period_in_seconds").strip() == "5"
                assert tree.read("sys/kernel/mm/kidled/use_hierarchy").strip() == "1"
                assert w.agent.view.last(kinds.NODE_MEMORY_COLD_PAGE, within=6) == GIB
                assert status["nodeMetric"]["nodeUsage"]["resources"]["memory"] == "3Gi", "MemTotal - MemFree - cold"
                (pod,) = status["podsMetric"]
                assert pod["podUsage"]["resources"]["memory"] == "336Mi", "usage with page cache - cold"

        asyncio.run(main())

    @pytest.mark.parametrize("lacking", ["kidled", "v1", "permission"])
    def test_without_it_plain_use_is_reported(self, agent, host, caplog, lacking) -> None:
        tree = host(version=2 if lacking == "v1" else 1)
        if lacking != "kidled":
            kidled(tree)
        if lacking == "permission":
            (tree.root / "sys/kernel/mm/kidled/use_hierarchy").unlink()
            (tree.root / "sys/kernel/mm/kidled/use_hierarchy").mkdir()
        a = agent(tree=tree, gates="ColdPageCollector=true")
        a.tick()
        assert not a.context.shared.cold_memory
        assert a.store.keys(kinds.NODE_MEMORY_COLD_PAGE) == []
        said = {"kidled": "has no kidled", "v1": "cgroup v2", "permission": "cold memory stays off"}[lacking]
        assert said in caplog.text


@pytest.mark.feature("KLO-SI-06")
def test_volumes_of_claims() -> None:
    async def main() -> None:
        async with running_server() as server, server.client() as client:
            kind = PERSISTENTVOLUMECLAIMS
            bound = {"accessModes": ["ReadWriteOnce"], "volumeName": "pv-7", "resources": {"requests": {"storage": "1Gi"}}}
            for name, spec in (("data", bound), ("free", {**bound, "volumeName": ""})):
                body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name, "namespace": "default"}, "spec": spec}
                await client.create(kind, body)
            informers = InformerFactory(client)
            volumes = ClaimVolumes(informers)
            assert not volumes.synced
            informers.start()
            try:
                await informers.wait_synced()
                assert volumes.synced
                assert volumes.volume_name("default", "data") == "pv-7"
                assert volumes.volume_name("default", "free") == volumes.volume_name("other", "data") == ""
            finally:
                await informers.stop()

    asyncio.run(main())
