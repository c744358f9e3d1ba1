"""Taints and tolerations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from koord.api import names
from koord.api.selectors import whole_number
from roles.scheduler.cluster.vocabulary import TaintKey

NO_SCHEDULE = "NoSchedule"
NO_EXECUTE = "NoExecute"
PREFER_NO_SCHEDULE = "PreferNoSchedule"
HARD = (NO_SCHEDULE, NO_EXECUTE)

UNSCHEDULABLE_TAINT = TaintKey(names.TAINT_UNSCHEDULABLE, "", NO_SCHEDULE)


class Toleration(NamedTuple):
    """One toleration; an empty key with Exists tolerates every taint, an empty effect every effect."""

    key: str
    op: str
    value: str
    effect: str

    def tolerates(self, taint: TaintKey) -> bool:
        """Whether the toleration covers a taint."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.op == "Exists":
            return True
        if self.op in ("Lt", "Gt"):
            return bool(self.key) and self._numeric(taint)
        return bool(self.key) and self.value == taint.value

    def _numeric(self, taint: TaintKey) -> bool:
        have, want = whole_number(taint.value), whole_number(self.value)
        if have is None or want is None:
            return False
        return have < want if self.op == "Lt" else have > want


def compile_tolerations(tolerations: Iterable[Any] | None) -> tuple[Toleration, ...]:
    """Tolerations of a pod spec; an absent operator means Equal."""
    return tuple(Toleration(t.key or "", t.operator or "Equal", t.value or "", t.effect or "") for t in tolerations or ())


def first_untolerated(taints: Iterable[TaintKey], tolerations: tuple[Toleration, ...], effects: tuple[str, ...]) -> TaintKey | None:
    """The first taint with one of the effects that no toleration covers."""
    for taint in taints:
        if taint.effect in effects and not any(toleration.tolerates(taint) for toleration in tolerations):
            return taint
    return None
