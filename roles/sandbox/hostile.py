"""Sets of annotations that a pod's author might try: what they want, and whether admission lets them into the cluster (BEY-SEC-03).

Data only. The world's tenant carries them into histories, and tests carry them onto hosts. What is let in has to be harmless there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from koord.api import names

P: Final = "koordinator.sh/"
S: Final = "scheduling.koordinator.sh/"


@dataclass(frozen=True, slots=True)
class Attack:
    """One set. `refused`: admission says no. `corrected`: it puts at creation what the pod's spec says.

    Of what is taken nobody may heed more than its author has a right to.
    """

    name: str
    annotations: dict[str, str]
    refused: bool = True
    labels: dict[str, str] = field(default_factory=dict)
    corrected: bool = False


def _json(**members: Any) -> str:
    return json.dumps(members)


def _each(name: str, key: str, texts: tuple[str, ...], refused: bool = True) -> Iterator[Attack]:
    return (Attack(f"{name}-{number}", {key: text}, refused) for number, text in enumerate(texts, 1))


def _burst(policy: str, percent: int) -> str:
    return _json(policy=policy, cfsQuotaBurstPercent=percent, cpuBurstPercent=percent)


def _memory(policy: str, percent: int, **more: int) -> str:
    return _json(policy=policy, minLimitPercent=percent, lowLimitPercent=percent, **more)


_HINT = _json(extensions={"NodeNUMAResource": {}, "DeviceShare": {}})

ATTACKS: Final[tuple[Attack, ...]] = (
    # CPUs of others, in every spelling
    *_each("cpus", names.ANNOTATION_RESOURCE_STATUS, (
        '{"cpuset":"0-13"}', '{"cpuset":"0"}', '{"cpuset":"0-65535"}', '{"cpuset":"-1"}', '{"cpuset":"99"}', '{"cpuset":["0"]}', '"0-3"',
        "[", "null", '{"cpuset":"0-3","numaNodeResources":[{"node":-1,"resources":{"cpu":"1"}}]}',
        '{"cpuset":"0-3","numaNodeResources":7}', '{"cpuset":"0,0,0,1-1"}', '{"cpuset":" 0 - 3 "}', '{"cpuset":"0-3\\n4"}',
        '{"numaNodeResources":[{"node":0,"resources":{"cpu":"1000","memory":"1Ti"}}]}',
    )),
    Attack("cpus-by-hint", {names.ANNOTATION_RESOURCE_STATUS: '{"cpuset":"0-3"}', names.ANNOTATION_SCHEDULING_HINT: _HINT}),
    # devices
    *_each("devices", names.ANNOTATION_DEVICE_ALLOCATED, (
        '{"gpu":[{"minor":0},{"minor":1}],"rdma":[{"minor":0,"id":"../.."}]}',
        '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"100","koordinator.sh/gpu-memory-ratio":"100"}}]}',
        '{"gpu":[{"minor":-1}]}', '{"gpu":7}', "{",
    )),
    Attack("devices-by-hint", {names.ANNOTATION_DEVICE_ALLOCATED: '{"gpu":[{"minor":0}]}', names.ANNOTATION_SCHEDULING_HINT: _HINT}),
    Attack("minors", {names.ANNOTATION_GPU_MINORS: "0,1,2,3", names.ANNOTATION_BIND_TIMESTAMP: "1"}),
    # reservations and gangs of others, and the marks of a reserve pod
    *_each("reservation", names.ANNOTATION_RESERVATION_ALLOCATED, ('{"name":"other","uid":"u"}', '{"name":""}', "x")),
    Attack("gang", {names.ANNOTATION_BIND_GANG_GROUP_ID: "other", names.ANNOTATION_BIND_GANG_MEMBER_COUNT: "1000"}),
    Attack("reserve-pod", {names.ANNOTATION_RESERVE_POD: "true", names.ANNOTATION_RESERVATION_NAME: "other"}),
    # limits of one's own
    *(Attack(f"burst-{policy.lower()}-{percent}", {names.ANNOTATION_CPU_BURST: _burst(policy, percent)})
      for policy in ("auto", "cfsQuotaBurstOnly", "none") for percent in (1_000_000, -1)),
    Attack("burst-for-ever", {names.ANNOTATION_CPU_BURST: _json(policy="auto", cfsQuotaBurstPeriodSeconds=-999)}),
    Attack("burst-in-bounds", {names.ANNOTATION_CPU_BURST: _burst("auto", 10_000)}, False),
    Attack("burst-unreadable", {names.ANNOTATION_CPU_BURST: "["}, False),
    # memory of others
    *(Attack(f"memory-{policy}-{percent}", {names.ANNOTATION_MEMORY_QOS: _memory(policy, percent)})
      for policy in ("auto", "default") for percent in (100_000, -100)),
    Attack("memory-marks", {names.ANNOTATION_MEMORY_QOS: _json(policy="auto", wmarkRatio=10_000, wmarkMinAdj=-999, priority=99)}),
    Attack("memory-in-bounds", {names.ANNOTATION_MEMORY_QOS: _memory("auto", 100, priority=12)}, False),
    # what cannot be judged without the node
    Attack("oom-score", {names.ANNOTATION_OOM_SCORE_ADJ: "-1000"}, False),
    Attack("oom-score-of-container", {names.ANNOTATION_OOM_SCORE_ADJ_SPEC: '{"main":-1000}'}, False),
    Attack("identity", {names.ANNOTATION_CPU_QOS: '{"enable":true,"groupIdentity":2}'}, False),
    Attack("identity-beyond", {names.ANNOTATION_CPU_QOS: '{"enable":true,"groupIdentity":99}'}, False),
    Attack("disks", {names.ANNOTATION_BLKIO_QOS: '{"blocks":[{"name":"/dev/sda","type":"device","ioCfg":{"ioWeightPercent":100000}}]}'}),
    Attack("network", {names.ANNOTATION_NETWORK_QOS: _json(IngressLimit="1000G", EgressLimit="-1")}, False),
    Attack("never-evicted", {names.ANNOTATION_EVICTION_POLICY: "[]"}, False),
    Attack("cache", {names.ANNOTATION_RESCTRL: '{"llc":{"schemata":{"range":[0,100]}}}'}, False),
    Attack("cookie-of-others", {}, False, {names.LABEL_CORE_SCHED_GROUP_ID: "kube-system_other"}),
    # batch resources that the spec does not request
    Attack("batch-of-nothing", {names.ANNOTATION_EXTENDED_RESOURCE_SPEC: _json(containers={"main": {
        "requests": {"kubernetes.io/batch-cpu": 64_000}, "limits": {"kubernetes.io/batch-cpu": 64_000}}})}, False, corrected=True),
    Attack("batch-unreadable", {names.ANNOTATION_EXTENDED_RESOURCE_SPEC: "{"}),
    # much, and nonsense
    Attack("long", {names.ANNOTATION_CPU_BURST: '{"policy":"' + "x" * 100_000 + '"}'}),
    Attack("deep", {names.ANNOTATION_MEMORY_QOS: '{"policy":' + "[" * 2000 + "]" * 2000 + "}"}, False),
)  # fmt: skip
