"""docs/reference/configuration.md: the configuration kinds and slo-controller-config, from the models that read them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from koord.config import slo_schema
from koord.config.scheduler import KubeSchedulerConfiguration
from roles.descheduler import registry as descheduler
from roles.descheduler.config import DeschedulerConfiguration
from roles.sandbox.scenario import Scenario
from roles.scheduler.plugins.registry import PLUGINS
from roles.tools.reference import slo
from roles.tools.reference.markdown import FIELDS, code, page, table
from roles.tools.reference.models import Row, rows

_TYPED = frozenset({"`apiVersion`", "`kind`"})  # of plugin arguments, where they may be left out


def scheduler_plugins() -> list[tuple[str, type[BaseModel]]]:
    """The scheduler's plugins that have arguments."""
    return [(plugin.name, plugin.Args) for plugin in PLUGINS if plugin.Args is not None]


def descheduler_plugins() -> list[tuple[str, type[BaseModel]]]:
    """The descheduler's plugins, all of which have arguments."""
    return list(descheduler.ARGS.items())


def _fields(model: type[BaseModel], *, typed: bool = True) -> str:
    found: list[Row] = [row for row in rows(model) if typed or row[0] not in _TYPED]
    return table(FIELDS, found) if found else "No arguments."


def _plugins(entries: Sequence[tuple[str, type[BaseModel]]]) -> Iterator[str]:
    for name, model in sorted(entries):
        yield f"### {name}Args"
        yield inspect.cleandoc(model.__doc__ or "")
        yield _fields(model, typed=False)


def _slo() -> Iterator[str]:
    yield "## slo-controller-config"
    yield (
        "A ConfigMap of the manager; each key holds one JSON object. What is out of range is refused by the webhook where it is on (gate "
        "ConfigMapValidatingWebhook); a key that cannot be read keeps its last good value. "
        "[manager.md](../manager.md#slo-controller-config) tells how nodes get their strategy."
    )
    for key, strategy in slo_schema.STRATEGIES.items():
        yield f"### {key}"
        flat = key in slo_schema.FLAT
        place, entries = ("of the cluster at the top", "nodeConfigs") if flat else ("in `clusterStrategy`", "nodeStrategies")
        yield f"Fields {place}; `{entries}[]` are entries with `name`, `nodeSelector` and the same fields."
        yield table(FIELDS, slo.rows(key, strategy))


def render() -> str:
    """The page."""
    intro = (
        "Files that roles and the sandbox read, and the manager's ConfigMap. Files are YAML or JSON and strict: an unknown field, a "
        "field that is set twice or a wrong value ends the role with the path and what is accepted. Durations are written like `15s`; "
        "`[]` stands for an item of a list, `*` for a value of a map. `koord scheduler --validate-config` and "
        "`koord descheduler --write-config-to` check a file."
    )
    lenient = ", ".join(map(code, sorted(descheduler.LENIENT)))
    sections = [
        "## KubeSchedulerConfiguration", "`kubescheduler.config.k8s.io/v1`, read by `koord scheduler --config`.",
        _fields(KubeSchedulerConfiguration),
        "## Arguments of scheduler plugins", "`profiles[].pluginConfig[].args`; `apiVersion` and `kind` (`<Plugin>Args`) may be left out.",
        *_plugins(scheduler_plugins()),
        "## DeschedulerConfiguration", "`descheduler/v1alpha2`, read by `koord descheduler --config`.", _fields(DeschedulerConfiguration),
        "## Arguments of descheduler plugins",
        f"`profiles[].pluginConfig[].args`. Unknown arguments of {lenient} are left out with a warning.",
        *_plugins(descheduler_plugins()),
        *_slo(),
        "## Scenario", "The sandbox's `--scenario`.", _fields(Scenario),
    ]  # fmt: skip
    return page("Configuration", intro, sections)
