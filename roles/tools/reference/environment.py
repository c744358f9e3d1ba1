"""The environment variables that are read, who reads them, and what they mean (kept complete by a test)."""

from __future__ import annotations

from collections.abc import Mapping

VARIABLES: Mapping[str, tuple[str, str]] = {
    "KUBECONFIG": ("all", "Kubeconfig files, separated by `:`; looked at where no `--kubeconfig` is given."),
    "HOME": ("all", "`$HOME/.kube/config` is the last place that is looked at for a kubeconfig."),
    "KUBERNETES_SERVICE_HOST": ("all", "Address of the API server inside a pod; set by Kubernetes."),
    "KUBERNETES_SERVICE_PORT": ("all", "Its port; 443 where it is not set."),
    "HTTPS_PROXY": ("all", "Proxy towards an https API server, also in small letters; a kubeconfig's `proxy-url` goes before it."),
    "HTTP_PROXY": ("all", "Proxy towards an http API server, also in small letters."),
    "NO_PROXY": ("all", "Hosts, domains and networks that are reached without a proxy, also in small letters."),
    "POD_NAMESPACE": ("all", "Namespace of this process's pod: where the manager keeps its Secret and finds its Service."),
    "POD_NAME": ("all", "Name of this process's pod: part of its name in the Lease."),
    "POD_UID": ("all", "UID of this process's pod: a container that was restarted takes the Lease of its own pod over at once."),
    "OPENBLAS_NUM_THREADS": ("all", "Threads of the numeric library; 1 where it is not set."),
    "NODE_NAME": ("koordlet", "Name of this node, where `--node-name` is not given."),
    "agent_mode": ("koordlet", "`hostMode`: the machine's own directories; otherwise the mounts of a DaemonSet below `/host-*`."),
    "KOORD_RESTORE_REPORT": (
        "koordlet",
        "File that takes the report of `--restore`; single files that were not put back are then told there and not by the exit status.",
    ),
    "WEBHOOK_PORT": ("manager", "Port of the webhooks (9876)."),
    "WEBHOOK_HOST": (
        "manager",
        "Name or address by which the API server reaches the webhooks without a Service; certificates are then kept in files.",
    ),
    "WEBHOOK_CERT_DIR": ("manager", "Directory of the webhooks' certificate (/tmp/koordinator-webhook-certs)."),
    "WEBHOOK_CERT_WRITER": ("manager", "`secret` or `fs`: where the certificate is kept; by default a Secret, with WEBHOOK_HOST files."),
    "WEBHOOK_FAILURE_POLICY": (
        "manager",
        "`RESOURCE=Ignore` or `RESOURCE=Fail`, comma-separated: what the API server does while no webhook answers.",
    ),
    "WEBHOOK_TIMEOUT_SECONDS": (
        "manager",
        "How long the API server waits for an answer, 1 to 30 seconds; 0 or unset: the default of each.",
    ),
    "SERVICE_NAME": ("manager", "Service of the webhooks (koordinator-webhook-service)."),
    "SECRET_NAME": ("manager", "Secret of the certificate (koordinator-webhook-certs)."),
    "MUTATING_WEBHOOK_NAME": ("manager", "MutatingWebhookConfiguration that is kept (koordinator-mutating-webhook-configuration)."),
    "VALIDATING_WEBHOOK_NAME": ("manager", "ValidatingWebhookConfiguration that is kept (koordinator-validating-webhook-configuration)."),
    "KDD_ONESHOT": ("device-daemon", "As `--oneshot`."),
    "KDD_SLEEP_INTERVAL": ("device-daemon", "As `--sleep-interval`."),
    "KDD_PRINTS_OUTPUT_FILE": ("device-daemon", "As `--prints-output-file`."),
    "KDD_CONFIG_FILE": ("device-daemon", "As `--config-file`."),
    "NOTIFY_SOCKET": ("koordlet, runtime-proxy", "Socket of systemd that is told when the process is ready; set by systemd."),
    "WATCHDOG_USEC": ("koordlet, runtime-proxy", "How long systemd waits for a sign of life (`WatchdogSec=`); set by systemd."),
    "WATCHDOG_PID": ("koordlet, runtime-proxy", "The process that it waits for; set by systemd."),
    "KOORD_PLUGIN_DIRS": (
        "the frozen executables",
        "Directories made by `pip install --target`, separated by `:`, in which plugins with entry points are found.",
    ),
    "KOORD_UNPACK_DIR": ("koord-onefile", "Directory that it unpacks itself into, instead of the first usable one of its own list."),
    "KOORD_ENDPOINTS": ("why", "HTTP addresses of roles, separated by commas, where no `--endpoint` is given."),
    "XDG_RUNTIME_DIR": (
        "sandbox, why",
        "The sandbox keeps its state in `koord-sandbox` below it; without it in `/tmp/koord-sandbox-<uid>`.",
    ),
}
