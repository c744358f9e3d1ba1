"""Resource claims, for clusters without kube-controller-manager: claims are made from the templates that pods name, and what was reserved
for pods that are gone or have ended is given back.
"""

from __future__ import annotations

from koord.apiserver.controllers.queue import Controller
from koord.apiserver.facts import ended
from koord.apiserver.rest.context import DeleteOptions, generated_name, prepare_create
from koord.apiserver.rest.delete import delete_now
from koord.apiserver.schema.lists import put_member
from koord.apiserver.store import DELETED, Entry, Event, Obj

FINALIZER = "resource.kubernetes.io/delete-protection"
POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
_PODS, _CLAIMS, _TEMPLATES = "/pods", "resource.k8s.io/resourceclaims", "resource.k8s.io/resourceclaimtemplates"
_LONGEST = 63 - 6  # characters of a name before its random end


class ClaimController(Controller[tuple[str, str]]):
    """Looks at pods with claims, at templates and at claims that are reserved. Keys are buckets and what lies in them."""

    def start(self) -> None:
        store = self.core.store
        for bucket in (_PODS, _CLAIMS):
            for key in store.bucket(bucket).entries:
                self.add((bucket, key))
        store.bucket(_PODS).listeners.append(self._on_pod)
        store.bucket(_TEMPLATES).listeners.append(self._on_template)
        store.bucket(_CLAIMS).listeners.append(self._on_claim)

    def work(self, key: tuple[str, str]) -> None:
        bucket, name = key
        (self._pod if bucket == _PODS else self._claim)(name)

    # -- observe -----------------------------------------------------------------------------------------------------------------

    def _on_pod(self, event: Event) -> None:
        pod = event.entry.obj
        named = _named(pod) or (pod.get("status") or {}).get("extendedResourceClaimStatus")
        if not named:
            return
        if event.type != DELETED and not ended(pod):
            self.add((_PODS, event.entry.key))
            return
        for entry in self.core.store.bucket(_CLAIMS).select(event.entry.namespace):
            self.add((_CLAIMS, entry.key))

    def _on_template(self, event: Event) -> None:
        if event.type != DELETED:
            for entry in self.core.store.bucket(_PODS).select(event.entry.namespace):
                if _named(entry.obj):
                    self.add((_PODS, entry.key))

    def _on_claim(self, event: Event) -> None:
        if event.type != DELETED:
            self.add((_CLAIMS, event.entry.key))

    # -- act ---------------------------------------------------------------------------------------------------------------------

    def _pod(self, key: str) -> None:
        """Make the claims of a pod that are missing, and tell the pod their names."""
        entry = self.core.store.bucket(_PODS).entries.get(key)
        if entry is None or ended(entry.obj) or entry.obj["metadata"].get("deletionTimestamp"):
            return
        told = {status["name"] for status in (entry.obj.get("status") or {}).get("resourceClaimStatuses") or ()}
        made = []
        for reference in _named(entry.obj):
            template = reference.get("resourceClaimTemplateName")
            if template and reference["name"] not in told:
                name = self._make(entry.obj, reference["name"], template)
                if name:
                    made.append({"name": reference["name"], "resourceClaimName": name})
        if made:
            pod = entry.copy()
            status = pod.setdefault("status", {})
            status["resourceClaimStatuses"] = [*(status.get("resourceClaimStatuses") or ()), *made]
            self.core.store.bucket(_PODS).put(entry.namespace, entry.name, pod)

    def _make(self, pod: Obj, reference: str, template_name: str) -> str:
        """A claim from a template; the one that was made before, where it is there. "" without the template."""
        meta, bucket = pod["metadata"], self.core.store.bucket(_CLAIMS)
        namespace = meta["namespace"]
        for entry in bucket.select(namespace):
            owners = entry.obj["metadata"].get("ownerReferences") or ()
            annotations = entry.obj["metadata"].get("annotations") or {}
            if annotations.get(POD_CLAIM) == reference and any(owner["uid"] == meta["uid"] for owner in owners):
                return entry.name
        template = self.core.store.bucket(_TEMPLATES).get(namespace, template_name)
        if template is None:
            return ""
        spec = template.copy()["spec"]
        base = f"{meta['name']}-{reference}-"[:_LONGEST]
        name = generated_name(base)
        own = spec.get("metadata") or {}
        owner = {
            "apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"], "controller": True, "blockOwnerDeletion": True,
        }  # fmt: skip
        claim: Obj = {
            "metadata": {
                "name": name, "generateName": base, "namespace": namespace, **({"labels": own["labels"]} if own.get("labels") else {}),
                "annotations": {**(own.get("annotations") or {}), POD_CLAIM: reference}, "ownerReferences": [owner],
            },
            "spec": spec.get("spec") or {},
        }  # fmt: skip
        resource = self.core.resources.builtin("resource.k8s.io", "resourceclaims")
        prepare_create(resource, claim["metadata"])
        bucket.put(namespace, name, {"kind": resource.kind, "apiVersion": resource.api_version, **claim})
        return name

    def _claim(self, key: str) -> None:
        """Give back what nobody uses any more, and delete a claim whose pod is done."""
        bucket = self.core.store.bucket(_CLAIMS)
        entry = bucket.entries.get(key)
        if entry is None:
            return
        status = entry.obj.get("status") or {}
        reserved = status.get("reservedFor") or []
        valid = [consumer for consumer in reserved if self._uses(entry.namespace, consumer)]
        going = bool(entry.obj["metadata"].get("deletionTimestamp"))
        owner = next((o for o in entry.obj["metadata"].get("ownerReferences") or () if o.get("controller")), None)
        done = owner is not None and not valid and not self._uses(entry.namespace, {**owner, "resource": "pods"})
        free = not valid and (len(valid) < len(reserved) or going or done)
        held = FINALIZER in (entry.obj["metadata"].get("finalizers") or ())
        if len(valid) < len(reserved) or (free and (held or status.get("allocation"))):
            self._write(entry, valid, free)
            entry = bucket.entries.get(key)
        if done and entry is not None and not entry.obj["metadata"].get("deletionTimestamp"):
            resource = self.core.resources.builtin("resource.k8s.io", "resourceclaims")
            delete_now(self.core, resource, entry, DeleteOptions(propagation="Background"))

    def _write(self, entry: Entry, reserved: list[Obj], free: bool) -> None:
        claim = entry.copy()
        status, meta = claim.setdefault("status", {}), claim["metadata"]
        put_member(status, "reservedFor", reserved)
        if free:
            status.pop("allocation", None)
            status.pop("devices", None)
            put_member(meta, "finalizers", [finalizer for finalizer in meta.get("finalizers") or () if finalizer != FINALIZER])
        self.core.settle(self.core.resources.builtin("resource.k8s.io", "resourceclaims"), entry, claim)

    def _uses(self, namespace: str, consumer: Obj) -> bool:
        """Whether a consumer is a pod that is there and has not ended; others are left alone."""
        if consumer.get("resource") != "pods" or consumer.get("apiGroup"):
            return True
        entry = self.core.store.bucket(_PODS).get(namespace, consumer["name"])
        if entry is None or entry.obj["metadata"]["uid"] != consumer.get("uid"):
            return False
        pod = entry.obj
        return not ended(pod) and (bool(pod["spec"].get("nodeName")) or not pod["metadata"].get("deletionTimestamp"))


def _named(pod: Obj) -> list[Obj]:
    return pod["spec"].get("resourceClaims") or []
