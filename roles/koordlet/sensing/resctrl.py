"""Cache occupancy and memory traffic of the classes' resctrl groups (KLO-COL-12)."""

from __future__ import annotations

import os
from typing import ClassVar

from roles.koordlet.host.errors import HostError, HostFileError, ParseError
from roles.koordlet.host.proc import cpuinfo
from roles.koordlet.host.root import PathEscapeError
from roles.koordlet.sensing.base import Collector, Round
from roles.koordlet.store import kinds
from roles.koordlet.store.store import Sample

GROUPS = ("LSR", "LS", "BE")
_CAN_CONTROL = frozenset({"cat_l3", "mba"})
_CAN_MONITOR = frozenset({"cqm_mbm_total", "cqm_mbm_local", "cqm_llc", "cqm_occup_llc"})
_VENDORS = frozenset({"GenuineIntel", "AuthenticAMD"})
_TRAFFIC = ("mbm_local_bytes", "mbm_total_bytes")
#: What the kernel writes while a counter has no value.
_NO_VALUE = frozenset({"Unavailable", "Error"})


class ResctrlCollector(Collector):
    """Bytes of last-level cache held, and cumulative bytes of memory traffic, by group and cache.

    Needs the flag, the gate, and a CPU that can both control and monitor. A counter without a value is left out; groups and
    caches that are gone leave no gauge behind.
    """

    name: ClassVar[str] = "resctrl"
    gate: ClassVar[str] = "ResctrlCollector"

    @property
    def enabled(self) -> bool:
        return self.context.options.enable_resctrl_collector and super().enabled and not self._unable()

    def _unable(self) -> str:
        """Why this CPU cannot be monitored, told in the log; "" when it can."""
        host = self.context.host
        try:
            model = cpuinfo(host.files.read(host.root.proc_path("cpuinfo")))
        except (HostError, PathEscapeError) as error:
            reason = str(error)
        else:
            lacking = sorted((_CAN_CONTROL | _CAN_MONITOR) - model.flags)
            if model.vendor not in _VENDORS:
                reason = f"CPU vendor {model.vendor!r} is not one of {', '.join(sorted(_VENDORS))}"
            else:
                reason = f"the CPU lacks {', '.join(lacking)}" if lacking else ""
        if reason:
            self.troubles.failed("the node", HostError(reason))
        return reason

    def collect(self, at: Round) -> None:
        metrics, root = self.context.metrics, self.context.host.root
        metrics.resctrl_llc.clear()
        metrics.resctrl_mb.clear()
        self._check_schemata(root.resctrl_path("schemata"))
        samples: list[Sample] = []
        for group in GROUPS:
            samples += self.attempt(group, self._group, group, root.resctrl_path(group, "mon_data")) or ()
        self.context.store.append(at.now, samples)

    def _check_schemata(self, path: str) -> None:
        """A mounted resctrl has a schemata file with a line ``L3:`` or ``MB:`` of domains; without it the round is skipped."""
        lines = [line.strip().partition(":") for line in self.context.host.files.text(path).splitlines()]
        found = {name.strip(): domains for name, _, domains in lines}
        if not any(name in found for name in ("L3", "L3CODE", "MB")):
            raise ParseError(path, "no line L3 or MB")
        for name, domains in found.items():
            for part in filter(None, domains.split(";")):
                if not part.partition("=")[0].strip().isdecimal() or not part.partition("=")[2].strip():
                    raise ParseError(path, f"{name}: {part!r} is not <cache id>=<value>")

    def _group(self, group: str, directory: str) -> list[Sample]:
        """Samples of one group. Occupancy comes first; when it cannot be read, traffic is not read either."""
        metrics = self.context.metrics
        samples: list[Sample] = []
        caches = self._caches(directory)
        for cache, path in caches:
            held = self._number(os.path.join(path, "llc_occupancy"))
            if held is not None:
                samples.append((kinds.RESCTRL_LLC, (group, cache), float(held)))
                metrics.resctrl_llc.set(held, cache, group)
        for cache, path in caches:
            for name in _TRAFFIC:
                moved = self._number(os.path.join(path, name))
                if moved is not None:
                    samples.append((kinds.RESCTRL_MB, (group, cache, name), float(moved)))
                    metrics.resctrl_mb.set(moved, cache, group, name)
        return samples

    def _caches(self, directory: str) -> list[tuple[str, str]]:
        """Cache id as the kernel writes it (``00``) and directory, of every ``mon_L3_<id>``."""
        try:
            names = sorted(n for n in os.listdir(directory) if n.startswith("mon_L3_"))
        except OSError as error:
            raise HostFileError(directory, f"cannot be listed: {error.strerror}") from error
        return [(n.split("_")[2], os.path.join(directory, n)) for n in names]

    def _number(self, path: str) -> int | None:
        text = self.context.host.files.text(path).strip()
        if text in _NO_VALUE:
            return None
        try:
            return int(text)
        except ValueError:
            raise ParseError(path, f"{text[:40]!r} is not a number") from None
