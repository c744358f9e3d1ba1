"""Network bandwidth of classes and pods, in bytes per second, as TerwayQoS and TCNetworkQoS share it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from koord.api.annotations import parse_network_qos
from koord.api.qos import QoSClass
from koord.api.quantity import QuantityError, parse_value
from roles.koordlet.hooks.context import PodContext
from roles.koordlet.hooks.hook import RuleError
from roles.koordlet.states.slo import SLO, NetworkQOS

BITS = 8


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Guaranteed and most, out (tx) and in (rx)."""

    tx_min: int = 0
    tx_max: int = 0
    rx_min: int = 0
    rx_max: int = 0


@dataclass(frozen=True, slots=True)
class NetworkRule:
    """``active``: the NodeSLO chooses this hook's policy."""

    active: bool = False
    total: int = 0
    ls: Bandwidth = Bandwidth()
    be: Bandwidth = Bandwidth()


def _bytes(where: str, value: int | str, total_bits: int) -> int:
    """A number is a percentage of the total, a string a quantity of bits."""
    if isinstance(value, int):
        return total_bits * value // 100 // BITS if 0 <= value <= 100 else 0
    try:
        return max(parse_value(value), 0) // BITS
    except QuantityError as error:
        raise RuleError(f"NodeSLO {where}: {error}") from None


def _class(name: str, body: NetworkQOS, total_bits: int) -> Bandwidth:
    if not body.enable:
        return Bandwidth()
    where = f"{name}.networkQOS"
    return Bandwidth(
        tx_min=_bytes(f"{where}.egressRequest", body.egress_request, total_bits),
        tx_max=_bytes(f"{where}.egressLimit", body.egress_limit, total_bits),
        rx_min=_bytes(f"{where}.ingressRequest", body.ingress_request, total_bits),
        rx_max=_bytes(f"{where}.ingressLimit", body.ingress_limit, total_bits),
    )


def network_rule(slo: SLO, policy: str) -> NetworkRule:
    """The rule for one policy. Raises RuleError."""
    if slo.qos.policies.net_qos_policy != policy:
        return NetworkRule()
    try:
        total = max(parse_value(slo.system.total_network_bandwidth), 0)
    except QuantityError as error:
        raise RuleError(f"NodeSLO systemStrategy.totalNetworkBandwidth: {error}") from None
    return NetworkRule(
        active=True,
        total=total // BITS,
        ls=_class("lsClass", slo.qos.ls.network, total),
        be=_class("beClass", slo.qos.be.network, total),
    )


def pod_limits(pod: PodContext) -> tuple[int, int]:
    """(ingress, egress) limits of a pod by its annotation, 0 for none. Raises AnnotationError."""
    own = parse_network_qos(pod.annotations)
    if own is None:
        return 0, 0
    return max(own.ingress_limit or 0, 0) // BITS, max(own.egress_limit or 0, 0) // BITS


#: Network class of a pod by its label; none without.
NET_CLASSES = {
    QoSClass.SYSTEM: "system",
    QoSClass.LSE: "ls",
    QoSClass.LSR: "ls",
    QoSClass.LS: "ls",
    QoSClass.BE: "be",
}
