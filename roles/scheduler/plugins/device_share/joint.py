"""Joint allocation: devices of several types on the same PCIe switches (SCH-DEV-09). Pure."""

from __future__ import annotations

from collections.abc import Iterator

from roles.scheduler.framework.status import Status, unschedulable
from roles.scheduler.plugins.device_share.choice import Outcome, Pick, Rules, candidates, choose_alone, pick
from roles.scheduler.plugins.device_share.request import DeviceRequest, Joint
from roles.scheduler.plugins.device_share.view import View

_VIOLATION = unschedulable("node(s) Device Joint-Allocate rules violation")


def choose(request: DeviceRequest, view: View, rules: Rules) -> Outcome:
    """Devices for all that is wanted. Where the devices preferred first break the joint rules, others are tried: a node is refused only
    if no switches serve all types."""
    joint = request.joint
    if joint is None:
        return choose_alone(request, view, rules)
    refusal: Status | None = None
    for narrowed in _alternatives(request, view, joint):
        picks = _once(request, narrowed, view, rules, joint)
        if not isinstance(picks, Status):
            break
        refusal = refusal or picks
    else:
        assert refusal is not None
        return refusal
    by_type = {picked.wanted.type: picked for picked in picks}
    for wanted in request.wanted:
        if wanted.type not in by_type:
            other = pick(request, view, rules, wanted)
            if isinstance(other, Status):
                return other
            by_type[wanted.type] = other
    return tuple(share for wanted in request.wanted for share in by_type[wanted.type].shares(request.hint(wanted.type)))


def _once(request: DeviceRequest, leading: View, view: View, rules: Rules, joint: Joint) -> list[Pick] | Status:
    """The leading type from its view, the others near it."""
    first = request.of(joint.types[0])
    assert first is not None
    primary = pick(request, leading, rules, first)
    if isinstance(primary, Status):
        return primary
    picks = [primary]
    switches = _switches(primary)
    for kind in joint.types[1:]:
        wanted = request.of(kind)
        assert wanted is not None
        aim = max(wanted.count, len(switches))
        secondary = pick(request, view, rules, wanted, switches, aim)
        if isinstance(secondary, Status):
            return secondary
        if joint.same_pcie and (len(secondary.units) < aim or not switches or _switches(secondary) != switches):
            return _VIOLATION
        picks.append(secondary)
    return picks


def _switches(picked: Pick) -> frozenset[str]:
    """The PCIe switches of the chosen devices; none if one of them is not known."""
    switches = {unit.card.pcie for unit in picked.units}
    return frozenset() if None in switches else frozenset(switch for switch in switches if switch is not None)


def _alternatives(request: DeviceRequest, view: View, joint: Joint) -> Iterator[View]:
    """Views of the leading type: all of it, then only switches on which every other type has a device, then each of these alone."""
    yield view
    if not joint.same_pcie:
        return
    served: set[str] | None = None
    for kind in joint.types[1:]:
        wanted = request.of(kind)
        assert wanted is not None
        fitting = candidates(view, wanted, request.hint(kind))
        if isinstance(fitting, Status):
            return
        switches = {unit.card.pcie for unit in fitting if unit.card.pcie is not None}
        served = switches if served is None else served & switches
    leading = joint.types[0]
    units = view.units.get(leading, ())
    yield view.narrowed(leading, (unit for unit in units if unit.card.pcie in (served or ())))
    for switch in sorted(served or ()):
        yield view.narrowed(leading, (unit for unit in units if unit.card.pcie == switch))
