"""`koord manager`: flags only (MGR-PROC-01)."""

from __future__ import annotations

from typing import Any

import click

from koord.config.errors import ConfigError
from koord.config.gates import MANAGER, FeatureGates
from koord.process.decisionlog import decision_log_options
from koord.process.errors import ConfigurationError
from koord.process.flags import (
    CommaList,
    FlagError,
    HostPortAddress,
    always_allow_option,
    bool_option,
    common_options,
    duration_option,
    gates_option,
    go_command,
)
from roles.manager.options import CONTROLLERS
from roles.manager.recommender.flags import policy_options

_PLUGINS = ("CPUNormalization", "ResourceAmplification", "MidResource", "BatchResource", "GPUDeviceResource", "RDMADeviceResource")


_SECTIONS = {
    "metrics-addr": "Ports",
    "enable-leader-election": "Leader election and shutdown",
    "namespace": "Controllers",
    "tls-cert-file": "Ports",
    "sync-period": "API server",
    "controllers": "Controllers",
    "quota-update-max-retries": "Webhooks",
    "colocation-profile-reconcile-by-default": "Controllers",
    "recommender-interval": "Recommender",
    "validate-config": "Other",
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
@bool_option("--enable-leader-election", default=True, help="Run the controllers on one replica only.")
@click.option("--leader-election-namespace", default="koordinator-system", show_default=True, help="Namespace of the Lease.")
@click.option("--leader-elect-resource-lock", type=click.Choice(["leases"]), default="leases", show_default=True, help="Kind of lock.")
@duration_option("--leader-elect-lease-duration", default=15.0, help="How long a Lease holds without renewal.")
@duration_option("--leader-elect-renew-deadline", default=10.0, help="How long the leader tries to renew before it gives up.")
@duration_option("--leader-elect-retry-period", default=2.0, help="Time between tries.")
@duration_option(
    "--shutdown-delay-duration",
    default=5.0,
    help="Longest time that webhooks are still answered after a signal to end, while the endpoint goes out of the Service.",
)
@click.option("--namespace", default="", help="Look at the pods of one namespace only.")
@click.option("--tls-cert-file", metavar="FILE", default="", help="Certificate of these ports; without it one is made.")
@click.option("--tls-private-key-file", metavar="FILE", default="", help="Its key.")
@always_allow_option
@bool_option("--enable-pprof", help="Serve /debug/tasks and /debug/flags on --pprof-addr.")
@click.option("--pprof-addr", type=HostPortAddress, default=":8090", show_default=True, help="Where the profiling pages are served.")
@click.option("--sync-period", default="", help="Accepted for compatibility: informers are kept whole by their watch.")
@click.option("--rest-config-qps", type=float, default=30.0, show_default=True, help="Requests a second to the API server; 0: no limit.")
@click.option("--rest-config-burst", type=int, default=50, show_default=True, help="Requests at once.")
@click.option("--controllers", type=CommaList, default="*", show_default=True, help=f"`*`, a name or `-name`: {', '.join(CONTROLLERS)}.")
@click.option(
    "--noderesource-plugins", type=CommaList, default="*", show_default=True, help=f"`*`, a name or `-name`: {', '.join(_PLUGINS)}."
)
@gates_option()
@click.option("--config-namespace", default="koordinator-system", show_default=True, help="Namespace of the ConfigMap.")
@click.option("--slo-config-name", default="slo-controller-config", show_default=True, help="Name of the ConfigMap.")
@bool_option("--node-strategy-name-need-check", default=False, help="Node strategy names must be set and unique.")
@click.option(
    "--pod-enhanced-validator-config-namespace", default="koordinator-system", show_default=True, help="Namespace of its ConfigMap."
)
@click.option("--pod-enhanced-validator-config-name", default="pod-enhanced-validator-config", show_default=True, help="Its ConfigMap.")
@duration_option("--pod-enhanced-validator-reconcile-interval", default=300.0, help="How often its ConfigMap is read.")
@click.option("--quota-update-max-retries", type=int, default=3, show_default=True, help="Tries to write a quota; 10 with many replicas.")
@duration_option("--quota-update-retry-jitter", default=0.0, help="Pause between those tries; 50ms with many replicas.")
@duration_option("--quota-update-max-total-jitter", default=1.0, help="Most that those pauses may add up to.")
@bool_option("--quota-update-conflict-fresh-get", default=False, help="Read a quota anew after a conflict.")
@click.option("--binding-admission-user-name", type=CommaList, default="", help="Users that may bind pods (part of the name).")
@click.option("--binding-admission-namespaces", type=CommaList, default="", help="Namespaces that the rule holds for; `*` for all.")
@click.option(
    "--binding-admission-exclude-namespaces", type=CommaList, default="kube-system", show_default=True, help="Namespaces without it."
)
@click.option(
    "--binding-admission-bypass-labels",
    type=CommaList,
    default="koordinator.sh/binding-admission-bypass",
    show_default=True,
    help="Pods with one of these labels may be bound by anybody.",
)
@click.option("--binding-admission-bypass-annotations", type=CommaList, default="", help="The same for annotations.")
@bool_option("--binding-admission-dry-run", default=False, help="Count what would be denied, and allow it.")
@click.option(
    "--allocation-writers",
    type=CommaList,
    default="",
    help="Users (or group:NAME) that may write allocations onto pods; by default koord-scheduler, kube-scheduler and group:system:masters.",
)
@click.option(
    "--webhook-client-ca-file",
    metavar="FILE",
    default="",
    help="Authorities of API servers' client certificates; with it, reviews of callers without one are refused.",
)
@click.option("--webhook-client-allowed-names", type=CommaList, default="", help="Common names of those certificates; empty for all.")
@bool_option("--colocation-profile-reconcile-by-default", default=False, help="Apply every profile to waiting pods, not marked ones only.")
@duration_option("--colocation-profile-reconcile-interval", default=30.0, help="How often waiting pods are looked at.")
@duration_option("--colocation-profile-force-update-pod-duration", default=300.0, help="How long a handled pod is left alone.")
@duration_option("--colocation-profile-expire-pod-cache-duration", default=600.0, help="How often the memory of handled pods is swept.")
@click.option("--colocation-profile-update-pod-qps", type=float, default=10.0, show_default=True, help="Pods changed a second.")
@click.option("--colocation-profile-update-pod-burst", type=int, default=100, show_default=True, help="Pods changed at once.")
@duration_option("--overcommit-smoothing", default=0.0, help="In which time batch and mid go half of the way to a new amount; 0: at once.")
@click.option(
    "--config-spread",
    type=click.FloatRange(0, 100),
    default=20.0,
    show_default=True,
    help="Percent of the nodes that an edit of slo-controller-config reaches in a minute; 0: all at once.",
)
@duration_option("--abnormal-node-interval", default=15.0, help="How often nodes are judged (gate AbnormalNodes).")
@duration_option("--recommender-interval", default=60.0, help="How often usage is looked at.")
@policy_options
@click.option("--recommender-prometheus-address", default="", help="Prometheus that is asked for eight days of history, http(s)://...")
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


__all__ = ["ConfigurationError", "command"]
