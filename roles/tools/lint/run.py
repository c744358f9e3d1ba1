"""All checks over all files: sorts documents by what they are, and gives each to those who know it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from koord.api import names
from koord.config.errors import unknown_field
from roles.tools.lint import components, packing, requests
from roles.tools.lint.admission import Admission
from roles.tools.lint.finding import Finding, Level, Report, report
from roles.tools.lint.objects import Objects
from roles.tools.lint.schema import Schemas
from roles.tools.lint.sources import Document, Source, documents, mapping
from roles.tools.policytest import cases

if TYPE_CHECKING:
    from roles.scheduler.framework.registry import Registry

Obj = dict[str, Any]
_HOOK_KEYS = ("remote-endpoint", "failure-policy", "runtime-hooks", "partial-answers")


async def lint(sources: Sequence[Source | Finding], skipped: Sequence[str] = (), plugins: Registry | None = None) -> Report:
    """Check every document of the sources, each on its own and all together. A Finding stands for a source that cannot be read.

    `plugins`: the classes that a scheduler's configuration may name (None: the built-in ones and those of installed packages).
    """
    found: list[Finding] = []
    read: list[Document] = []
    for source in sources:
        for item in (source,) if isinstance(source, Finding) else documents(source):
            found.append(item) if isinstance(item, Finding) else read.append(item)
    run = _Run([document.data for document in read if isinstance(document.data, dict)], plugins)
    await run.prepare()
    for document in read:
        found += await run.document(document)
    found += await run.together()
    return report(
        _without_echoes(found),
        run.checked,
        [*skipped, *run.skipped],
        [one.source if isinstance(one, Finding) else one.name for one in sources],
    )


def _without_echoes(found: Iterable[Finding]) -> Iterator[Finding]:
    """Two readers of one field often see the same mistake: the first word is enough. Unknown fields are told one by one."""
    seen: set[tuple[str, Any, str]] = set()
    for one in found:
        place = (one.source, one.position, one.path)
        if place not in seen or one.message.startswith("unknown field"):
            yield one
        if one.path:
            seen.add(place)


class _Run:
    def __init__(self, objects: list[Obj], plugins: Registry | None) -> None:
        self._objects = objects
        self._plugins = plugins
        self.schemas = Schemas()
        self.checks: Objects | None = None
        self.checked = 0
        self.skipped: list[str] = []
        self._quotas: dict[str, Document] = {}
        self._seen: dict[tuple[str, ...], Document] = {}
        self._schedulers: list[Document] = []  # configurations that a scheduler would start with

    async def prepare(self) -> None:
        """Definitions, and what objects see of one another."""
        await self.schemas.install([obj for obj in self._objects if obj.get("kind") == "PriorityClass"])
        self.checks = Objects(self.schemas, Admission(self._objects, self.schemas.classes()))

    async def document(self, document: Document) -> list[Finding]:
        """What is wrong with one document by itself."""
        data = document.data
        if not isinstance(data, dict):
            return self._nothing(document, "a mapping is wanted: an object with apiVersion and kind")
        if any(key in data for key in _HOOK_KEYS) and "kind" not in data:
            self.checked += 1
            return list(_hook_registration(document))
        if components.is_component(data):
            self.checked += 1
            return self._component(document)
        if "cases" in data and "kind" not in data:
            self.checked += 1
            return [document.finding(each.message, each.path, key=each.concerns_key) for each in cases.mistakes(data)]
        for field in ("apiVersion", "kind"):
            if not isinstance(data.get(field), str) or not data[field]:
                return self._nothing(document, f"{field} is required: it says what this is")
        return await self._object(document)

    def _nothing(self, document: Document, message: str) -> list[Finding]:
        """A document that is no object: a mistake in a file that was asked for, somebody else's file in a folder."""
        if document.source.asked:
            return [document.finding(message)]
        self.skipped.append(document.source.name)
        return []

    async def _object(self, document: Document) -> list[Finding]:
        assert self.checks is not None
        resource = self.schemas.resource(document.data)
        if resource is None:
            wrong = self.schemas.misspelt(document.data)
            if wrong:
                return [document.finding(wrong, "kind" if wrong.startswith("kind") else "apiVersion")]
            self.skipped.append(f"{document.data['kind']} ({document.data['apiVersion']})")
            return []
        self.checked += 1
        found = list(self._twice(document))
        found += await self.checks.check(document, resource)
        if document.data["kind"] == "ConfigMap":
            for part in components.embedded(document):
                found += [part] if isinstance(part, Finding) else self._component(part)
        elif document.data["kind"] == "ElasticQuota" and not any(one.level is Level.ERROR for one in found):
            self._quotas.setdefault(str(document.data["metadata"].get("name")), document)
        return found

    def _component(self, document: Document) -> list[Finding]:
        found = list(components.check(document, self._plugins))
        if not found and document.data["kind"] == components.SCHEDULER:
            self._schedulers.append(document)
        return found

    def _twice(self, document: Document) -> Iterator[Finding]:
        meta = mapping(document.data.get("metadata"))
        key = tuple(str(part) for part in (document.data["apiVersion"], document.data["kind"], meta.get("namespace"), meta.get("name")))
        first = self._seen.setdefault(key, document)
        if first is not document and meta.get("name"):
            where = f"{first.source.name}:{first.at('metadata.name')}"
            yield document.finding(f"is defined already, at {where}", "metadata.name", level=Level.WARNING)

    async def together(self) -> list[Finding]:
        """Quotas among one another, parents first; schedulers, and requests of pods, on the nodes and pods of the files."""
        assert self.checks is not None
        found = [*packing.check(self._schedulers, self._objects, self._plugins), *requests.against(self._seen.values())]
        waiting = dict(self._quotas)
        done = set(names.RESERVED_QUOTAS)
        while waiting:
            ready = [name for name, one in waiting.items() if _parent(one) in done or _parent(one) not in waiting]
            for name in ready or list(waiting):
                document = waiting.pop(name)
                parent = _parent(document)
                missing = parent not in self._quotas and parent not in names.RESERVED_QUOTAS
                if not ready:
                    found.append(document.finding("is its own ancestor: parents stand in a circle", _PARENT))
                else:
                    if missing:
                        told = f"parent {parent!r} is not among the files: the quota is not checked against it"
                        found.append(document.finding(told, _PARENT, level=Level.WARNING))
                    found += await self.checks.quota(document, alone=missing)
                done.add(name)
        return found


