"""`koord manager`: flags only (MGR-PROC-01)."""

from __future__ import annotations

from typing import Any

import click

from koord.config.errors import ConfigError
from koord.config.gates import MANAGER, FeatureGates
from koord.process.decisionlog import decision_log_options
from koord.process.flags import (
    FlagError,
    HostPortAddress,
    always_allow_option,
    bool_option,
    common_options,
    flags_of,
    gates_option,
    go_command,
)
from roles.manager.options import Options
from roles.manager.recommender.policy import Policy

_SECTIONS = {
    "metrics-addr": "Ports",
    "leader-elect-resource-lock": "Leader election and shutdown",
    "rest-config-qps": "API server",
    "namespace": "Controllers",
    "quota-update-max-retries": "Webhooks",
    "colocation-profile-reconcile-by-default": "Controllers",
    "feature-gates": "Controllers",
    "recommender-interval": "Recommender",
    "sync-period": "Other",
}


@go_command("manager", sections=_SECTIONS)
@decision_log_options
@common_options
@click.option(
    "--metrics-addr", type=HostPortAddress, default=":8080", show_default=True, help="Where /metrics is served; 0 switches it off."
)
@click.option(
    "--health-probe-addr", type=HostPortAddress, default=":8000", show_default=True, help="Where /healthz and /readyz are served."
)
@click.option("--tls-cert-file", metavar="FILE", default="", help="Certificate of these ports; without it one is made.")
@click.option("--tls-private-key-file", metavar="FILE", default="", help="Its key.")
@always_allow_option
@bool_option("--enable-pprof", help="Serve /debug/tasks and /debug/flags on --pprof-addr.")
@click.option("--pprof-addr", type=HostPortAddress, default=":8090", show_default=True, help="Where the profiling pages are served.")
@click.option("--leader-elect-resource-lock", type=click.Choice(["leases"]), default="leases", show_default=True, help="Kind of lock.")
@flags_of(Options)
@gates_option()
@flags_of(Policy)
@click.option("--sync-period", default="", help="Accepted for compatibility: informers are kept whole by their watch.")
@bool_option("--validate-config", default=False, help="Check the flags and the environment, and exit.")
@bool_option("--disable-no-deepcopy", default=False, help="Accepted for compatibility: caches are never copied.")
def command(**flags: Any) -> None:
    """Run the co-location controllers and the admission webhooks."""
    from koord.process.life import run
    from roles.manager.main import options_of, serve

    gates = FeatureGates(MANAGER)
    try:
        gates.set_from_flag(flags.pop("feature_gates"))
    except ConfigError as error:
        raise FlagError(str(error), click.get_current_context()) from None
    if flags.pop("validate_config"):
        options_of(flags, gates)
        click.echo("the flags and the environment: valid")
        return
    raise SystemExit(run(lambda life: serve(life, flags, gates), name="koord manager"))
