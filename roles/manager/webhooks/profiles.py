"""ClusterColocationProfile: which profiles match an object and what they do to it (MGR-POD-M-01, MGR-RSV-M-01); pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from koord.api import names
from koord.api.objects import ClusterColocationProfile, ClusterColocationProfileSpec
from koord.api.selectors import Selector, SelectorError, from_label_selector
from koord.kube.errors import PatchError
from koord.kube.patch import copy_json
from koord.kube.strategic import apply_strategic_patch
from roles.manager.webhooks.review import Refusal


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile ready to match. A selector of None matches everything.

    `selects` False: the controller matches nothing with it, for `selector` is nil, or one of the two selectors cannot be read.
    """

    name: str
    resource_version: str
    pin: tuple[str, str] | None
    """A label that the selector asks for with exactly one value, if it asks for any: most objects are told apart by that."""
    selector: Selector | None
    namespace_selector: Selector | None
    selects: bool
    skips_resources: bool
    managed: bool
    spec: ClusterColocationProfileSpec

    @property
    def needs_namespace(self) -> bool:
        """Whether matching it reads the namespace's labels."""
        return self.namespace_selector is not None


def compile_profile(profile: ClusterColocationProfile) -> Profile:
    """For the webhooks a selector that cannot be read counts as matching, as upstream does: better applied than silently lost."""
    selector, good = _compile(profile.spec.selector)
    namespace_selector, good_namespace = _compile(profile.spec.namespace_selector)
    return Profile(
        name=profile.metadata.name,
        resource_version=profile.metadata.resource_version,
        pin=_pin(selector),
        selector=selector,
        namespace_selector=namespace_selector,
        selects=profile.spec.selector is not None and good and good_namespace,
        skips_resources=names.ANNOTATION_SKIP_UPDATE_RESOURCES in profile.metadata.annotations,
        managed=profile.metadata.labels.get(names.LABEL_CONTROLLER_MANAGED) == "true",
        spec=profile.spec,
    )


def _compile(selector: Any) -> tuple[Selector | None, bool]:
    """The selector (None: it matches everything), and whether it can be read."""
    try:
        compiled = from_label_selector(selector, nil_matches=True)
    except SelectorError:
        return None, False
    return None if compiled.everything else compiled, True


def _pin(selector: Selector | None) -> tuple[str, str] | None:
    for requirement in selector.requirements if selector is not None else ():
        if requirement.operator == "In" and len(requirement.values) == 1:
            return requirement.key, next(iter(requirement.values))
    return None


def selecting(profiles: Iterable[Profile], labels: Mapping[str, str]) -> list[Profile]:
    """Profiles whose selector matches, by name."""
    found = [
        profile
        for profile in profiles
        if ((pin := profile.pin) is None or labels.get(pin[0]) == pin[1]) and (profile.selector is None or profile.selector.matches(labels))
    ]
    return sorted(found, key=lambda profile: profile.name)


def in_namespace(profiles: Iterable[Profile], labels: Mapping[str, str] | None) -> list[Profile]:
    """Profiles that take a namespace. `labels` None: it cannot be read, and every namespaceSelector counts as matching."""
    return [
        profile
        for profile in profiles
        if profile.namespace_selector is None or labels is None or profile.namespace_selector.matches(labels)
    ]


def chosen(profile: Profile, draw: Callable[[], int]) -> bool:
    """Whether probability picks the object; `draw` answers 0..99. Raises Refusal for a probability that cannot be read."""
    percent = probability(profile.spec.probability)
    if percent is None:
        raise Refusal(f'ClusterColocationProfile {profile.name}: probability {profile.spec.probability!r} must be a number or "N%"')
    # The draw is compared with >, as upstream does: "99%" is always.
    return percent != 0 and (percent == 100 or draw() <= percent)


def drawn(profile: Profile, namespace: str, name: str) -> int:
    """A draw of 0..99 that is the same each time: a dry run, another try and the controller come to the same. Each profile draws anew."""
    return int.from_bytes(hashlib.sha256(f"{profile.name}/{namespace}/{name}".encode()).digest()[:8]) % 100


def draw_of(profile: Profile, metadata: Mapping[str, Any], namespace: str, otherwise: Callable[[], int]) -> Callable[[], int]:
    """How an object is drawn. What gets its name only when it is stored has nothing of its own yet: by what it shares with its workload,
    all of these pods would be picked or none."""
    name = metadata.get("name")
    return partial(drawn, profile, namespace, name) if name else otherwise


def probability(value: int | str | None) -> int | None:
    """Percent of an int-or-string, 100 when absent, None when it cannot be read."""
    if value is None:
        return 100
    if isinstance(value, int):
        return value
    digits = value[:-1].removeprefix("-") if value.endswith("%") else ""
    return int(value[:-1]) if digits.isascii() and digits.isdigit() else None


def apply_metadata(spec: ClusterColocationProfileSpec, metadata: dict[str, Any], *, again: bool = False) -> None:
    """Labels, annotations, key mappings and suffixes, in that order. A mapping's missing source gives an empty value (upstream).

    `again`: the profile may have been here before, and a value that ends with its suffix gets no second one.
    """
    for field, values, mapping in (
        ("labels", spec.labels, spec.label_keys_mapping),
        ("annotations", spec.annotations, spec.annotation_keys_mapping),
    ):
        if values:
            metadata[field] = {**(metadata.get(field) or {}), **values}
        if mapping:
            present = metadata[field] = dict(metadata.get(field) or {})
            for source in sorted(mapping):
                present[mapping[source]] = present.get(source, "")
    if spec.label_suffixes and metadata.get("labels"):
        labels = metadata["labels"] = dict(metadata["labels"])
        for key, suffix in spec.label_suffixes.items():
            if key in labels and not (again and labels[key].endswith(suffix)):
                labels[key] += suffix


def set_label(metadata: dict[str, Any], key: str, value: str) -> None:
    """Set one label, making the map if there is none."""
    metadata["labels"] = {**(metadata.get("labels") or {}), key: value}


def set_classes(spec: ClusterColocationProfileSpec, metadata: dict[str, Any]) -> None:
    """The labels of the profile's QoS class and of its priority within the class."""
    if spec.qos_class:
        set_label(metadata, names.LABEL_POD_QOS, spec.qos_class)
    if spec.koordinator_priority is not None:
        set_label(metadata, names.LABEL_POD_PRIORITY, str(spec.koordinator_priority))


def apply_patch(profile: Profile, obj: dict[str, Any], kind: str) -> dict[str, Any]:
    """The profile's `patch` on an object of `kind`, with that kind's merge keys. Raises Refusal when it does not fit."""
    if profile.spec.patch is None:
        return obj
    try:
        # A copy of the patch: later steps change the object in place, and what it shares with the profile must not change with it.
        patched = apply_strategic_patch(obj, copy_json(profile.spec.patch), kind)
    except PatchError as error:
        raise Refusal(f"ClusterColocationProfile {profile.name}: patch: {error}") from None
    metadata = patched.get("metadata", {})
    if not isinstance(metadata, dict):
        raise Refusal(f"ClusterColocationProfile {profile.name}: patch: metadata must be an object")
    for field in ("labels", "annotations"):
        texts = metadata.get(field) or {}
        if not (isinstance(texts, dict) and all(isinstance(text, str) for text in texts.values())):
            raise Refusal(f"ClusterColocationProfile {profile.name}: patch: metadata.{field} must be an object of strings")
    return patched
