"""Health checks by name: what is well, what is not yet, and what it means for the process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Probe = Callable[[], "tuple[bool, str]"]


@dataclass(slots=True)
class Check:
    """One check. `gate`: `/healthz` waits for it; `live`: failing means that the process should be restarted (`/livez`)."""

    ok: bool = False
    detail: str = "not reported yet"
    gate: bool = False
    live: bool = False
    probe: Probe | None = None

    def look(self) -> tuple[bool, str]:
        """State now; a probe that raises is a failed check."""
        if self.probe is None:
            return self.ok, self.detail
        try:
            return self.probe()
        except Exception as error:  # a broken probe is an answer
            return False, f"{type(error).__name__}: {error}"


class Health:
    """All checks of a process. `/healthz` asks for gates and live checks, `/livez` for live ones, `/readyz` for all."""

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}

    def register(self, name: str, *, gate: bool = False, live: bool = False, probe: Probe | None = None) -> None:
        """Announce a check, failing until it is set (or by what `probe()` returns: ok and a detail)."""
        self._checks[name] = Check(gate=gate, live=live, probe=probe)

    def set(self, name: str, ok: bool, detail: str = "") -> None:
        """Report a check; one that was not registered counts for `/readyz` only."""
        check = self._checks.setdefault(name, Check())
        check.ok, check.detail = ok, detail

    def report(self, path: str, *, excluded: frozenset[str] = frozenset()) -> tuple[bool, list[tuple[str, bool, str]]]:
        """Whether the path ("healthz", "livez", "readyz") is well, and its checks as (name, ok, detail)."""
        rows = []
        for name, check in self._checks.items():
            wanted = check.live or path == "readyz" or (path == "healthz" and check.gate)
            if wanted and name not in excluded:
                rows.append((name, *check.look()))
        return all(ok for _, ok, _ in rows), rows
