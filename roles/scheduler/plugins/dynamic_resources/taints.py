"""Taints that DeviceTaintRules put on devices, beside those of the slices (SCH-DRA-15). A rule that is watched in two versions is one
rule; of what the watches say the newest counts. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from koord.api.objects_resource import DeviceTaint, DeviceTaintRule, DeviceTaintSelector

KEEPING_OFF = ("NoSchedule", "NoExecute")
"""Effects that keep claims off. Every other one, also one that is not known yet, does nothing."""
DeviceId = tuple[str, str, str]
Taints = tuple[DeviceTaint, ...]


def that_keep_off(taints: Iterable[DeviceTaint]) -> Taints:
    """Those of them that keep claims off."""
    return tuple(taint for taint in taints if taint.effect in KEEPING_OFF)


class TaintRules:
    """The rules by name."""

    def __init__(self) -> None:
        self._rules: dict[str, DeviceTaintRule] = {}

    def told(self, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> tuple[DeviceTaintSelector, ...]:
        """A watch tells of a rule. Returns which devices may have other taints now."""
        shown = new or old
        assert shown is not None
        name = shown.metadata.name
        known = self._rules.get(name)
        if new is None:
            if known is None or known.metadata.uid != shown.metadata.uid:
                return ()
            del self._rules[name]
        elif known is not None and _later(known, new):
            return ()
        else:
            self._rules[name] = new
        if known is not None and new is not None and known.spec == new.spec:
            return ()
        return tuple(
            rule.spec.device_selector
            for rule in (known, new)
            if rule is not None and rule.spec.device_selector is not None and rule.spec.taint.effect in KEEPING_OFF
        )

    def of(self, device: DeviceId) -> Taints:
        """What the rules put on a device."""
        found = []
        for name in sorted(self._rules):
            spec = self._rules[name].spec
            if spec.device_selector is not None and selects(spec.device_selector, device):
                found.append(spec.taint)
        return that_keep_off(found)

    def __bool__(self) -> bool:
        return bool(self._rules)


def selects(selector: DeviceTaintSelector, device: DeviceId) -> bool:
    """Whether a device is all of what a selector says."""
    wanted = (selector.driver, selector.pool, selector.device)
    return all(value is None or value == found for value, found in zip(wanted, device, strict=True))


def may_select(selector: DeviceTaintSelector, pool: tuple[str, str]) -> bool:
    """Whether it can select a device of a pool."""
    return all(value is None or value == found for value, found in zip((selector.driver, selector.pool), pool, strict=True))


def _later(one: DeviceTaintRule, other: DeviceTaintRule) -> bool:
    """Whether one is newer than the other, of which another watch tells."""
    versions = one.metadata.resource_version, other.metadata.resource_version
    return all(version.isdecimal() for version in versions) and int(versions[0]) > int(versions[1])
