"""Which volume a claim is bound to, for whoever limits disks by volume (KLO-SI-06)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koord.api.kinds import PERSISTENTVOLUMECLAIMS
from koord.api.objects_meta import ObjectMeta, Projection

if TYPE_CHECKING:
    from koord.kube.informers import InformerFactory


class _Spec(Projection):
    volume_name: str = ""


class _Claim(Projection):
    """The two things of a claim that matter here; a cluster has thousands of claims, every node watches them all."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _Spec = _Spec()


def _lean(claim: _Claim) -> _Claim:
    meta = claim.metadata
    lean = ObjectMeta(name=meta.name, namespace=meta.namespace, uid=meta.uid, resource_version=meta.resource_version)
    return _Claim(metadata=lean, spec=claim.spec)


class ClaimVolumes:
    """Follows the claims of all namespaces.

    A deleted claim is forgotten: Kubernetes keeps a claim while a pod uses it, so none that matters is missed.
    """

    def __init__(self, informers: InformerFactory) -> None:
        self._claims = informers.informer(PERSISTENTVOLUMECLAIMS, _Claim, transform=_lean)

    @property
    def synced(self) -> bool:
        return self._claims.synced

    def volume_name(self, namespace: str, claim: str) -> str:
        """Name of the PersistentVolume, "" for a claim that is unknown or not bound."""
        found = self._claims.get(f"{namespace}/{claim}")
        return found.spec.volume_name if found is not None else ""
