"""How values merge: which maps and lists are of one piece, and what tells the items of the others apart."""

from __future__ import annotations

from typing import Any

from koord.apiserver.schema.builtin import Field, TypeNode
from koord.apiserver.schema.structural import Structural

LEAF, MAP, LIST_MAP, LIST_SET = "leaf", "map", "list-map", "list-set"

_NAME, _TYPE = ("name",), ("type",)
# built-in lists that merge by keys: (type, field) -> keys; "" as type: in every type
_LIST_KEYS: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "conditions"): _TYPE,
    ("V1ObjectMeta", "ownerReferences"): ("uid",),
    ("V1PodSpec", "containers"): _NAME,
    ("V1PodSpec", "initContainers"): _NAME,
    ("V1PodSpec", "ephemeralContainers"): _NAME,
    ("V1PodSpec", "volumes"): _NAME,
    ("V1PodSpec", "imagePullSecrets"): _NAME,
    ("V1PodSpec", "hostAliases"): ("ip",),
    ("V1PodSpec", "topologySpreadConstraints"): ("topologyKey", "whenUnsatisfiable"),
    ("V1PodSpec", "schedulingGates"): _NAME,
    ("V1PodSpec", "resourceClaims"): _NAME,
    ("V1Container", "ports"): ("containerPort", "protocol"),
    ("V1Container", "env"): _NAME,
    ("V1Container", "volumeMounts"): ("mountPath",),
    ("V1Container", "volumeDevices"): ("devicePath",),
    ("V1EphemeralContainer", "ports"): ("containerPort", "protocol"),
    ("V1EphemeralContainer", "env"): _NAME,
    ("V1EphemeralContainer", "volumeMounts"): ("mountPath",),
    ("V1ResourceRequirements", "claims"): _NAME,
    ("V1PodStatus", "podIPs"): ("ip",),
    ("V1PodStatus", "resourceClaimStatuses"): _NAME,
    ("V1NodeStatus", "addresses"): _TYPE,
    ("V1ResourceClaimStatus", "reservedFor"): ("uid",),
    ("V1ResourceClaimStatus", "devices"): ("driver", "device", "pool", "shareID"),
    ("V1ServiceSpec", "ports"): ("port", "protocol"),
    ("V1ServiceAccount", "secrets"): _NAME,
    ("V1MutatingWebhookConfiguration", "webhooks"): _NAME,
    ("V1ValidatingWebhookConfiguration", "webhooks"): _NAME,
    ("V1CSINodeSpec", "drivers"): _NAME,
    ("V1ValidatingAdmissionPolicySpec", "matchConditions"): _NAME,
    ("V1ValidatingAdmissionPolicySpec", "variables"): _NAME,
}
_SETS = {("V1ObjectMeta", "finalizers"), ("V1NodeSpec", "podCIDRs"), ("V1Endpoint", "addresses")}
# key fields that default, so that an item without them is still known
_KEY_DEFAULTS: dict[str, Any] = {"protocol": "TCP"}
_ATOMIC_TYPES = frozenset(
    {
        "V1LabelSelector", "V1SecretKeySelector", "V1ConfigMapKeySelector", "V1ObjectReference", "V1LocalObjectReference", "V1NodeSelector",
        "V1NodeSelectorTerm", "V1ResourceFieldSelector", "V1ObjectFieldSelector", "V1TypedLocalObjectReference", "V1TopologySelectorTerm",
        "V1ScopeSelector", "V1SecretReference", "V1OwnerReference", "V1RoleRef", "RbacV1Subject", "V1FileKeySelector",
        "V1DeviceClaim", "V1AllocationResult", "V1ResourceSliceSpec",
    }
)  # fmt: skip
_ATOMIC_MAPS = {("V1PodSpec", "nodeSelector"), ("V1ServiceSpec", "selector"), ("V1ReplicationControllerSpec", "selector")}


