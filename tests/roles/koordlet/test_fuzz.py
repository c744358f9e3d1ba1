"""Whatever a kernel file, a kubelet, a device file or an annotation holds: a value, or one error that says where. Never anything else."""

from __future__ import annotations

import inspect
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api import annotations as annotation_parsers
from koord.api import names
from koord.api.annotations import AnnotationError
from koord.api.objects import Pod
from koord.api.objects_meta import decoder
from roles.koordlet.actuation.disklines import by_disk, says
from roles.koordlet.actuation.journal_lines import decode
from roles.koordlet.actuation.values import same
from roles.koordlet.extensions import Extensions
from roles.koordlet.hooks.requests import contexts
from roles.koordlet.host import coldpages, net, parse, proc, psi
from roles.koordlet.host.cgroup import Cgroups
from roles.koordlet.host.cgroup_files import TABLE
from roles.koordlet.host.errors import HostError
from roles.koordlet.host.root import HostRoot
from roles.koordlet.host.topology import CPU, make_topology, parse_cpu_list
from roles.koordlet.qos.burst import effective as burst_of
from roles.koordlet.qos.memoryqos_config import effective as memory_of
from roles.koordlet.qos.memoryqos_config import pod_limit, pod_request
from roles.koordlet.qos.resctrl_units import cache_ids, ways
from roles.koordlet.qos.tuning_memory import kills, refaults
from roles.koordlet.report.cpupools import CPUStateError, kubelet_pinned, kubelet_policy, node_reservation, system_qos
from roles.koordlet.report.policy import CollectPolicy, PolicyError, effective_policy
from roles.koordlet.sensing.xpu import read_devices
from roles.koordlet.states.driver import layout_of, listening_inodes
from roles.koordlet.states.pods import PodCache, PodListError, pod_state
from roles.koordlet.states.slo import SLO, effective_slo

FILE = "/sys/fs/cgroup/some/file"
Parser = Callable[[bytes], Any]

#: What the files look like; examples are made of their pieces.
SAMPLES = [
    b"1048576\n", b"max\n", b"-1\n", b"200000 100000\n", b"max 100000\n",
    b"nr_periods 10\nnr_throttled 3\nthrottled_time 99\nthrottled_usec 7\nusage_usec 1234\n",
    b"total_inactive_anon 1\ntotal_active_anon 2\ntotal_unevictable 0\ntotal_inactive_file 5\n"
    b"total_active_file 6\ntotal_cache 1\ntotal_rss 2\n",
    b"total=3 N0=1 N1=2\nhierarchical_total=9 N0=4 N1=5\nanon N0=4096\nfile N0=8192\n",
    b"some avg10=0.00 avg60=1.50 avg300=2.00 total=77\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
    b"cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5\n", b"MemTotal: 8 kB\nMemFree: 4 kB\nMemAvailable: 5 kB\n",
    b"processor : 0\nvendor_id : GenuineIntel\nmodel name : X\nflags : cat_l3 mba\n", b"12 (a (b) c) S 1 12 12 0\n",
    b"    L3:0=fff;1=fff\n    MB:0=100;1=100\n", b"0-3,8\n", b"1\n2\n3\n", b"8:0 1000\n8:16 rbps=1 wbps=max\n",
    b"# version: 1.0\n# buckets: 1,2,5\ncfei 1 2 3\n",
    b"8:0 Read 12\n8:0 Write 5\nTotal 17\n8:0 rbytes=1 wbytes=2 rios=1 wios=1\n",
    b"workingset_refault_file 7\noom_kill 3\ntotal_pgmajfault 9\n",
    b" 254 0 vda 5 0 9 1 2 0 3 4 0 0 0\n 254 1 vda1 5 0 9 1 2 0 3 4 0 0 0\n", b"kind: KubeletConfiguration\ncgroupDriver: systemd\n",
    b"  sl  local_address\n 0: 0100007F:280A 00000000:0000 0A 0:0 0:0 0 0 0 4711 1\n", b'["/sys/x","1","write","cpu.shares",7]',
    b"Inter-| Receive | Transmit\n face |bytes packets errs drop\n  eth0: 10 2 0 3 0 0 0 0 20 4 0 5 0 0 0 0\n",
    b"Tcp: MaxConn OutSegs RetransSegs\nTcp: -1 70 3\nUdp: InDatagrams RcvbufErrors\nUdp: 4 1\n",
    b"7 (a b) S 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 4711 0\n",
]  # fmt: skip

