"""What the network of a node should look like under TC network QoS, and the commands that make it so (KA-HK-09). Pure.

An htb tree on the NIC of the default route: 1:1 the whole bandwidth, 1:2 system, 1:3 LS, 1:4 BE, and a class of its own for each
pod that limits itself. Traffic finds its class by ipset (pods with an address of their own) or by ``net_cls`` (the others).
"""

from __future__ import annotations

import ipaddress
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from roles.koordlet.hooks.context import PodContext
from roles.koordlet.hooks.network import NET_CLASSES, NetworkRule, pod_limits

CLASS_MINORS = {"system": 2, "ls": 3, "be": 4}
SETS = {name: f"{name}_class" for name in CLASS_MINORS}
#: Minors of pods' own classes; below are the tree's.
_OWN_FIRST, _OWN_LAST = 0x100, 0xFFFE
_CGROUP_PREF = "5"
#: A buffer holds a millisecond's worth of bytes, and at least a full frame.
_LEAST_BUFFER = 1600
_OWN_CLASS = re.compile(r"^class htb 1:([0-9a-f]+) ", re.MULTILINE)

Command = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OwnClass:
    """A pod with a limit of its own. ``address`` is empty for pods in the host's network."""

    minor: int
    rate: int
    address: str


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """Everything wanted of a device. Rates are bytes per second."""

    device: str
    total: int = 0
    rates: tuple[tuple[str, int, int], ...] = ()
    """Class, rate, ceil."""
    members: tuple[tuple[str, frozenset[str]], ...] = ()
    """Class, pod addresses."""
    own: tuple[OwnClass, ...] = ()

    @property
    def active(self) -> bool:
        return self.total > 0


def minors(uids: Iterable[str]) -> dict[str, int]:
    """A minor for each pod: the same one as long as no other pod takes it."""
    taken: dict[int, str] = {}
    for uid in sorted(uids):
        minor = _OWN_FIRST + zlib.crc32(uid.encode()) % (_OWN_LAST - _OWN_FIRST + 1)
        while minor in taken:
            minor = minor + 1 if minor < _OWN_LAST else _OWN_FIRST
        taken[minor] = uid
    return {uid: minor for minor, uid in taken.items()}


def class_rates(rule: NetworkRule) -> tuple[tuple[str, int, int], ...]:
    system = max(rule.total - rule.ls.tx_min - rule.be.tx_min, 0)
    rows = (("system", system, rule.total), ("ls", rule.ls.tx_min, rule.ls.tx_max), ("be", rule.be.tx_min, rule.be.tx_max))
    # htb wants a rate above zero, and a ceiling not below it; a class without limits has what the others leave
    return tuple((name, max(rate, 1), max(ceil, rate) or rule.total) for name, rate, ceil in rows)


def limited(pods: Iterable[PodContext]) -> dict[str, int]:
    """uid -> egress limit of pods that limit themselves; 0 where only ingress is limited."""
    out: dict[str, int] = {}
    for pod in pods:
        try:
            ingress, egress = pod_limits(pod)
        except ValueError:
            continue  # said so where the pod's class id was asked for
        if ingress or egress:
            out[pod.uid] = egress
    return out


def own_rate(wanted: int, pod: PodContext, rule: NetworkRule) -> int:
    """Rate of a pod that limits itself (0: ingress only): its own limit, within that of its class and the node's total."""
    band = {"ls": rule.ls, "be": rule.be}.get(NET_CLASSES.get(pod.qos, ""))
    most = min((band.tx_max or band.tx_min) if band is not None else 0, rule.total) or rule.total
    return min(wanted, most) or most


def plan(device: str, rule: NetworkRule, pods: Mapping[str, tuple[PodContext, str]]) -> NetworkPlan:
    """``pods``: uid -> (pod, its address, empty in the host's network)."""
    if not rule.active or not rule.total:
        return NetworkPlan(device)
    limits = limited(pod for pod, _ in pods.values())
    numbers = minors(limits)
    members: dict[str, set[str]] = {name: set() for name in SETS}
    for uid, (pod, address) in pods.items():
        name = NET_CLASSES.get(pod.qos)
        if name is not None and address and uid not in limits:
            members[name].add(address)
    return NetworkPlan(
        device=device,
        total=rule.total,
        rates=class_rates(rule),
        members=tuple((name, frozenset(addresses)) for name, addresses in members.items()),
        own=tuple(OwnClass(numbers[uid], own_rate(rate, pods[uid][0], rule), pods[uid][1]) for uid, rate in sorted(limits.items())),
    )


