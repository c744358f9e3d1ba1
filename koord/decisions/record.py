"""The decision record: what was decided about whom, by which rule, with which numbers."""

from __future__ import annotations

from typing import Any

import msgspec

Number = float | int | str
NOBODY_OFFERS = "no node offers it"
"""What the name of a scheduler's term says of a resource that is requested and that no node has any of, after the resource and a colon."""


class Subject(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Whom a decision is about: a Kubernetes object, or something on a node (`kind="CgroupFile"`, `name` its path)."""

    kind: str
    namespace: str = ""
    name: str = ""
    uid: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What records are looked up by."""
        return (self.kind, self.namespace, self.name)

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


class Term(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One term of a formula, one reason with its count, or one candidate with its score.

    `value` is in `unit` ("milli", "bytes", "percent", "nodes", …); `note` says where it comes from, or what is short.
    """

    name: str
    value: Number = 0
    note: str = ""
    unit: str = ""


class Record(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One decision.

    `time` is in seconds since the epoch. `verdict` is a short word (Scheduled, Unschedulable, Suppressed, Evicted, WouldEvict,
    Allocatable, …), `rule` the strategy or plugin that decided, `message` one sentence for people. `numbers` are the inputs and
    results by name; `terms` are ordered: terms of a formula, reasons with counts, candidates with scores. `features` are the
    feature IDs that the decision belongs to.
    """

    role: str
    subject: Subject
    time: float
    verdict: str
    rule: str = ""
    message: str = ""
    numbers: dict[str, Number] = {}
    terms: tuple[Term, ...] = ()
    features: tuple[str, ...] = ()

    def __str__(self) -> str:
        by = f" by {self.rule}" if self.rule else ""
        return f"{self.subject}: {self.verdict}{by}" + (f": {self.message}" if self.message else "")


encoder = msgspec.json.Encoder(enc_hook=str)  # a number of a foreign type (numpy's, say) must not lose a record
_decode_one = msgspec.json.Decoder(Record)
_decode_many = msgspec.json.Decoder(list[Record])


def encode(record: Record) -> bytes:
    """One record as JSON (a line of the replay format, without the newline)."""
    return encoder.encode(record)


def decode(data: bytes | str) -> Record:
    """The record of a JSON text. Raises msgspec.DecodeError."""
    return _decode_one.decode(data)


def decode_many(data: bytes | str) -> list[Record]:
    """The records of a JSON list, as `/debug/decisions` answers it. Raises msgspec.DecodeError."""
    return _decode_many.decode(data)


def encode_many(records: Any) -> bytes:
    """Records as a JSON list."""
    return encoder.encode(list(records))
