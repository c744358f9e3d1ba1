"""The anomaly detector: a node is abnormal only after it stayed hot (DS-LNL-04). Time is an argument."""

from __future__ import annotations

from dataclasses import dataclass

from roles.descheduler.plugins.lownodeload.args import AnomalyCondition


@dataclass(slots=True)
class Detector:
    """Marks of one node. OK becomes Anomaly when the consecutive abnormal marks exceed N; Anomaly ends by itself after the timeout."""

    abnormal: int = 0
    normal: int = 0
    until: float | None = None  # end of Anomaly, None while OK
    last_set: float = 0.0

    def is_anomaly(self, condition: AnomalyCondition, now: float) -> bool:
        if self.until is None:
            return False
        if now >= self.until or self.normal > condition.consecutive_normalities:
            self._enter(None)
        return self.until is not None

    def mark_abnormal(self, condition: AnomalyCondition, now: float) -> bool:
        """Mark and return whether the node is abnormal now."""
        already = self.is_anomaly(condition, now)
        self.abnormal, self.normal = self.abnormal + 1, 0
        if not already and self.abnormal > condition.consecutive_abnormalities:
            self._enter(now + condition.timeout)
        self.last_set = now
        return self.until is not None

    def mark_normal(self) -> None:
        self.normal += 1
        self.abnormal = 0

    def reset(self) -> None:
        self._enter(None)

    def _enter(self, until: float | None) -> None:
        self.abnormal = self.normal = 0
        self.until = until


class Detectors:
    """Detectors of all nodes, forgotten when they were not marked for `lifetime` seconds."""

    def __init__(self, lifetime: float) -> None:
        self._lifetime = lifetime
        self._by_node: dict[str, Detector] = {}

    def marked(self, node: str, condition: AnomalyCondition, now: float) -> bool:
        """Mark a hot node; True when it is abnormal. With one abnormality asked for, a hot node is abnormal at once."""
        if condition.consecutive_abnormalities == 1:
            return True
        detector = self._by_node.get(node)
        if detector is None or now - detector.last_set >= self._lifetime:
            detector = self._by_node[node] = Detector()
        return detector.mark_abnormal(condition, now)

    def run_of(self, node: str) -> int:
        """In how many rounds in a row the node was hot while it was not yet abnormal; 0 when it is, or nothing is known."""
        detector = self._by_node.get(node)
        return detector.abnormal if detector is not None and detector.until is None else 0

    def reset(self, node: str) -> None:
        if detector := self._by_node.get(node):
            detector.reset()

    def normal(self, node: str) -> None:
        if detector := self._by_node.get(node):
            detector.mark_normal()

    def clean_round(self, cool: set[str]) -> None:
        """A round in which a node was not hot breaks its run of abnormal marks: "consecutive" means what it says."""
        for node in cool & self._by_node.keys():
            if self._by_node[node].until is None:
                self._by_node[node].abnormal = 0

    def drop_expired(self, now: float) -> None:
        for node in [node for node, detector in self._by_node.items() if now - detector.last_set >= self._lifetime]:
            del self._by_node[node]
