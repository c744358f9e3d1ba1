"""The manager: controllers and webhooks. The embedded API server dials the webhooks by their URL on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roles.sandbox.compose import Sandbox


async def start(sandbox: Sandbox) -> None:
    """Build the App on the sandbox's client and cache and let it live. Raises ConfigurationError."""
    from koord.config.gates import MANAGER, FeatureGates
    from roles.manager.app import App
    from roles.manager.options import Options, WebhookOptions

    ops = sandbox.endpoint("manager")
    webhook = WebhookOptions(
        port=sandbox.port("webhook"), address="127.0.0.1", host="127.0.0.1", cert_dir=str(sandbox.scratch / "webhook-certs"), writer="fs"
    )
    gates = FeatureGates(MANAGER)
    gates.set_from_flag(sandbox.scenario.manager.feature_gates)
    options = Options(enable_leader_election=False, shutdown_delay=0.0, webhook=webhook, gates=gates)  # nothing balances load here
    app = App(options, client=sandbox.client, informers=sandbox.informers, recorder=sandbox.recorders["manager"], ops=ops)
    await sandbox.serve("manager", app)


def arguments(sandbox: Sandbox) -> list[str]:
    """The same settings as flags; the webhook server takes its own from the environment."""
    sandbox.environment["manager"] = {
        "WEBHOOK_PORT": str(sandbox.port("webhook")),
        "WEBHOOK_HOST": "127.0.0.1",
        "WEBHOOK_CERT_DIR": str(sandbox.scratch / "webhook-certs"),
        "WEBHOOK_CERT_WRITER": "fs",
    }
    port = sandbox.port("manager")
    return [
        f"--metrics-addr=127.0.0.1:{port}",
        f"--health-probe-addr=127.0.0.1:{sandbox.port('manager-health')}",
        "--enable-leader-election=false",
        "--shutdown-delay-duration=0s",
        "--enable-pprof=false",
        f"--feature-gates={sandbox.scenario.manager.feature_gates}",
    ]
