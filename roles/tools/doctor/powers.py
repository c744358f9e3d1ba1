"""What somebody with a stolen token of a role could do beyond the role's own work, and how the roles run. Pure but for what it is handed.

The table names what no role may have; `koord doctor --security` asks the cluster, and a test asks the manifests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from roles.tools.doctor.finding import Finding, fail, ok, warn
from roles.tools.doctor.rights import Question

Obj = dict[str, Any]
_RBAC = "rbac.authorization.k8s.io"
_WRITE = ("create", "update", "patch", "delete")
_PROGRAMS = (("apps", "deployments"), ("apps", "daemonsets"), ("apps", "statefulsets"), ("batch", "jobs"), ("batch", "cronjobs"))
_BINDINGS = ("roles", "clusterroles", "rolebindings", "clusterrolebindings")
_INSTALLED = (("apiextensions.k8s.io", "customresourcedefinitions"), ("admissionregistration.k8s.io", "validatingadmissionpolicies"))

NODES_PROXY = Question("get", "", "nodes", "proxy")
"""With it a token runs commands in every container of every node, and no admission policy sees it."""

POWERS: Mapping[str, tuple[Question, ...]] = {
    "run commands in containers": (NODES_PROXY, Question("create", "", "nodes", "proxy"), Question("create", "", "pods", "exec"),
                                   Question("get", "", "pods", "exec"), Question("create", "", "pods", "attach")),
    "reach into pods": (Question("get", "", "pods", "proxy"), Question("get", "", "services", "proxy"),
                        Question("create", "", "pods", "portforward"), Question("patch", "", "pods", "ephemeralcontainers")),
    "read the cluster's secrets": tuple(Question(verb, "", "secrets") for verb in ("get", "list", "watch")),
    "become somebody else": (Question("create", "", "serviceaccounts", "token"), Question("impersonate", "", "users"),
                             Question("impersonate", "", "groups"), Question("impersonate", "", "serviceaccounts"),
                             Question("update", "certificates.k8s.io", "certificatesigningrequests", "approval")),
    "give itself rights": tuple(Question(verb, _RBAC, kind) for kind in _BINDINGS for verb in ("create", "update", "patch"))
    + tuple(Question(verb, _RBAC, kind) for kind in _BINDINGS[:2] for verb in ("bind", "escalate")),
    "start programs": (Question("create", "", "pods"), Question("update", "", "pods"),
                       *(Question(verb, group, kind) for group, kind in _PROGRAMS for verb in _WRITE[:3])),
    "change what is installed": tuple(Question(verb, group, kind) for group, kind in _INSTALLED for verb in _WRITE),
    "take nodes away": tuple(Question(verb, "", "nodes") for verb in ("create", "update", "delete")),
}  # fmt: skip


def covers(held: Question, wanted: Question) -> bool:
    """Whether a rule that grants `held` to anything grants `wanted` to something."""
    pairs = ((held.verb, wanted.verb), (held.group, wanted.group), (held.resource, wanted.resource), (held.subresource, wanted.subresource))
    return all(have in (want, "*") for have, want in pairs)


def judge_powers(role: str, allowed: Iterable[Question], error: str = "") -> Iterator[Finding]:
    """What a stolen token of a role could do; every power is a failure."""
    area = f"token of {role}"
    if error:
        yield warn(area, f"what it may do could not be asked: {error}", "run it with an account that may review access or impersonate")
        return
    found = set(allowed)
    bad = False
    for power, wanted in POWERS.items():
        told = [str(question) for question in wanted if question in found]
        if told:
            bad = True
            yield fail(area, f"its holder could {power} ({', '.join(told)})", "remove this right; no manifest of koord grants it")
    if not bad:
        yield ok(area, f"its holder could do none of: {', '.join(POWERS)}")


def judge_workloads(workloads: Iterable[Obj], fenced: Iterable[str], registered: bool | None) -> Iterator[Finding]:
    """How the installed roles run. `fenced`: those with a NetworkPolicy; `registered`: whether the webhook of evictions is."""
    behind = set(fenced)
    for workload in workloads:
        name, pod = workload["metadata"]["name"], ((workload.get("spec") or {}).get("template") or {}).get("spec") or {}
        told = [text for container in pod.get("containers") or () for text in _loose(pod, container)]
        if name not in behind and not pod.get("hostNetwork"):
            told.append("no NetworkPolicy of its name")
        if told:
            yield warn(f"{name} as installed", "; ".join(told), "compare with koord install --print")
        else:
            yield ok(f"{name} as installed", "authenticates clients, is not privileged, and its image is pinned")
    if registered is False:
        how = "see that koord-manager runs with PodValidatingWebhook; it registers the webhook itself"
        yield fail("evictions of koordlets", "no webhook keeps them to their own node", how)
    elif registered:
        yield ok("evictions of koordlets", "kept to their own node by a webhook that fails closed")


def _loose(pod: Obj, container: Obj) -> Iterator[str]:
    security = container.get("securityContext") or {}
    if security.get("privileged"):
        yield "privileged"
    if any((volume.get("hostPath") or {}).get("path") == "/" for volume in pod.get("volumes") or ()):
        yield "all of / is mounted"
    seccomp = security.get("seccompProfile") or (pod.get("securityContext") or {}).get("seccompProfile") or {}
    if seccomp.get("type") not in ("RuntimeDefault", "Localhost"):
        yield "no seccomp profile"
    for argument in container.get("args") or ():
        flag, _, value = str(argument).partition("=")
        if flag.lstrip("-") == "authorization-always-allow-paths" and set(value.split(",")) - {"/healthz", "/readyz", "/livez"}:
            yield f"{argument} opens paths to everybody"
        if flag.lstrip("-") in ("enable-pprof", "profiling") and value in ("", "true"):
            yield f"{argument} serves profiling"
    image = str(container.get("image") or "")
    tag = image.rpartition("/")[2].partition(":")[2]
    if "@sha256:" not in image and tag in ("", "latest"):
        yield f"image {image} by a tag that moves"