class Shape:
    """One place in a schema. `of(key)` is the shape of a field or map value, `item` that of list elements."""

    __slots__ = ("_children", "_source", "item", "keys", "mode")

    def __init__(self, mode: str, keys: tuple[str, ...] = (), source: Any = None, item: Shape | None = None) -> None:
        self.mode = mode
        self.keys = keys
        self.item = item or self
        self._source = source
        self._children: dict[str, Shape] = {}

    def of(self, key: str) -> Shape:
        """The shape of a member of a map."""
        found = self._children.get(key)
        if found is None:
            found = self._children[key] = _child(self._source, key)
        return found

    def key_of(self, item: Any) -> str:
        """The path element of an item of an associative list."""
        if self.mode == LIST_SET:
            return "v:" + orjson_text(item)
        found = {}
        for key in self.keys:
            value = item.get(key) if isinstance(item, dict) else None
            if value is None:
                value = _KEY_DEFAULTS.get(key)
            if value is not None:
                found[key] = value
        return "k:" + orjson_text(found)

    def named(self, key: str) -> bool:
        """The member is a field of a struct, rather than an entry of a map."""
        source = self._source
        if isinstance(source, TypeNode):
            return True
        return isinstance(source, Structural) and key in source.props


def orjson_text(value: Any) -> str:
    """Compact JSON with sorted keys."""
    import orjson

    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


_ATOM = Shape(LEAF)
# values without a schema: maps merge by key, lists are of one piece
_FREE = Shape(MAP)
_META: dict[int, Shape] = {}


def _child(source: Any, key: str) -> Shape:
    if isinstance(source, TypeNode):
        field = source.fields.get(key)
        return _of_field(source.name, field) if field is not None else _FREE
    if isinstance(source, Field):
        return _of_field("", source)
    if isinstance(source, Structural):
        prop = source.props.get(key)
        if prop is not None:
            return of_structural(prop)
        return of_structural(source.additional) if isinstance(source.additional, Structural) else _FREE
    return _FREE


def _of_field(owner: str, field: Field) -> Shape:
    if field.code == "r":
        assert field.node is not None
        return of_type(field.node)
    if field.code == "{":
        return _ATOM if (owner, field.name) in _ATOMIC_MAPS else Shape(MAP, source=field.item)
    if field.code == "[":
        assert field.item is not None
        keys = _LIST_KEYS.get((owner, field.name))
        if keys is None and field.item.code == "r":
            keys = _LIST_KEYS.get(("", field.name))
        if keys is not None:
            # items merge field by field, also those whose type is of one piece elsewhere
            node = field.item.node
            return Shape(LIST_MAP, keys, item=of_type(node) if node is not None else _FREE)
        if (owner, field.name) in _SETS:
            return Shape(LIST_SET, item=_ATOM)
        return _ATOM
    return _FREE if field.code == "o" else _ATOM


def of_type(node: TypeNode) -> Shape:
    """The shape of a built-in type."""
    if node.name in _ATOMIC_TYPES:
        return _ATOM
    found = _META.get(id(node))
    if found is None:
        found = _META[id(node)] = Shape(MAP, source=node)
    return found


def of_structural(node: Structural) -> Shape:
    """The shape of a node of a custom resource's schema."""
    if node.type == "array":
        kind = node.raw.get("x-kubernetes-list-type")
        if kind == "map":
            return Shape(
                LIST_MAP, tuple(node.raw.get("x-kubernetes-list-map-keys") or ()), item=of_structural(node.items) if node.items else _FREE
            )
        if kind == "set":
            return Shape(LIST_SET, item=_ATOM)
        return _ATOM
    if node.raw.get("x-kubernetes-map-type") == "atomic":
        return _ATOM
    if node.type == "object" or node.props or node.preserve:
        return Shape(MAP, source=node)
    return _ATOM


class CustomRoot(Shape):
    """The root of a custom resource: its metadata has the built-in type."""

    __slots__ = ("_meta",)

    def __init__(self, node: Structural, meta: TypeNode) -> None:
        super().__init__(MAP, source=node)
        self._meta = of_type(meta)

    def of(self, key: str) -> Shape:
        return self._meta if key == "metadata" else super().of(key)