_PARENT = f'metadata.labels["{names.LABEL_QUOTA_PARENT}"]'


def _parent(document: Document) -> str:
    labels = document.data["metadata"].get("labels") or {}
    return str(labels.get(names.LABEL_QUOTA_PARENT) or names.QUOTA_ROOT)


def _hook_registration(document: Document) -> Iterator[Finding]:
    """A registration file of the runtime proxy (RP-REG-01)."""
    import orjson

    from roles.runtime_proxy.hooktypes import HOOK_METHODS
    from roles.runtime_proxy.registration import RegistrationError, parse_registration, unknown_hooks

    data = document.data
    for key in data:
        if key not in _HOOK_KEYS:
            yield document.finding(unknown_field(key, _HOOK_KEYS), key, key=True)
    try:
        server = parse_registration("", orjson.dumps(data))
    except RegistrationError as error:
        message = str(error).removeprefix(": ")
        key = next((key for key in _HOOK_KEYS if message.startswith(key)), "")
        yield document.finding(message.removeprefix(key).lstrip(), key)
        return
    if server.failure_policy not in ("", "Fail", "Ignore"):
        yield document.finding(f"{server.failure_policy!r} is not known; accepted: Fail, Ignore", "failure-policy")
    for hook in unknown_hooks(server):
        index = data["runtime-hooks"].index(hook)
        yield document.finding(f"{hook!r} does not exist; accepted: {', '.join(HOOK_METHODS)}", f"runtime-hooks[{index}]")
