"""Kernel knobs of the node from the NodeSLO's systemStrategy (KA-SYS-01). What is unset is neither written nor reset."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar

from koord.decisions.record import Record, Subject
from roles.koordlet.actuation import systemfiles
from roles.koordlet.actuation.systemfiles import SystemFile
from roles.koordlet.actuation.writes import Kind, Write, sequence
from roles.koordlet.qos import view
from roles.koordlet.qos.memevict import capacity_bytes
from roles.koordlet.qos.outcome import Outcome, Strategy
from roles.koordlet.states.model import Snapshot
from roles.koordlet.states.slo import SLO

REASON = "UpdateSystemConfig"


@dataclass(frozen=True, slots=True)
class SystemConfigState:
    """Problems already told."""

    told: frozenset[str] = frozenset()


class SystemConfig(Strategy[SystemConfigState]):
    """See the module."""

    name: ClassVar[str] = "SystemConfig"
    features: ClassVar[tuple[str, ...]] = ("KA-SYS-01",)

    def initial(self) -> SystemConfigState:
        return SystemConfigState()

    def decide(self, snapshot: Snapshot, slo: SLO, state: SystemConfigState, now: float) -> Outcome[SystemConfigState]:
        capacity = capacity_bytes(snapshot)
        if capacity <= 0:
            return Outcome(state)
        wanted = slo.system
        factor = wanted.min_free_kbytes_factor
        rows: tuple[tuple[SystemFile, int | None], ...] = (
            (systemfiles.MIN_FREE_KBYTES, None if factor is None else capacity // 1024 * factor // 10_000),
            (systemfiles.WATERMARK_SCALE_FACTOR, wanted.watermark_scale_factor),
            (systemfiles.REAP_BACKGROUND, wanted.memcg_reap_back_ground),
            (systemfiles.SCHED_GROUP_IDENTITY, wanted.sched_group_identity_enabled),
            (systemfiles.SCHED_IDLE_SAVER_WMARK, wanted.sched_idle_saver_wmark),
            (systemfiles.PAGECACHE_LIMIT_ENABLED, wanted.page_cache_limit_enabled),
        )
        writes: list[Write] = []
        problems: set[str] = set()
        for file, value in rows:
            if value is None:
                continue
            problem = file.validate(str(value))
            if problem is not None:
                problems.add(f"{file.name}: {problem}")
                continue
            path = file.locate(snapshot.host.root)
            if not os.path.exists(path):
                if value:  # what is to be off, and is not there, is off
                    problems.add(f"{file.name}: this kernel has no {path}")
                continue
            writes.append(Write(file.name, path, str(value), kind=Kind.FILE, reason=REASON))
        features, problem = self._features(snapshot, wanted.sched_features or {})
        if problem:
            problems.add(problem)
        records = tuple(
            Record("koordlet", Subject("Node", name=snapshot.node_name), now, "InvalidConfig", rule=self.name, message=f"not written: {p}")
            for p in sorted(problems - state.told)
        )
        batches = (sequence(*writes, *features),) if writes or features else ()
        return Outcome(SystemConfigState(frozenset(problems)), batches=batches, records=records)

    def _features(self, snapshot: Snapshot, wanted: dict[str, bool]) -> tuple[list[Write], str]:
        """One write a feature that is not as wanted; a file that names both forms of one is not to be trusted."""
        if not wanted:
            return [], ""
        path = systemfiles.SCHED_FEATURES.locate(snapshot.host.root)
        text = view.text(snapshot.host, systemfiles.SCHED_FEATURES.locate, snapshot.host.root)
        if text is None:
            return [], f"sched_features: {path} cannot be read"
        words = set(text.split())
        both = sorted(w for w in words if f"NO_{w}" in words)
        if both:
            return [], f"sched_features: {both[0]} and NO_{both[0]} are both there"
        writes = []
        for name, on in sorted(wanted.items()):
            word = name if on else f"NO_{name}"
            if word not in words:
                writes.append(Write("sched_features", path, word, kind=Kind.LINE, cached=False, device=name, reason=REASON))
        return writes, ""