# -- commands ----------------------------------------------------------------------------------------------------------------


def qdisc(wanted: NetworkPlan) -> Command:
    return ("tc", "qdisc", "replace", "dev", wanted.device, "root", "handle", "1:", "htb", "default", "2")


def _class(device: str, parent: str, minor: int, rate: int, ceil: int, prio: int) -> Command:
    # tc's own buffers come to nothing on kernels with a fine clock
    burst, cburst = (f"{max(value // 1000, _LEAST_BUFFER)}b" for value in (rate, ceil))
    spec = ("rate", f"{rate}bps", "burst", burst, "ceil", f"{ceil}bps", "cburst", cburst, "prio", str(prio))
    return ("tc", "class", "replace", "dev", device, "parent", parent, "classid", f"1:{minor:x}", "htb", *spec)


def classes(wanted: NetworkPlan) -> list[Command]:
    """All classes; each command may be run again."""
    device = wanted.device
    return [
        _class(device, "1:", 1, wanted.total, wanted.total, 0),
        *(_class(device, "1:1", CLASS_MINORS[name], rate, ceil, prio) for prio, (name, rate, ceil) in enumerate(wanted.rates, 1)),
        *(_class(device, "1:1", own.minor, own.rate, own.rate, 4) for own in wanted.own),
    ]


def filters(wanted: NetworkPlan, listed: str) -> list[Command]:
    """Filters that ``tc filter show`` does not list yet: by cgroup for all, by source address for pods' own classes."""
    there: dict[int, str] = {}
    for text in re.split(r"\bpref (?=\d)", listed)[1:]:
        pref = int(text.split()[0])
        there[pref] = there.get(pref, "") + text
    anchor = ("tc", "filter", "add", "dev", wanted.device, "parent", "1:", "protocol", "ip", "pref")
    out: list[Command] = [] if int(_CGROUP_PREF) in there else [(*anchor, _CGROUP_PREF, "handle", "1:", "cgroup")]
    for own in wanted.own:
        # the address may still be listed for another pod's class
        if not own.address or f"match {ipaddress.IPv4Address(own.address).packed.hex()}/ffffffff" in there.get(own.minor, ""):
            continue
        if own.minor in there:  # the pod has another address than before
            out.append(("tc", "filter", "del", "dev", wanted.device, "parent", "1:", "protocol", "ip", "pref", str(own.minor)))
        match = ("u32", "match", "ip", "src", f"{own.address}/32", "flowid", f"1:{own.minor:x}")
        out.append((*anchor, str(own.minor), *match))
    return out


def stale_classes(wanted: NetworkPlan, listed: str) -> list[Command]:
    """Remove pods' classes that ``tc class show`` lists and nobody wants."""
    keep = {own.minor for own in wanted.own}
    found = {int(text, 16) for text in _OWN_CLASS.findall(listed)}
    out: list[Command] = []
    for minor in sorted(m for m in found - keep if _OWN_FIRST <= m <= _OWN_LAST):
        out.append(("tc", "filter", "del", "dev", wanted.device, "parent", "1:", "protocol", "ip", "pref", str(minor)))
        out.append(("tc", "class", "del", "dev", wanted.device, "classid", f"1:{minor:x}"))
    return out


def rule_of(name: str, action: str) -> Command:
    """The iptables rule of a class; ``action`` is -C, -A or -D."""
    match = ("-m", "set", "--match-set", SETS[name], "src", "-j", "CLASSIFY", "--set-class", f"1:{CLASS_MINORS[name]}")
    return ("iptables", "-w", "-t", "mangle", action, "POSTROUTING", *match)


def set_changes(name: str, wanted: frozenset[str], saved: str) -> list[Command]:
    """Bring a set in line with what ``ipset save`` says it has."""
    have = {line.split()[2] for line in saved.splitlines() if line.startswith("add ") and len(line.split()) >= 3}
    adds = [("ipset", "add", SETS[name], address, "-exist") for address in sorted(wanted - have)]
    return [*adds, *(("ipset", "del", SETS[name], address, "-exist") for address in sorted(have - wanted))]
