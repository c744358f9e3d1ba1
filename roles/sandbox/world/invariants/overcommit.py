"""What nodes promise to batch pods."""

from __future__ import annotations

from collections.abc import Iterator

from koord.api.quantity import parse_value
from roles.sandbox.world.invariants.base import NODE_METRIC, Invariant, role_of


class NoPromiseFromSilence(Invariant):
    """A node whose agent is silent for longer than the limit offers no batch resources."""

    limit = 150.0  # degradeTimeMinutes of the world's configuration, and the manager's time to see it

    def end(self) -> Iterator[str]:
        for name, node in sorted(self.history.of("node").items()):
            offered = ((node.get("status") or {}).get("allocatable") or {}).get("kubernetes.io/batch-cpu")
            if offered is None or parse_value(offered) == 0:
                continue
            reports = (e for e in self.history.entries if e.bucket == NODE_METRIC and e.key == name)
            last = max((e.time for e in reports if role_of(e.author) in ("kubelet", "koordlet")), default=None)
            if last is None or self.history.clock() - last > self.limit:
                yield f"{name} offers batch-cpu {offered}; its agent reported last at {last}"
