"""The manager's options: a field is a flag, with upstream's name and default (MGR-PROC-01)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import click

from koord.api.names import LABEL_BINDING_ADMISSION_BYPASS
from koord.config.errors import ConfigError, did_you_mean
from koord.config.gates import MANAGER, FeatureGates
from koord.process.flags import Duration, flag
from roles.manager.noderesource.plan import PLUGIN_NAMES
from roles.manager.recommender.policy import Policy

CONTROLLERS = ("nodemetric", "noderesource", "nodeslo", "quotaprofile", "colocationprofile", "recommender", "abnormalnode", "deviceslices")


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
    """What controllers and webhooks are told on the command line and by the environment. Durations in seconds."""

    enable_leader_election: bool = flag(True, "Run the controllers on one replica only.")
    leader_election_namespace: str = flag("koordinator-system", "Namespace of the Lease.")
    lease_duration: float = flag(15.0, "How long a Lease holds without renewal.", "leader-elect-lease-duration", type=Duration)
    renew_deadline: float = flag(
        10.0, "How long the leader tries to renew before it gives up.", "leader-elect-renew-deadline", type=Duration
    )
    retry_period: float = flag(2.0, "Time between tries.", "leader-elect-retry-period", type=Duration)
    shutdown_delay: float = flag(
        5.0,
        "Longest time that webhooks are still answered after a signal to end, while the endpoint goes out of the Service.",
        "shutdown-delay-duration",
        type=Duration,
    )
    qps: float = flag(30.0, "Requests a second to the API server; 0: no limit.", "rest-config-qps")
    burst: int = flag(50, "Requests at once.", "rest-config-burst")
    namespace: str = flag("", "Look at the pods of one namespace only.")
    controllers: tuple[str, ...] = flag(("*",), f"`*`, a name or `-name`: {', '.join(CONTROLLERS)}.")
    noderesource_plugins: tuple[str, ...] = flag(("*",), f"`*`, a name or `-name`: {', '.join(PLUGIN_NAMES)}.")
    config_namespace: str = flag("koordinator-system", "Namespace of the ConfigMap.")
    slo_config_name: str = flag("slo-controller-config", "Name of the ConfigMap.")
    node_strategy_name_need_check: bool = flag(False, "Node strategy names must be set and unique.")
    enhanced_validator_namespace: str = flag("koordinator-system", "Namespace of its ConfigMap.", "pod-enhanced-validator-config-namespace")
    enhanced_validator_name: str = flag("pod-enhanced-validator-config", "Its ConfigMap.", "pod-enhanced-validator-config-name")
    enhanced_validator_interval: float = flag(
        300.0, "How often its ConfigMap is read.", "pod-enhanced-validator-reconcile-interval", type=Duration
    )
    quota_update_max_retries: int = flag(3, "Tries to write a quota; 10 with many replicas.")
    quota_update_retry_jitter: float = flag(0.0, "Pause between those tries; 50ms with many replicas.", type=Duration)
    quota_update_max_total_jitter: float = flag(1.0, "Most that those pauses may add up to.", type=Duration)
    quota_update_conflict_fresh_get: bool = flag(False, "Read a quota again after a conflict.")
    binding_user_name: tuple[str, ...] = flag((), "Users that may bind pods (part of the name).", "binding-admission-user-name")
    binding_namespaces: tuple[str, ...] = flag((), "Namespaces that the rule holds for; `*` for all.", "binding-admission-namespaces")
    binding_exclude_namespaces: tuple[str, ...] = flag(("kube-system",), "Namespaces without it.", "binding-admission-exclude-namespaces")
    binding_bypass_labels: tuple[str, ...] = flag(
        (LABEL_BINDING_ADMISSION_BYPASS,), "Pods with one of these labels may be bound by anybody.", "binding-admission-bypass-labels"
    )
    binding_bypass_annotations: tuple[str, ...] = flag((), "The same for annotations.", "binding-admission-bypass-annotations")
    binding_dry_run: bool = flag(False, "Count what would be denied, and allow it.", "binding-admission-dry-run")
    allocation_writers: tuple[str, ...] = flag(
        (),
        "Users (or group:NAME) that may write allocations onto pods; by default koord-scheduler, kube-scheduler and group:system:masters.",
    )
    webhook_client_ca_file: str = flag(
        "", "Authorities of API servers' client certificates; with it, reviews of callers without one are refused.", metavar="FILE"
    )
    webhook_client_allowed_names: tuple[str, ...] = flag((), "Common names of those certificates; empty for all.")
    profile_reconcile_by_default: bool = flag(
        False, "Apply every profile to waiting pods, not marked ones only.", "colocation-profile-reconcile-by-default"
    )
    profile_reconcile_interval: float = flag(
        30.0, "How often waiting pods are looked at.", "colocation-profile-reconcile-interval", type=Duration
    )
    profile_force_update_duration: float = flag(
        300.0, "How long a handled pod is left alone.", "colocation-profile-force-update-pod-duration", type=Duration
    )
    profile_expire_cache_duration: float = flag(
        600.0, "How often the memory of handled pods is swept.", "colocation-profile-expire-pod-cache-duration", type=Duration
    )
    profile_update_qps: float = flag(10.0, "Pods changed a second.", "colocation-profile-update-pod-qps")
    profile_update_burst: int = flag(100, "Pods changed at once.", "colocation-profile-update-pod-burst")
    overcommit_smoothing: float = flag(0.0, "In which time batch and mid go half of the way to a new amount; 0: at once.", type=Duration)
    config_spread: float = flag(
        20.0,
        "Percent of the nodes that an edit of slo-controller-config reaches in a minute; 0: all at once.",
        type=click.FloatRange(0, 100),
    )
    abnormal_node_interval: float = flag(15.0, "How often nodes are judged (gate AbnormalNodes).", type=Duration)
    recommender: Policy = field(default_factory=Policy)
    gates: FeatureGates = field(default_factory=lambda: FeatureGates(MANAGER))
    webhook: WebhookOptions = field(default_factory=WebhookOptions)


# How failure policies are named, as in Koordinator's chart: the resources that the webhooks' rules name.
WEBHOOK_RESOURCES = {
    "pods": ("pods", "pods/resize"),
    "elasticquotas": ("elasticquotas",),
    "nodeStatus": ("nodes/status",),
    "nodes": ("nodes",),
    "reservations": ("reservations",),
    "configmaps": ("configmaps",),
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


def checked(options: Options) -> Options:
    """The options themselves. Raises ConfigError naming the flag whose number cannot be used."""
    for flag_, seconds in (
        ("--colocation-profile-reconcile-interval", options.profile_reconcile_interval),
        ("--pod-enhanced-validator-reconcile-interval", options.enhanced_validator_interval),
        ("--abnormal-node-interval", options.abnormal_node_interval),
    ):
        if not seconds > 0:
            raise ConfigError(flag_, "must be more than 0")
    for flag_, number in (
        ("--quota-update-max-retries", options.quota_update_max_retries),
        ("--quota-update-retry-jitter", options.quota_update_retry_jitter),
        ("--quota-update-max-total-jitter", options.quota_update_max_total_jitter),
        ("--colocation-profile-update-pod-qps", options.profile_update_qps),
        ("--colocation-profile-update-pod-burst", options.profile_update_burst),
        ("--overcommit-smoothing", options.overcommit_smoothing),
        ("--shutdown-delay-duration", options.shutdown_delay),
        ("--config-spread", options.config_spread),
    ):
        if not number >= 0:
            raise ConfigError(flag_, "must not be negative")
    return options


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
