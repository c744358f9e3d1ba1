"""Feature gates: named switches with upstream's names and defaults, set by `--feature-gates=A=true,B=false`.

An unknown name is an error: a misspelt gate must not pass for a set one.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from koord.api.labels import parse_go_bool
from koord.config import gate_texts
from koord.config.errors import ConfigError, did_you_mean


class Stage(Enum):
    """How far a gate is; `AllAlpha` and `AllBeta` switch a whole stage."""

    ALPHA = "ALPHA"
    BETA = "BETA"


def _defaults(texts: Mapping[str, str], on: str = "") -> Mapping[str, bool]:
    """Gates by name, and whether they are on by default."""
    return {name: name in on.split() for name in texts}


SCHEDULER = _defaults(
    gate_texts.SCHEDULER,  # SCH-FW-02
    on="""DynamicSchedulerCheck GangPendingPodsConditionPatch EnableBatchScheduleNodeSnapshot CSIStorageCapacity GenericEphemeralVolume
    PodDisruptionBudget""",
)
# A fix of ours that changes numbers stays off until asked for.
MANAGER = _defaults(
    gate_texts.MANAGER,
    on="WebhookFramework PodMutatingWebhook PodValidatingWebhook ElasticMutatingWebhook ElasticValidatingWebhook",
)
KOORDLET = _defaults(
    gate_texts.KOORDLET,  # KLO-CFG-02; gates of runtime hooks are in the same table
    on="BECPUSuppress CPUBurst RdtResctrl NodeTopologyReport GroupIdentity CPUSetAllocator BatchResource",
)
DESCHEDULER = _defaults(gate_texts.DESCHEDULER)
RUNTIME_PROXY = _defaults({})


class FeatureGates:
    """The gates of one process. Starts with a role's defaults; `set_from_flag` changes them, `enabled` reads one."""

    def __init__(self, defaults: Mapping[str, bool]) -> None:
        self._defaults = dict(defaults)
        self._set: dict[str, bool] = {}

    def set_from_flag(self, text: str) -> None:
        """Apply `"A=true,B=false"`; later entries win, also over an earlier flag. Raises ConfigError and then changes nothing."""
        wanted: dict[str, bool] = {}
        for entry in filter(None, (part.strip() for part in text.split(","))):
            name, sign, value = entry.partition("=")
            name, value = name.strip(), value.strip()
            if not sign:
                raise ConfigError("--feature-gates", f"{entry!r} has no value; write {name}=true or {name}=false")
            if (on := parse_go_bool(value)) is None:
                raise ConfigError("--feature-gates", f"{name}={value}: the value must be true or false")
            if name in ("AllAlpha", "AllBeta"):
                stage = Stage.ALPHA if name == "AllAlpha" else Stage.BETA
                wanted = {**{gate: on for gate in self._defaults if self.stage(gate) is stage}, **wanted}
            elif name in self._defaults:
                wanted[name] = on
            else:
                known = ", ".join(sorted(self._defaults)) or "none"
                hint = did_you_mean(name, self._defaults) or f"; known gates: {known}"
                raise ConfigError("--feature-gates", f"unknown feature gate {name!r}{hint}")
        self._set.update(wanted)

    def set(self, name: str, value: bool) -> None:
        """Set one gate from code. Raises ConfigError for an unknown name."""
        self.set_from_flag(f"{name}={str(value).lower()}")

    def enabled(self, name: str) -> bool:
        """Whether a gate is on. Asking for a gate that the role does not have is a mistake in code: KeyError."""
        return self._set.get(name, self._defaults[name])

    def asked(self, name: str) -> bool:
        """Whether a gate is on because somebody switched it on, and not by default."""
        return self._set.get(name, False) and not self._defaults[name]

    def stage(self, name: str) -> Stage:
        """The stage of a gate. Upstream's rule: what is on by default is beta, the rest is alpha."""
        return Stage.BETA if self._defaults[name] else Stage.ALPHA

    def all(self) -> dict[str, bool]:
        """Every gate with its present value, sorted by name."""
        return {name: self.enabled(name) for name in sorted(self._defaults)}