PARSERS: dict[str, Parser] = {
    "signed": lambda d: parse.signed(FILE, d),
    "unsigned": lambda d: parse.unsigned(FILE, d),
    "CPU usage v1": lambda d: parse.cpu_usage_ns(FILE, d, v2=False),
    "CPU usage v2": lambda d: parse.cpu_usage_ns(FILE, d, v2=True),
    "throttling v1": lambda d: (parse.throttling(FILE, d, v2=False), parse.throttled_periods(FILE, d, v2=False)),
    "throttling v2": lambda d: (parse.throttling(FILE, d, v2=True), parse.throttled_periods(FILE, d, v2=True)),
    "cpu.max": lambda d: (parse.cpu_max(FILE, d), parse.cpu_quota(FILE, d, v2=True), parse.cpu_period(FILE, d, v2=True)),
    "quota": lambda d: parse.cpu_quota(FILE, d, v2=False),
    "shares": lambda d: parse.cpu_shares(FILE, d, v2=False),
    "weight": lambda d: parse.cpu_shares(FILE, d, v2=True),
    "memory limit": lambda d: parse.memory_limit(FILE, d),
    "memory.stat v1": lambda d: (parse.memory_stat(FILE, d, v2=False), parse.memory_usage(FILE, d, v2=False)),
    "memory.stat v2": lambda d: (parse.memory_stat(FILE, d, v2=True), parse.memory_usage(FILE, d, v2=True)),
    "numa_stat v1": lambda d: parse.numa_memory(FILE, d, v2=False, page_size=4096),
    "numa_stat v2": lambda d: parse.numa_memory(FILE, d, v2=True, page_size=4096),
    "ids": lambda d: parse.ids(FILE, d),
    "PSI": lambda d: psi.parse_psi(FILE, d),
    "cold pages": lambda d: coldpages.cold_bytes(FILE, d),
    "/proc/stat": lambda d: proc.cpu_ticks(FILE, d),
    "/proc/stat per CPU": lambda d: proc.per_cpu_ticks(FILE, d),
    "meminfo": lambda d: proc.meminfo(FILE, d),
    "cpuinfo": proc.cpuinfo,
    "cbm mask": lambda d: ways(d.decode("utf-8", "replace")),
    "schemata": lambda d: cache_ids(d.decode("utf-8", "replace"), "L3"),
    "disk lines": lambda d: by_disk(d.decode("utf-8", "replace")),
    "disk bytes": lambda d: (parse.disk_bytes(d, v2=False), parse.disk_bytes(d, v2=True)),
    "diskstats": parse.whole_disks,
    "interfaces": lambda d: net.interfaces(FILE, d),
    "protocols": lambda d: (net.protocol(FILE, d, "Tcp"), net.protocol(FILE, d, "Udp")),
    "start of a process": lambda d: proc.start_ticks(FILE, d),
    "refaults and kills": lambda d: (refaults(parse.key_values(d), v2=True), refaults(parse.key_values(d), v2=False), kills(d)),
    "CPU list": lambda d: parse_cpu_list(FILE, d.decode("utf-8", "replace")),
    "sockets": lambda d: listening_inodes(d.decode("utf-8", "replace"), 10250),
    "kubelet's file": lambda d: layout_of(d.decode("utf-8", "replace")),
    "journal": lambda d: decode(b"%08x %s" % (zlib.crc32(d), d)),
}


#: More examples than elsewhere in the suite, and a hundred thousand in `make fuzz`: parsers see what nobody foresaw.
thorough = settings(max_examples=100_000 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 80)


