"""One object of a cluster: its schema, its labels and annotations, what the webhooks say, and what only its kind has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from koord.api import names
from koord.api.kinds import RESERVATIONS
from koord.api.objects import ClusterColocationProfile, convert
from koord.api.selectors import SelectorError, from_label_selector
from koord.apiserver.resources import Resource
from koord.config.errors import unknown_field
from roles.manager.webhooks.profiles import apply_metadata, compile_profile, probability
from roles.tools.lint import configmaps, meaning, protocol
from roles.tools.lint.admission import Admission, path_in
from roles.tools.lint.finding import Finding, Level
from roles.tools.lint.schema import Schemas
from roles.tools.lint.sources import Document, join, mapping, part_of, within

Obj = dict[str, Any]
_SAMPLE: Obj = {
    "apiVersion": "v1",
    "kind": "Pod",
    "spec": {"containers": [{"name": "main", "image": "any", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]},
}
"""What a profile is tried on: a pod that asks for a whole core, so that no class is refused for its requests."""


class Objects:
    """Checks objects against the definitions and against one another."""

    def __init__(self, schemas: Schemas, admission: Admission) -> None:
        self.schemas = schemas
        self.admission = admission

    async def check(self, document: Document, resource: Resource) -> list[Finding]:
        """Everything that is wrong with an object, but for quotas among one another."""
        stored, found = await self.schemas.check(document, resource)
        found += protocol.check(document, document.data.get("metadata"), "metadata")
        kind = document.data.get("kind")
        if kind == "ConfigMap" and configmaps.is_slo_config(document.data):
            found += configmaps.check(document)
        elif kind == "ClusterColocationProfile":
            found += await self._profile(document, stored)
        found += meaning.check(document, stored if stored is not None else document.data)
        if stored is not None and kind in ("Pod", "Reservation"):
            found += await self._admission(document, stored, found)
        found += await self._template(document)
        if kind == "PodMigrationJob":
            found += await self._successor(document)
        return found

    async def quota(self, document: Document, *, alone: bool) -> list[Finding]:
        """An ElasticQuota among those checked before it. `alone`: its parent is not among the files."""
        obj = document.data
        if alone:
            labels = {key: value for key, value in obj["metadata"]["labels"].items() if key != names.LABEL_QUOTA_PARENT}
            obj = {**obj, "metadata": {**obj["metadata"], "labels": labels}}
        return await self._admission(document, obj)

    async def _admission(self, document: Document, obj: Obj, known: Iterable[Finding] = ()) -> list[Finding]:
        """What the webhooks refuse, but for what is ``known`` of the inside of an annotation: with its line there."""
        found = []
        inside = [one.path for one in known]
        for message in await self.admission.admit(obj):
            path = path_in(message)
            full = join(document.base, path)
            if any(one.startswith((f"{full}.", f"{full}[")) for one in inside):
                continue
            found.append(document.finding(message.removeprefix(f"{path}: "), path))
        return found

    async def _template(self, document: Document) -> list[Finding]:
        """The pods that an object makes."""
        template = protocol.template_of(document.data)
        if template is None:
            return []
        path, data = template
        meta = mapping(document.data.get("metadata"))
        own = {**mapping(data.get("metadata")), "name": meta.get("name") or "pod", "namespace": meta.get("namespace") or "default"}
        part = within(document, path, {"apiVersion": "v1", "kind": "Pod", "metadata": own, "spec": data.get("spec") or {}})
        found = list(protocol.check(part, data.get("metadata"), "metadata"))
        resource = self.schemas.resource(part.data)
        assert resource is not None
        stored, told = await self.schemas.check(part, resource)
        if document.data.get("kind") in ("Reservation", "PodMigrationJob"):
            # Their schema lets everything through; what a pod needs to run is not asked of it.
            return found + [one for one in told if one.message.startswith("unknown field")]
        found += [one for one in told if one.level is Level.WARNING]
        if stored is not None:
            found += await self._admission(part, stored, found)
        return found + list(meaning.check(part, part.data))

    async def _successor(self, document: Document) -> list[Finding]:
        """The Reservation that a PodMigrationJob describes, which its own schema lets through as it is."""
        path = "spec.reservationOptions.template"
        node = part_of(document.data, path)
        if not isinstance(node, dict):
            return []
        found = [
            document.finding(unknown_field(key, ("metadata", "spec")), f"{path}.{key}", key=True)
            for key in node
            if key not in ("metadata", "spec", "status")
        ]
        meta = {**mapping(node.get("metadata")), "name": "successor"}
        made = {"apiVersion": RESERVATIONS.api_version, "kind": RESERVATIONS.kind, "metadata": meta, "spec": node.get("spec") or {}}
        resource = self.schemas.resource(made)
        assert resource is not None
        _, told = await self.schemas.check(within(document, path, made), resource)
        # Owners and expiry are filled in by the descheduler.
        return found + [one for one in told if one.message.startswith("unknown field")]

    async def _profile(self, document: Document, stored: Obj | None) -> list[Finding]:
        """A ClusterColocationProfile: its selectors, and what becomes of a pod that it matches."""
        try:
            profile = convert(stored or {}, ClusterColocationProfile)
        except msgspec.ValidationError as error:
            return [document.finding(f"cannot be read: {error}", "spec")]
        spec, found = profile.spec, list[Finding]()
        for field, selector in (("selector", spec.selector), ("namespaceSelector", spec.namespace_selector)):
            try:
                from_label_selector(selector, nil_matches=True)
            except SelectorError as error:
                found.append(document.finding(f"{error}; the profile would match everything", f"spec.{field}"))
        percent = probability(spec.probability)
        if percent is None or not 0 <= percent <= 100:
            found.append(document.finding(f'{spec.probability!r} must be a number from 0 to 100 or "0%" to "100%"', "spec.probability"))
        known = {one["metadata"]["name"] for one in self.schemas.classes()}
        if spec.priority_class_name and spec.priority_class_name not in known:
            message = f"PriorityClass {spec.priority_class_name!r} is not among the files: without it pods that match are refused"
            found.append(document.finding(message, "spec.priorityClassName", level=Level.WARNING))
        if stored is None or found:
            return found
        return found + await self._tried(document, profile)

    async def _tried(self, document: Document, profile: ClusterColocationProfile) -> list[Finding]:
        selected = (profile.spec.selector.match_labels if profile.spec.selector is not None else None) or {}
        pod: Obj = {**_SAMPLE, "metadata": {"name": "sample", "namespace": "default", "labels": dict(selected)}}
        apply_metadata(profile.spec, pod["metadata"])
        alone = Admission([], self.schemas.classes())
        compiled = compile_profile(profile)
        alone.view.profiles[compiled.name] = compiled
        return [document.finding(f"a pod that it matches is refused: {message}", "spec") for message in await alone.admit(pod)]
