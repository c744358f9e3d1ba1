"""metadata.managedFields: reading and writing the list of managers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from koord.apiserver.ssa.fieldset import FieldSet

Obj = dict[str, Any]

APPLY, UPDATE = "Apply", "Update"
# managers with operation Update that a busy object keeps; older ones become one
MAX_UPDATE_MANAGERS = 10
ANCIENT = "ancient-changes"


@dataclass(slots=True)
class Record:
    """One manager: who, how, through which version and subresource, which fields, since when."""

    manager: str
    operation: str
    api_version: str
    subresource: str
    fields: FieldSet
    time: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return (self.manager, self.operation, self.api_version if self.operation == UPDATE else "", self.subresource)

    def wire(self) -> Obj:
        out: Obj = {"manager": self.manager, "operation": self.operation, "apiVersion": self.api_version}
        if self.time:
            out["time"] = self.time
        out["fieldsType"] = "FieldsV1"
        out["fieldsV1"] = self.fields
        if self.subresource:
            out["subresource"] = self.subresource
        return out

    def text(self) -> str:
        """As conflicts print it."""
        out = f'"{self.manager}"'
        if self.subresource:
            out += f' with subresource "{self.subresource}"'
        if self.operation == UPDATE:
            out += f" using {self.api_version}"
        return out


def read(meta: Obj) -> list[Record]:
    """The managers of an object; entries of unknown form are left out."""
    out: list[Record] = []
    for entry in meta.get("managedFields") or ():
        if entry.get("fieldsType", "FieldsV1") != "FieldsV1" or entry.get("operation") not in (APPLY, UPDATE):
            continue
        fields = entry.get("fieldsV1")
        if isinstance(fields, dict):
            out.append(
                Record(
                    entry.get("manager") or "",
                    entry["operation"],
                    entry.get("apiVersion") or "",
                    entry.get("subresource") or "",
                    fields,
                    entry.get("time") or "",
                )
            )
    return out


def write(meta: Obj, records: list[Record]) -> None:
    """Store the managers: those that apply first, then by age, as kube-apiserver orders them."""
    kept = _capped([r for r in records if r.fields])
    if not kept:
        meta.pop("managedFields", None)
        return
    kept.sort(key=lambda r: (r.operation != APPLY, r.time, r.manager, r.api_version))
    meta["managedFields"] = [r.wire() for r in kept]


def _capped(records: list[Record]) -> list[Record]:
    from koord.apiserver.ssa.fieldset import union

    updates = sorted((r for r in records if r.operation == UPDATE), key=lambda r: r.time)
    if len(updates) <= MAX_UPDATE_MANAGERS:
        return records
    excess = updates[: len(updates) - MAX_UPDATE_MANAGERS + 1]
    merged = Record(ANCIENT, UPDATE, excess[-1].api_version, "", {}, excess[-1].time)
    for record in excess:
        merged.fields = union(merged.fields, record.fields)
    return [r for r in records if r not in excess] + [merged]