def texts() -> st.SearchStrategy[bytes]:
    """Real content, with pieces taken out, doubled, swapped, or replaced by rubbish."""
    rubbish = st.one_of(
        st.binary(max_size=12), st.sampled_from([b"9" * 30, b"-", b"max", b"0x1f", b"1e9", b"\xff\xfe", b"", b"=", b":", b"\0"])
    )

    def mangle(sample: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
        for at, length, new in edits:
            at %= len(sample) + 1
            sample = sample[:at] + new + sample[at + length :]
        return sample

    edits = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 20), rubbish), max_size=4)
    return st.one_of(st.builds(mangle, st.sampled_from(SAMPLES), edits), st.binary(max_size=300))


@pytest.mark.parametrize("name", PARSERS)
@thorough
@given(data=texts())
def test_fuzz_kernel_files(name: str, data: bytes) -> None:
    try:
        PARSERS[name](data)
    except (HostError, ValueError) as error:
        problem = str(error)
    else:
        problem = "none"
    assert problem


@thorough
@given(st.sampled_from(sorted(TABLE)), texts(), texts())
def test_fuzz_what_stands_in_a_file_is_compared(resource: str, have: bytes, want: bytes) -> None:
    one, other = have.decode("utf-8", "replace"), want.decode("utf-8", "replace")
    assert same(resource, one, one)
    assert isinstance(same(resource, one, other), bool)
    assert isinstance(says(resource, one, other), bool)


#: Any JSON, mostly of the words that the annotations know.
WORDS = [
    "policy", "cpuset", "resources", "cpu", "node", "numaNodeResources", "containers", "requests", "limits", "gpu", "rdma",
    "minor", "id", "llc", "schemata", "range", "mb", "percent", "blocks", "name", "type", "ioCfg", "enable", "groupIdentity",
    "auto", "none", "kubernetes.io/batch-cpu", "1", "10Gi", "0-3", "memoryQOS", "cpuBurstPercent", "lsClass", "beClass",
    "resourceQOSStrategy", "resourceUsedThresholdWithBE", "cpuSuppressPolicy", "hostApplications", "cgroupPath", "base",
    "relativePath", "systemStrategy", "totalNetworkBandwidth", "cpuBurstStrategy", "extensions",
]  # fmt: skip
leaves = st.one_of(st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(), st.text(max_size=8), st.sampled_from(WORDS))
documents = st.recursive(
    leaves, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(WORDS), inner, max_size=4)), max_leaves=12
)
values = st.one_of(documents.map(json.dumps), st.text(max_size=40))

READERS = {
    name: function
    for name, function in inspect.getmembers(annotation_parsers, inspect.isfunction)
    if name.startswith("parse_") and sum(p.default is p.empty for p in inspect.signature(function).parameters.values()) == 1
}
KEYS = sorted({value for name, value in vars(names).items() if name.startswith("ANNOTATION_") and isinstance(value, str)})


@pytest.mark.parametrize("name", READERS)
@given(text=values)
def test_fuzz_annotations(name: str, text: str) -> None:
    try:
        READERS[name](dict.fromkeys(KEYS, text))
    except AnnotationError as error:
        problem = str(error)
    else:
        problem = "none"
    assert problem


def pod_of(annotations: dict[str, str], qos: str) -> Any:
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"}}
    wire = {
        "metadata": {"name": "p", "namespace": "d", "uid": "u", "labels": {"koordinator.sh/qosClass": qos}, "annotations": annotations},
        "spec": {"containers": [{"name": "main", "resources": resources}]},
        "status": {"containerStatuses": [{"name": "main", "containerID": "containerd://c"}]},
    }
    return decoder(Pod)(json.dumps(wire).encode())


@thorough
@given(st.dictionaries(st.sampled_from([k for k in KEYS if k]), values, max_size=4), st.sampled_from(["LS", "BE", "LSR", ""]))
def test_fuzz_what_a_pod_says_of_itself(tmp_path_factory: Any, annotations: dict[str, str], qos: str) -> None:
    """Strategies and hooks take the pod with whatever it says; a hook may refuse it with one error."""
    cgroups = Cgroups(HostRoot(), version=1)  # type: ignore[arg-type]
    state = Extensions().with_policies(pod_state(pod_of(annotations, qos), cgroups))
    slo = SLO()
    assert burst_of(slo.cpu_burst, state).policy
    memory_of(slo.qos, state)
    assert pod_request(state) >= 0
    assert pod_limit(state) >= -1
    try:
        contexts(state)
    except ValueError as error:
        assert str(error)  # noqa: PT017


