"""Kernel knobs of the whole node: where they are and what they may hold (KA-FS-01 "system files")."""

from __future__ import annotations

import os
from dataclasses import dataclass

from roles.koordlet.host.cgroup_files import Validator, in_range
from roles.koordlet.host.root import HostRoot

_FLAG = in_range(0, 1)
_ANY = in_range(-(1 << 63), (1 << 63) - 1)


@dataclass(frozen=True, slots=True)
class SystemFile:
    """A knob: the host directory it is below (``proc`` or ``sys``), its path there, what it may hold, and its path on newer kernels."""

    name: str
    base: str
    path: str
    validate: Validator
    newer: str = ""

    def locate(self, root: HostRoot) -> str:
        """Absolute path on this machine."""
        below = root.proc_path if self.base == "proc" else root.sys_path
        path = below(self.path)
        return below(self.newer) if self.newer and not os.path.exists(path) and os.path.exists(below(self.newer)) else path


MIN_FREE_KBYTES = SystemFile("min_free_kbytes", "proc", "sys/vm/min_free_kbytes", in_range(10_240, 10_485_760))
WATERMARK_SCALE_FACTOR = SystemFile("watermark_scale_factor", "proc", "sys/vm/watermark_scale_factor", in_range(10, 400))
REAP_BACKGROUND = SystemFile("reap_background", "sys", "kernel/mm/memcg_reaper/reap_background", _FLAG)
PAGECACHE_LIMIT_ENABLED = SystemFile("pagecache_limit.enabled", "sys", "kernel/mm/pagecache_limit/enabled", _FLAG)
SCHED_GROUP_IDENTITY = SystemFile("sched_group_identity_enabled", "proc", "sys/kernel/sched_group_identity_enabled", _FLAG)
SCHED_IDLE_SAVER_WMARK = SystemFile("sched_idle_saver_wmark", "proc", "sys/kernel/sched_idle_saver_wmark", _ANY)
SCHED_CORE = SystemFile("sched_core", "proc", "sys/kernel/sched_core", _FLAG)
SCHED_FEATURES = SystemFile(
    "sched_features",
    "sys",
    "kernel/debug/sched_features",
    lambda text: None if text.strip() else "is empty",
    newer="kernel/debug/sched/features",  # since Linux 5.13
)

FILES = {
    f.name: f
    for f in (
        MIN_FREE_KBYTES,
        WATERMARK_SCALE_FACTOR,
        REAP_BACKGROUND,
        PAGECACHE_LIMIT_ENABLED,
        SCHED_GROUP_IDENTITY,
        SCHED_IDLE_SAVER_WMARK,
        SCHED_CORE,
        SCHED_FEATURES,
    )
}
