"""The manifests that koord is installed with: read, adapted, ordered. Pure but for reading the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from koord.api.kinds import BY_KIND, Kind
from koord.version import VERSION
from roles.koordlet.rights import COMPONENTS
from roles.tools import kustomize
from roles.tools.place import SYSTEM_NAMESPACE

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
NAMESPACE = SYSTEM_NAMESPACE
IMAGE = f"ghcr.io/koordinator-sh/koord:v{VERSION}"
PARTS = ("manager", "scheduler", "descheduler", "koordlet")
OVERLAYS = ("single", "ha", "observe", "koordlet-observe", "monitoring", "open-ports", *COMPONENTS)
"""Folders of configs/components, each of which changes or adds to what is installed."""
OPTIONAL = ("older-kubelets", "koordlet-guard")
"""Folders of configs/optional: what is applied on purpose only, beside the rest."""
LEASES = ("koordinator-manager", "koord-scheduler", "koord-descheduler")
KINDS = BY_KIND | {
    kind.kind: kind
    for kind in (
        Kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", True),
        Kind("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules", True),
        Kind("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors", True),
        Kind("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", False),
        Kind("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", False),
    )
}
"""Every kind of the manifests, and those that koord talks about otherwise."""
_ENFORCE = "pod-security.kubernetes.io/enforce"

Obj = dict[str, Any]


def documents(directory: str) -> list[Obj]:
    """All objects of a folder of configs/, in the order in which its kustomization lists them."""
    return kustomize.build(CONFIGS / directory)


def rendered(
    *,
    image: str = IMAGE,
    namespace: str = NAMESPACE,
    crds: bool = True,
    without: frozenset[str] = frozenset(),
    only: frozenset[str] = frozenset(),
    overlays: tuple[str, ...] = (),
) -> list[Obj]:
    """What is applied, in that order. `without` leaves out parts with their accounts and rights; `overlays`: of OVERLAYS, OPTIONAL.

    `only` leaves out what these parts share with others, too: a cluster has that, and there it may be as other parts need it.
    """
    found = documents("install")
    for name in overlays:
        found = kustomize.apply(CONFIGS / ("optional" if name in OPTIONAL else "components") / name, found)
    parts = only or frozenset({"", *PARTS}) - without
    found = [_adapted(document, image, namespace) for document in found if _part(document) in parts]
    if "koordlet" in without:
        _restrict(found)
    return [*(documents("crds") if crds else ()), *found]


def _part(document: Obj) -> str:
    if document["kind"] == "ConfigMap" and document["metadata"]["name"].startswith("koord-dashboard-"):
        return ""
    name = document["metadata"]["name"]
    for part in PARTS:
        if name == part or name.startswith((f"koord-{part}", f"{part}-")):
            return part
    return "manager" if name == "koordinator-webhook-service" else ""


def _restrict(documents: list[Obj]) -> None:
    """Only koordlet needs more than Pod Security level "restricted" allows."""
    for document in documents:
        if document["kind"] == "Namespace":
            document["metadata"]["labels"][_ENFORCE] = "restricted"


def _adapted(value: Any, image: str, namespace: str) -> Any:
    """The namespace and the image replaced wherever they stand, in texts within texts too."""
    if isinstance(value, dict):
        return {key: _adapted(item, image, namespace) for key, item in value.items()}
    if isinstance(value, list):
        return [_adapted(item, image, namespace) for item in value]
    if isinstance(value, str):
        return value.replace(NAMESPACE, namespace).replace(IMAGE, image)  # in this order: an image may be named like the namespace
    return value


def text(objects: list[Obj]) -> str:
    """As one YAML stream."""
    return "---\n".join(yaml.safe_dump(obj, sort_keys=False, width=140) for obj in objects)
