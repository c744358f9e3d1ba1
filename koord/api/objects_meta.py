"""Metadata, references and selectors that all projections share, and how JSON becomes a projection. See ``koord.api.objects``."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar, dataclass_transform

import msgspec

T = TypeVar("T")

ResourceList = dict[str, str | int | float]
IntOrString = int | str


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class _ProjectionMeta(msgspec.StructMeta):
    """Tells type checkers that every projection is frozen and keyword-only, without saying so on each."""


class Projection(msgspec.Struct, metaclass=_ProjectionMeta, rename="camel", omit_defaults=True, frozen=True, gc=False, kw_only=True):
    """Base of every projection: keyword-only, immutable, invisible to the garbage collector (a tree has no cycles)."""


class OwnerReference(Projection):
    """metav1.OwnerReference."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectReference(Projection):
    """core/v1 ObjectReference."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""


class ObjectMeta(Projection):
    """metav1.ObjectMeta without managedFields. Timestamps are RFC 3339 text (``koord.api.times.parse_time``)."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that is marked as the controller."""
        for owner in self.owner_references:
            if owner.controller:
                return owner
        return None


class Object(Projection):
    """What every Kubernetes object has."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()

    @property
    def key(self) -> str:
        """``namespace/name``, or ``name`` of a cluster-scoped object."""
        meta = self.metadata
        return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name


class LabelSelectorRequirement(Projection):
    """One expression of a label selector; operators In, NotIn, Exists, DoesNotExist."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class LabelSelector(Projection):
    """metav1.LabelSelector. A field of this type is None when absent: nil and empty selectors mean different things."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


class Condition(Projection):
    """The common shape of status conditions."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_probe_time: str | None = None
    last_transition_time: str | None = None
    last_heartbeat_time: str | None = None
    last_update_time: str | None = None
    observed_generation: int = 0


def find_condition(conditions: tuple[Condition, ...], condition_type: str) -> Condition | None:
    """The condition of that type, or None."""
    for condition in conditions:
        if condition.type == condition_type:
            return condition
    return None


def without_nulls(value: Any) -> Any:
    """A copy of JSON data in which members that are null are gone (list elements that are null too)."""
    if isinstance(value, dict):
        return {name: without_nulls(member) for name, member in value.items() if member is not None}
    if isinstance(value, list):
        return [without_nulls(member) for member in value if member is not None]
    return value


def convert(value: Any, target: type[T]) -> T:
    """A projection of plain JSON data (dicts and lists), nulls taken as absent. Raises msgspec.ValidationError with the path."""
    try:
        return msgspec.convert(value, target)
    except msgspec.ValidationError:
        return msgspec.convert(without_nulls(value), target)


@lru_cache(maxsize=256)
def decoder(target: type[T]) -> Callable[[bytes | bytearray | memoryview | msgspec.Raw], T]:
    """A decoder of JSON bytes into ``target``, made once a type.

    Go writes nil lists, maps and structs as ``null``. That is rare in the objects that come by the thousand, so the quick path
    refuses it and an object that was refused is read once more without its nulls. Raises msgspec.ValidationError (wrong type, with
    the path) or msgspec.DecodeError (no JSON; the base class of both).
    """
    strict: msgspec.json.Decoder[T] = msgspec.json.Decoder(target)
    plain: msgspec.json.Decoder[Any] = msgspec.json.Decoder()

    def decode_one(data: bytes | bytearray | memoryview | msgspec.Raw) -> T:
        try:
            return strict.decode(data)
        except msgspec.ValidationError:
            return msgspec.convert(without_nulls(plain.decode(data)), target)

    return decode_one


def decode(data: bytes | bytearray | memoryview | msgspec.Raw, target: type[T]) -> T:
    """Decode one object; see ``decoder``."""
    read: Callable[[Any], T] = decoder(target)  # type: ignore[arg-type]
    return read(data)


class ListMeta(Projection):
    """metav1.ListMeta."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class RawList(Projection):
    """A list answer whose items are not decoded yet, so that one bad item cannot spoil the others."""

    metadata: ListMeta = ListMeta()
    items: tuple[msgspec.Raw, ...] | None = None
