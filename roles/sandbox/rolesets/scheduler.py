"""The scheduler with its default profile, named koord-scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roles.sandbox.compose import Sandbox


async def start(sandbox: Sandbox) -> None:
    """Build the App on the sandbox's client and cache and let it live. Raises ConfigurationError."""
    from roles.scheduler.app import App
    from roles.scheduler.options import Options

    ops = sandbox.endpoint("scheduler")
    app = App(Options(), client=sandbox.client, informers=sandbox.informers, recorder=sandbox.recorders["scheduler"], ops=ops)
    sandbox.life.spawn(app.run(sandbox.life), "scheduler")


def arguments(sandbox: Sandbox) -> list[str]:
    """The same settings as flags."""
    return [f"--secure-port={sandbox.port('scheduler')}", "--leader-elect=false"]
