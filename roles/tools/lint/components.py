"""Component configurations: read and checked by the role that will use them, never by a second reader here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import yaml

from koord.config.errors import ConfigError, InvalidConfig
from koord.config.positions import Position, Positions, mappings
from roles.tools.lint.finding import Finding, Level
from roles.tools.lint.sources import NO_TEXTS, Document, Loader, plain, syntax

if TYPE_CHECKING:
    from roles.scheduler.framework.registry import Registry

Check = Callable[[Any, str, "Registry | None"], Iterable[ConfigError]]
"""Given the data, the name of its source, and the plugins that there are."""


def _scheduler(data: Any, source: str, plugins: Registry | None) -> Iterable[ConfigError]:
    from koord.config.scheduler import parse
    from roles.scheduler.checking import mistakes
    from roles.scheduler.engine import registry

    return mistakes(parse(data, source), registry() if plugins is None else plugins, source)


def _descheduler(data: Any, source: str, _: Registry | None) -> Iterable[ConfigError]:
    from roles.descheduler.config import parse_data, resolve

    resolve(parse_data(data, source), source)
    return ()


def _scenario(data: Any, source: str, _: Registry | None) -> Iterable[ConfigError]:
    from koord.config import slo
    from koord.config.loader import validate
    from roles.sandbox.scenario import API_VERSION, KIND, Scenario

    scenario = validate(data, {(API_VERSION, KIND): Scenario}, source)
    # Errors in it stop the scenario; what nobody reads does not.
    unread = slo.parse(scenario.config_data(), previous=None).warnings
    return [ConfigError(f"sloControllerConfig.{one.path}", one.message) for one in unread]


SCHEDULER = "KubeSchedulerConfiguration"
KINDS: dict[tuple[str, str], Check] = {
    ("kubescheduler.config.k8s.io/v1", SCHEDULER): _scheduler,
    ("descheduler/v1alpha2", "DeschedulerConfiguration"): _descheduler,
    ("sandbox.koordinator.sh/v1alpha1", "Scenario"): _scenario,
}
GROUPS = {version.partition("/")[0] for version, _ in KINDS}


def is_component(data: Any) -> bool:
    """Whether a document is, or means to be, a component configuration."""
    if not isinstance(data, dict):
        return False
    version, kind = str(data.get("apiVersion", "")), str(data.get("kind", ""))
    return version.partition("/")[0] in GROUPS or kind in {known for _, known in KINDS}


def check(document: Document, plugins: Registry | None = None) -> Iterator[Finding]:
    """Every mistake of a component configuration."""
    data = document.data
    run = KINDS.get((str(data.get("apiVersion")), str(data.get("kind"))))
    if run is None:
        accepted = ", ".join(f"{version} {kind}" for version, kind in KINDS)
        yield document.finding(f"{data.get('apiVersion')!r} {data.get('kind')!r} is not known; accepted: {accepted}", "apiVersion")
        return
    if strangers := list(_keys(document)):
        yield from strangers
        return
    try:
        found = list(run(data, document.source.name, plugins))
    except InvalidConfig as error:
        found = list(error.errors)
    for one in found:
        yield document.finding(one.message, one.path, key=one.concerns_key)


def _keys(document: Document) -> Iterator[Finding]:
    """Keys that are no texts: objects may have them, and the roles' strict reader refuses them."""
    for node in mappings(document.places.root):
        for key, _ in node.value:
            if key.tag in NO_TEXTS:
                position = Position(key.start_mark.line + 1, key.start_mark.column + 1)
                place = document.inner.outer(position) if document.inner is not None else position
                yield Finding(document.source.name, place, Level.ERROR, f"the key {key.value} must be a string", "", document.subject)


def embedded(document: Document) -> Iterator[Finding | Document]:
    """The component configurations among the texts of a ConfigMap, and what keeps such a text from being read."""
    values = document.data.get("data")
    for name, text in values.items() if isinstance(values, dict) else ():
        if not isinstance(text, str) or not any(kind in text for _, kind in KINDS):
            continue
        path = f'data["{name}"]'
        inner = document.places.inner(f"{document.prefix}.{path}" if document.prefix else path)
        if inner is None:
            continue
        try:
            root = yaml.compose(text, Loader=Loader)
        except yaml.YAMLError as error:
            yield syntax(document.source, error, inner, path)
            continue
        data = plain(root) if root is not None else None
        if root is not None and is_component(data):
            yield Document(document.source, data, Positions(root, text), inner, base=path)
