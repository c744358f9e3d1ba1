"""The descheduler as the scenario configures it; by default it only lists what it would evict."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from roles.sandbox.compose import Sandbox


def config_file(sandbox: Sandbox, port: int) -> Path:
    """Write the scenario's configuration, with this run's addresses, into the run's scratch directory. JSON is YAML too."""
    address = f"127.0.0.1:{port}"
    config = {
        **sandbox.scenario.descheduler_configuration,
        "apiVersion": "descheduler/v1alpha2",
        "kind": "DeschedulerConfiguration",
        "healthzBindAddress": address,
        "metricsBindAddress": address,
        "leaderElection": {"leaderElect": False},
    }
    path = sandbox.scratch / "descheduler.yaml"
    path.write_bytes(orjson.dumps(config, option=orjson.OPT_INDENT_2))
    return path


async def start(sandbox: Sandbox) -> None:
    """Build the App on the sandbox's cache and let it live. Raises InvalidConfig."""
    from roles.descheduler.app import App
    from roles.descheduler.cli import read

    ops = sandbox.endpoint("descheduler")
    options = read(str(config_file(sandbox, 0)), {})
    recorder = sandbox.recorders["descheduler"]
    app = App(options, client=sandbox.client, informers=sandbox.informers, recorder=recorder, ops=ops, clock=time.time)
    await sandbox.serve("descheduler", app)


def arguments(sandbox: Sandbox) -> list[str]:
    """The same configuration as a flag."""
    return [f"--config={config_file(sandbox, sandbox.port('descheduler'))}", "--secure-port=0"]
