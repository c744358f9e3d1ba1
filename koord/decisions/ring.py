"""Recent records in memory, found by subject."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator

from koord.decisions.record import Record

Key = tuple[str, str, str]


class RingSink:
    """Keeps the last `per_subject` records of each subject and at most `total` in all.

    When it is full, the subject that has been silent longest loses its oldest record: a subject that is decided on all the
    time cannot push the others out sooner than its own.
    """

    def __init__(self, per_subject: int = 16, total: int = 10_000) -> None:
        if per_subject < 1 or total < 1:
            raise ValueError("per_subject and total must be at least 1")
        self.per_subject = per_subject
        self.total = total
        self._count = 0
        self._subjects: OrderedDict[Key, deque[Record]] = OrderedDict()

    def __len__(self) -> int:
        return self._count

    def write(self, record: Record) -> None:
        """Keep a record."""
        key = record.subject.key
        records = self._subjects.get(key)
        if records is None:
            records = self._subjects[key] = deque()
        else:
            self._subjects.move_to_end(key)
        records.append(record)
        self._count += 1
        if len(records) > self.per_subject:
            records.popleft()
            self._count -= 1
        while self._count > self.total:
            oldest_key, oldest = next(iter(self._subjects.items()))
            oldest.popleft()
            self._count -= 1
            if not oldest:
                del self._subjects[oldest_key]

    def find(self, kind: str = "", namespace: str = "", name: str = "", *, limit: int = 0) -> list[Record]:
        """Records of the subjects that match, oldest first; an empty argument matches all. `limit` keeps the newest."""
        if kind and name and (kind, namespace, name) in self._subjects:
            found = list(self._subjects[kind, namespace, name])
        else:
            found = [record for records in self._matching(kind, namespace, name) for record in records]
            found.sort(key=lambda record: record.time)
        return found[-limit:] if limit else found

    def _matching(self, kind: str, namespace: str, name: str) -> Iterator[deque[Record]]:
        for (its_kind, its_namespace, its_name), records in self._subjects.items():
            if kind and kind.lower() != its_kind.lower():
                continue
            if (not namespace or namespace == its_namespace) and (not name or name == its_name):
                yield records
