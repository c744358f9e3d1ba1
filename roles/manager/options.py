"""The manager's options: one field a flag, with upstream's defaults (MGR-PROC-01)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from koord.config.errors import ConfigError, did_you_mean
from koord.config.gates import MANAGER, FeatureGates
from roles.manager.recommender.policy import Policy

CONTROLLERS = ("nodemetric", "noderesource", "nodeslo", "quotaprofile", "colocationprofile", "recommender", "abnormalnode")


@dataclass(frozen=True)
class WebhookOptions:
    """What the environment says about the webhook server. Port 0 takes a free one (tests)."""

    port: int = 9876
    address: str = "0.0.0.0"
    cert_dir: str = "/tmp/koordinator-webhook-certs"
    host: str = ""
    namespace: str = "koordinator-system"
    service: str = "koordinator-webhook-service"
    secret: str = "koordinator-webhook-certs"
    writer: str = ""
    mutating_name: str = "koordinator-mutating-webhook-configuration"
    validating_name: str = "koordinator-validating-webhook-configuration"
    failure_policy: tuple[tuple[str, str], ...] = ()
    """(resource of WEBHOOK_RESOURCES, Ignore or Fail): what holds instead of the registered failurePolicy."""
    timeout_seconds: int = 0
    """How long the API server waits for an answer; 0: as registered."""

    @property
    def dns_name(self) -> str:
        """The name that the API server dials and the certificate must carry."""
        return self.host or f"{self.service}.{self.namespace}.svc"

    @property
    def uses_files(self) -> bool:
        """Whether certificates are kept in files alone instead of a Secret."""
        return self.writer == "fs" or (not self.writer and bool(self.host))


@dataclass(frozen=True)
class Options:
    """Everything that the command line and the environment decide. Durations in seconds."""

    kubeconfig: str | None = None
    metrics_addr: str = ":8080"
    health_probe_addr: str = ":8000"
    enable_leader_election: bool = True
    leader_election_namespace: str = "koordinator-system"
    lease_duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0
    shutdown_delay: float = 5.0
    """How long webhooks are answered at most after the process was asked to end."""
    namespace: str = ""
    qps: float = 30.0
    burst: int = 50
    controllers: tuple[str, ...] = ("*",)
    noderesource_plugins: tuple[str, ...] = ("*",)
    config_namespace: str = "koordinator-system"
    slo_config_name: str = "slo-controller-config"
    node_strategy_name_need_check: bool = False
    enhanced_validator_namespace: str = "koordinator-system"
    enhanced_validator_name: str = "pod-enhanced-validator-config"
    enhanced_validator_interval: float = 300.0
    quota_update_max_retries: int = 3
    quota_update_retry_jitter: float = 0.0
    quota_update_max_total_jitter: float = 1.0
    quota_update_conflict_fresh_get: bool = False
    binding_user_name: tuple[str, ...] = ()
    binding_namespaces: tuple[str, ...] = ()
    binding_exclude_namespaces: tuple[str, ...] = ("kube-system",)
    binding_bypass_labels: tuple[str, ...] = ("koordinator.sh/binding-admission-bypass",)
    binding_bypass_annotations: tuple[str, ...] = ()
    binding_dry_run: bool = False
    allocation_writers: tuple[str, ...] = ()
    """Users, or `group:NAME`, that write allocations onto pods; empty: the scheduler of our namespace and administrators."""
    webhook_client_ca_file: str = ""
    """Authorities of the client certificates without which reviews are refused; empty: none is asked for."""
    webhook_client_allowed_names: tuple[str, ...] = ()
    """Common names of those certificates; empty: all."""
    profile_reconcile_by_default: bool = False
    profile_reconcile_interval: float = 30.0
    profile_force_update_duration: float = 300.0
    profile_expire_cache_duration: float = 600.0
    profile_update_qps: float = 10.0
    profile_update_burst: int = 100
    overcommit_smoothing: float = 0.0
    config_spread: float = 20.0
    """Percent of the nodes that an edit of slo-controller-config reaches in a minute; 0: all at once."""
    abnormal_node_interval: float = 15.0
    recommender: Policy = field(default_factory=Policy)
    gates: FeatureGates = field(default_factory=lambda: FeatureGates(MANAGER))
    webhook: WebhookOptions = field(default_factory=WebhookOptions)


# How failure policies are named, as in Koordinator's chart: the resource that a webhook's rules name.
WEBHOOK_RESOURCES = {
    "pods": "pods",
    "elasticquotas": "elasticquotas",
    "nodeStatus": "nodes/status",
    "nodes": "nodes",
    "reservations": "reservations",
    "configmaps": "configmaps",
}


def failure_policies(text: str) -> tuple[tuple[str, str], ...]:
    """`pods=Fail,nodes=Ignore`. Raises ConfigError for a resource or policy that is not known."""
    found = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, policy = (part.strip() for part in entry.partition("="))
        if name not in WEBHOOK_RESOURCES or policy not in ("Ignore", "Fail"):
            known = ", ".join(WEBHOOK_RESOURCES)
            raise ConfigError("WEBHOOK_FAILURE_POLICY", f"{entry!r} is not RESOURCE=Ignore or RESOURCE=Fail; resources: {known}")
        found.append((name, policy))
    return tuple(found)


def webhook_options(environ: Mapping[str, str] = os.environ) -> WebhookOptions:
    """Read the environment. Raises ConfigError for a bad port, writer, failure policy or timeout."""
    text = environ.get("WEBHOOK_PORT") or "9876"
    if not text.isascii() or not text.isdigit() or not 0 <= int(text) <= 65535:
        raise ConfigError("WEBHOOK_PORT", f"{text!r} is no port; 1 to 65535 is accepted")
    writer = environ.get("WEBHOOK_CERT_WRITER", "")
    if writer not in ("", "fs", "secret"):
        raise ConfigError("WEBHOOK_CERT_WRITER", f"{writer!r} is not known; accepted: fs, secret")
    timeout = environ.get("WEBHOOK_TIMEOUT_SECONDS") or "0"
    if not timeout.isascii() or not timeout.isdigit() or int(timeout) > 30:
        raise ConfigError("WEBHOOK_TIMEOUT_SECONDS", f"{timeout!r} is no timeout; 1 to 30 is accepted")
    base = WebhookOptions()
    return WebhookOptions(
        port=int(text),
        cert_dir=environ.get("WEBHOOK_CERT_DIR") or base.cert_dir,
        host=environ.get("WEBHOOK_HOST", ""),
        namespace=environ.get("POD_NAMESPACE") or base.namespace,
        service=environ.get("SERVICE_NAME") or base.service,
        secret=environ.get("SECRET_NAME") or base.secret,
        writer=writer,
        mutating_name=environ.get("MUTATING_WEBHOOK_NAME") or base.mutating_name,
        validating_name=environ.get("VALIDATING_WEBHOOK_NAME") or base.validating_name,
        failure_policy=failure_policies(environ.get("WEBHOOK_FAILURE_POLICY", "")),
        timeout_seconds=int(timeout),
    )


def selected(name: str, wanted: Iterable[str]) -> bool:
    """Whether a list like `*,-nodeslo` selects `name`: the first entry that mentions it decides, `*` otherwise."""
    star = False
    for entry in wanted:
        if entry == name:
            return True
        if entry == f"-{name}":
            return False
        star = star or entry == "*"
    return star


def check_list(flag: str, wanted: Iterable[str], known: tuple[str, ...]) -> tuple[str, ...]:
    """The list itself. Raises ConfigError naming an entry that is not known."""
    wanted = tuple(wanted)
    for entry in wanted:
        name = entry.removeprefix("-")
        if name != "*" and name not in known:
            raise ConfigError(flag, f"{name!r} is not known{did_you_mean(name, known) or '; accepted: *, ' + ', '.join(known)}")
    return wanted