@thorough
@given(st.dictionaries(st.sampled_from(WORDS), documents, max_size=5))
def test_fuzz_a_nodeslo_is_taken_section_by_section(spec: dict[str, Any]) -> None:
    good, _ = effective_slo({"cpuBurstStrategy": {"policy": "auto"}})
    found, errors = effective_slo(spec, good)
    assert isinstance(found, SLO)
    if any(error.section.startswith("cpuBurst") for error in errors):
        assert found.cpu_burst == good.cpu_burst, "the last good section stays"


@thorough
@given(
    st.one_of(
        st.binary(max_size=200),
        documents.map(lambda d: json.dumps({"items": d}).encode()),
        st.lists(documents, max_size=3).map(lambda d: json.dumps({"items": d}).encode()),
    )
)
def test_fuzz_the_kubelets_list(body: bytes) -> None:
    pod_cache = PodCache(Cgroups(HostRoot(), version=1))  # type: ignore[arg-type]
    try:
        pod_cache.take(body)
    except PodListError as error:
        assert str(error)  # noqa: PT017
    assert isinstance(pod_cache.pods, tuple)


TOPOLOGY = make_topology(CPU(i, i // 2, 0, 0) for i in range(8))


@thorough
@given(
    st.dictionaries(
        st.sampled_from(["cpuManagerPolicy", "reservedSystemCPUs", "kubeReserved", "systemReserved", "cpuManagerPolicyOptions"]),
        st.one_of(documents, st.just("static")),
        max_size=5,
    )
)
def test_fuzz_the_kubelets_configuration(config: dict[str, Any]) -> None:
    policy = kubelet_policy(config, TOPOLOGY)
    assert isinstance(policy.annotation(), dict)


@thorough
@given(
    st.one_of(
        st.none(),
        st.binary(max_size=80),
        documents.map(lambda d: json.dumps(d).encode()),
        documents.map(lambda d: json.dumps({"entries": d}).encode()),
    )
)
def test_fuzz_the_kubelets_cpu_state(state: bytes | None) -> None:
    try:
        assert isinstance(kubelet_pinned(state, ()), list)
    except CPUStateError as error:
        assert str(error)  # noqa: PT017


@thorough
@given(values)
def test_fuzz_what_the_node_says(text: str) -> None:
    annotations = {"node.koordinator.sh/reservation": text, "node.koordinator.sh/system-qos-resource": text}
    wire, cpus = node_reservation(annotations, TOPOLOGY)
    assert isinstance(wire, dict)
    assert set(cpus) <= set(range(1 << 16))
    system_qos(annotations)


@thorough
@given(st.one_of(st.binary(max_size=120), documents.map(lambda d: json.dumps([d]).encode())))
def test_fuzz_device_files(tmp_path_factory: Any, data: bytes) -> None:
    directory = Path(tmp_path_factory.getbasetemp()) / "devices"
    directory.mkdir(exist_ok=True)
    (directory / "a.json").write_bytes(data)
    try:
        assert isinstance(read_devices(str(directory)), tuple)
    except HostError as error:
        assert "a.json" in str(error)  # noqa: PT017


POLICY = [
    "metricCollectPolicy", "aggregateDurationSeconds", "reportIntervalSeconds", "nodeAggregatePolicy", "durations",
    "nodeMemoryCollectPolicy",
]  # fmt: skip
policies = st.dictionaries(
    st.sampled_from(POLICY), st.one_of(documents, st.lists(st.one_of(leaves, st.just("5m")), max_size=3), st.just("usageWithPageCache"))
)


@thorough
@given(st.one_of(policies, policies.map(lambda p: {"metricCollectPolicy": {**p, "nodeAggregatePolicy": p}})))
def test_fuzz_what_a_nodemetric_asks_for(spec: dict[str, Any]) -> None:
    try:
        assert isinstance(effective_policy(spec), CollectPolicy)
    except PolicyError as error:
        assert str(error)  # noqa: PT017
