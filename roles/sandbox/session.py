"""One run of the sandbox: what was asked for, and what is known of it so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from roles.sandbox import others, scenario, state
from roles.sandbox.localnode import LocalNode


@dataclass(frozen=True, slots=True)
class Settings:
    """The command line of `up` and `demo`."""

    scenario: str | None
    nodes: int | None
    local_node: bool
    roles_as_processes: bool
    verbosity: int
    measuring: bool = False
    """Look at the machine first: how much of it is free, and whether anything can be measured."""
    plugin_paths: tuple[str, ...] = ()
    """Files and folders with scheduler plugins of the user's own."""
    scheduler_config: str | None = None
    """A KubeSchedulerConfiguration in place of the scenario's."""
    force: bool = False
    """Measure on this machine all the same, and fail if that cannot be done."""


@dataclass(slots=True)
class Session:
    """One run from its registration to its end."""

    settings: Settings
    scenario: scenario.Scenario
    store: state.State
    run: state.Run
    scratch: Path
    local: LocalNode | None
    began: float
    without: str = ""
    """Why this machine is not a node; empty when it is."""
    look: others.Look | None = None
    """What was seen of the machine before the start; None when nobody looked."""
    restored: bool | None = None
    cut: int = 0
    """The signal that ended the run before it had shown what it was for; 0 where none did."""
    errors: list[str] = field(default_factory=list)
