"""Watches whose objects come from a journal, in the place of informers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from koord.api.kinds import Kind
from koord.api.objects import convert
from roles.scheduler.journal.lines import Told
from roles.scheduler.observing.observer import channel_of

Handler = tuple[Callable[[Any], Any], Callable[[Any, Any], Any], Callable[[Any], Any]]


class Watch:
    """One view of a channel's objects, as `koord.kube.informers.Informer`."""

    def __init__(self, projection: type[Any], transform: Callable[[Any], Any] | None) -> None:
        self._projection, self._transform = projection, transform
        self._handlers: list[Handler] = []
        self._objects: dict[tuple[str, str], Any] = {}

    def add_handler(self, on_add: Callable[[Any], Any], on_update: Callable[[Any, Any], Any], on_delete: Callable[[Any], Any]) -> None:
        """Be told from now on."""
        self._handlers.append((on_add, on_update, on_delete))

    def list(self) -> list[Any]:
        """All objects."""
        return [*self._objects.values()]

    def get(self, key: str) -> Any:
        """The object with this key. Nobody asks in a replay: what is read back is in the journal."""
        return None

    def tell(self, told: Told) -> None:
        """Tell of a change."""
        new = None
        if told.obj is not None:
            new = told.obj if self._projection is dict else convert(told.obj, self._projection)
            new = self._transform(new) if self._transform is not None else new
        old = self._objects.pop(told.key, None)
        if new is not None:
            self._objects[told.key] = new
        for added, updated, deleted in self._handlers:
            if new is None:
                if old is not None:
                    deleted(old)
            elif old is None:
                added(new)
            else:
                updated(old, new)


class Watches:
    """As `koord.kube.informers.InformerFactory`."""

    def __init__(self) -> None:
        self._watches: dict[str, list[Watch]] = {}

    def informer(
        self, kind: Kind, projection: type[Any] = dict, *, namespace: str | None = None, label_selector: str = "",
        field_selector: str = "", transform: Callable[[Any], Any] | None = None, optional: bool = False,
    ) -> Watch:  # fmt: skip
        """A watch of its own for everybody who asks."""
        watch = Watch(projection, transform)
        channel = channel_of(kind, namespace, "" if kind.kind == "Pod" and transform is not None else field_selector)
        self._watches.setdefault(channel, []).append(watch)
        return watch

    def tell(self, told: Told) -> None:
        """Tell all watches of the channel, in the order in which they were asked for."""
        for watch in self._watches.get(told.channel, ()):
            watch.tell(told)
