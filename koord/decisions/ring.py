"""Recent records in memory, found by subject."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from koord.decisions.record import Record

Key = tuple[str, str, str]


class RingSink:
    """Keeps the last `per_subject` records of each subject and at most `total` of each kind of subject.

    When a kind is full, the subject of it that has been silent longest loses its oldest record: a subject that is decided on all
    the time cannot push the others out sooner than its own, and thousands of reviewed pods push no node out.
    """

    def __init__(self, per_subject: int = 16, total: int = 10_000) -> None:
        if per_subject < 1 or total < 1:
            raise ValueError("per_subject and total must be at least 1")
        self.per_subject = per_subject
        self.total = total
        self._counts: dict[str, int] = {}
        self._kinds: dict[str, OrderedDict[Key, list[Record]]] = {}

    def __len__(self) -> int:
        return sum(self._counts.values())

    def write(self, record: Record) -> None:
        """Keep a record."""
        key = record.subject.key
        kind = key[0]
        subjects = self._kinds.get(kind)
        if subjects is None:
            subjects = self._kinds[kind] = OrderedDict()
        records = subjects.get(key)
        if records is None:
            records = subjects[key] = []  # most subjects have one or two: a deque would weigh more than they
        else:
            subjects.move_to_end(key)
        records.append(record)
        count = self._counts.get(kind, 0) + 1
        if len(records) > self.per_subject:
            del records[0]
            count -= 1
        while count > self.total:
            oldest_key, oldest = next(iter(subjects.items()))
            del oldest[0]
            count -= 1
            if not oldest:
                del subjects[oldest_key]
        self._counts[kind] = count

    def find(self, kind: str = "", namespace: str = "", name: str = "", *, limit: int = 0) -> list[Record]:
        """Records of the subjects that match, oldest first; an empty argument matches all. `limit` keeps the newest."""
        if kind and name and (kind, namespace, name) in self._kinds.get(kind, ()):
            found = list(self._kinds[kind][kind, namespace, name])
        else:
            found = [record for records in self._matching(kind, namespace, name) for record in records]
            found.sort(key=lambda record: record.time)
        return found[-limit:] if limit else found

    def _matching(self, kind: str, namespace: str, name: str) -> Iterator[list[Record]]:
        for its_kind, subjects in self._kinds.items():
            if kind and kind.lower() != its_kind.lower():
                continue
            for (_, its_namespace, its_name), records in subjects.items():
                if (not namespace or namespace == its_namespace) and (not name or name == its_name):
                    yield records
