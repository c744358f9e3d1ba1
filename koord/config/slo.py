"""slo-controller-config: every key parsed, merged and validated; a bad part is refused with its path, the last good one stays (MGR-CFG-01).

Pure: `parse` takes the ConfigMap's data and the configuration in force, and returns the next one with everything that was wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import orjson

from koord.api.selectors import Selector
from koord.config import slo_schema as s
from koord.config.colocation import ColocationStrategy, override_by_node, overrides, validity_errors
from koord.config.errors import ConfigError, join
from koord.config.schema import clean, errors, merge, unknown
from koord.config.selectors import compile_selector


class NodeLike(Protocol):
    """What the lookups need of a node; `koord.api.objects.Node` fits."""

    @property
    def metadata(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """A node entry: `strategy` is already the cluster strategy with the entry's own fields laid over it."""

    name: str
    selector: Selector | None
    strategy: dict[str, Any]


@dataclass(frozen=True, slots=True)
class KeyConfig:
    """One key in force. `available` False: there never was a good value. `stale`: the present text is bad, an older value is in force."""

    key: str
    cluster: dict[str, Any]
    nodes: tuple[NodeEntry, ...] = ()
    available: bool = True
    stale: bool = False
    given: bool = False
    """Whether the ConfigMap says anything of this key, or has done so."""

    def for_labels(self, labels: Mapping[str, str]) -> dict[str, Any]:
        """The strategy of a node: the first entry whose selector matches, else the cluster's."""
        return next((entry.strategy for entry in self.nodes if entry.selector and entry.selector.matches(labels)), self.cluster)


@dataclass(frozen=True)
class SLOConfig:
    """The whole configuration in force. Strategies come out as wire dicts (camelCase), as NodeSLO carries them."""

    keys: Mapping[str, KeyConfig] = field(default_factory=lambda: {key: KeyConfig(key, s.DEFAULTS[key]) for key in s.KEYS})
    # by strategy of `keys`, which live as long: most nodes say nothing of their own
    _typed: dict[int, ColocationStrategy] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def available(self) -> bool:
        """False while colocation-config never had a good value: nothing may be decided by it."""
        return self.keys[s.COLOCATION].available

    def stale(self, key: str) -> bool:
        """Whether the key's present text was refused and an older value is in force."""
        return self.keys[key].stale

    @property
    def cluster_enabled(self) -> bool:
        """The cluster switch of co-location: off here, no node entry can switch it on."""
        return self.keys[s.COLOCATION].cluster.get("enable") is True

    def colocation_for(self, node: NodeLike) -> ColocationStrategy:
        """Defaults, cluster, first matching entry, node annotation, ratio labels: later wins."""
        labels, annotations = node.metadata.labels or {}, node.metadata.annotations or {}
        strategy = self.keys[s.COLOCATION].for_labels(labels)
        if overrides(labels, annotations):
            return override_by_node(strategy, labels, annotations)
        found = self._typed.get(id(strategy))
        if found is None:
            found = self._typed[id(strategy)] = override_by_node(strategy, {}, {})
        return found

    def threshold_for(self, node: NodeLike) -> dict[str, Any]:
        """resourceUsedThresholdWithBE of a node."""
        return self._of(s.THRESHOLD, node)

    def qos_for(self, node: NodeLike) -> dict[str, Any]:
        """resourceQOSStrategy of a node."""
        return self._of(s.QOS, node)

    def cpu_burst_for(self, node: NodeLike) -> dict[str, Any]:
        """cpuBurstStrategy of a node."""
        return self._of(s.BURST, node)

    def system_for(self, node: NodeLike) -> dict[str, Any]:
        """systemStrategy of a node, before its network-bandwidth annotation."""
        return self._of(s.SYS, node)

    def host_applications_for(self, node: NodeLike) -> list[dict[str, Any]]:
        """Host applications of a node; an entry's list replaces the cluster's."""
        return list(self._of(s.HOSTS, node).get("applications") or ())

    def cpu_normalization_for(self, node: NodeLike) -> dict[str, Any]:
        """CPU normalization strategy of a node; empty where the ConfigMap does not speak of it."""
        return self._of(s.NORMALIZATION, node) if self.keys[s.NORMALIZATION].given else {}

    def resource_amplification_for(self, node: NodeLike) -> dict[str, Any]:
        """Resource amplification strategy of a node."""
        return self._of(s.AMPLIFICATION, node)

    def extensions_for(self, node: NodeLike) -> dict[str, Any]:
        """What the ConfigMap says of a node's NodeSLO extensions, by their names; one that it does not speak of is not in it."""
        return {name: self._of(key, node) for key, name in s.EXTENSIONS.items() if self.keys[key].given}

    def _of(self, key: str, node: NodeLike) -> dict[str, Any]:
        return self.keys[key].for_labels(node.metadata.labels or {})


@dataclass(frozen=True)
class ParseResult:
    """The configuration to use from now on. `errors` refused something; `warnings` are fields that nobody reads or odd values in use."""

    config: SLOConfig
    errors: list[ConfigError]
    warnings: list[ConfigError]
    changed: frozenset[str]


def parse(data: Mapping[str, str] | None, *, previous: SLOConfig | None) -> ParseResult:
    """Parse the ConfigMap's data; None means that the ConfigMap is absent: an older configuration then stays as it is."""
    if data is None:
        return _absent(previous)
    old = previous.keys if previous else {}
    problems: list[ConfigError] = []
    notes: list[ConfigError] = []
    keys: dict[str, KeyConfig] = {}
    for key in s.KEYS:
        text = data.get(key)
        if text is None or not text.strip():
            # A key that was emptied or taken out is a feature rolled back: what it had written is taken back, as with `{}`.
            keys[key] = KeyConfig(key, s.DEFAULTS[key], given=text is not None or (key in old and old[key].given))
            continue
        parsed, bad = _parse_key(key, text, notes)
        problems += bad
        keys[key] = parsed or _keep(key, old.get(key))
    notes += [ConfigError(key, f"unknown key; known keys: {', '.join(s.KEYS)}") for key in data if key not in s.KEYS]
    config = SLOConfig(keys)
    return ParseResult(config, problems, notes, frozenset(k for k in keys if previous is None or _differs(keys[k], previous.keys[k])))


def _absent(previous: SLOConfig | None) -> ParseResult:
    if previous is not None:
        return ParseResult(previous, [], [], frozenset())
    base = SLOConfig()
    keys = {**base.keys, s.COLOCATION: KeyConfig(s.COLOCATION, s.DEFAULTS[s.COLOCATION], stale=True)}
    return ParseResult(
        SLOConfig(keys), [ConfigError("", "the ConfigMap does not exist; defaults are in force, co-location is off")], [], frozenset(keys)
    )


def _keep(key: str, old: KeyConfig | None) -> KeyConfig:
    if old is None:
        # NodeSLO keys fall back to their defaults; without a good colocation-config nothing may be decided at all.
        return KeyConfig(key, s.DEFAULTS[key], available=key != s.COLOCATION, stale=True)
    return KeyConfig(key, old.cluster, old.nodes, old.available, stale=True, given=old.given)


def _parse_key(key: str, text: str, notes: list[ConfigError]) -> tuple[KeyConfig | None, list[ConfigError]]:
    """The key's new value, or None when it is refused as a whole; and what was wrong."""
    try:
        raw = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return None, [ConfigError(key, f"not valid JSON: {error}")]
    if raw is None:
        return KeyConfig(key, s.DEFAULTS[key], given=True), []
    wrong = list(errors(s.KEYS[key], raw, key))
    if wrong:
        return None, wrong
    notes += unknown(s.KEYS[key], raw, key)
    schema = s.STRATEGIES[key]
    if key in s.FLAT:
        own, entries, where, entries_at = raw, raw.get("nodeConfigs"), key, join(key, "nodeConfigs")
    else:
        own, entries = raw.get("clusterStrategy") or {}, raw.get("nodeStrategies")
        where, entries_at = join(key, "clusterStrategy"), join(key, "nodeStrategies")
    cluster = merge(s.DEFAULTS[key], clean(schema, own))
    wrong = list(_invalid(key, cluster, where))
    if wrong:
        return None, wrong
    nodes = []
    for index, item in enumerate(entries or ()):
        if item is None:
            continue
        entry, bad = _parse_entry(key, cluster, item, join(entries_at, index))
        nodes.append(entry)
        wrong += bad
    notes += [e for e in errors(s.KEYS[key], raw, key, "cm") if e not in wrong]
    return KeyConfig(key, cluster, tuple(nodes), given=True), wrong


def _parse_entry(key: str, cluster: dict[str, Any], item: dict[str, Any], where: str) -> tuple[NodeEntry, list[ConfigError]]:
    name, wrong = str(item.get("name") or ""), []
    selector: Selector | None = None
    if item.get("nodeSelector") is not None:
        try:
            selector = compile_selector(item["nodeSelector"], join(where, "nodeSelector"))
        except ConfigError as error:
            wrong.append(error)
    own = clean(s.STRATEGIES[key], item)
    if key == s.SYS:
        # A bandwidth that an entry leaves out is an explicit 0 upstream; kept, because node pools rely on it.
        own.setdefault("totalNetworkBandwidth", "0")
    if key == s.HOSTS:
        # The entry's list counts as it is: an empty one means that these nodes have no host applications.
        merged = {"applications": own.get("applications") or []}
    else:
        merged = merge(cluster, own)
    bad = list(_invalid(key, merged, where))
    # An invalid entry keeps its place in the order (first match wins) but acts as the cluster strategy.
    return NodeEntry(name, selector, cluster if bad else merged), wrong + bad


def _invalid(key: str, strategy: dict[str, Any], where: str) -> Iterator[ConfigError]:
    if key == s.COLOCATION:
        yield from validity_errors(strategy, where)
    else:
        yield from errors(s.STRATEGIES[key], strategy, where, "crd")


def _differs(new: KeyConfig, old: KeyConfig) -> bool:
    # What waited for a good value has its turn, also where that is the one in force.
    mended = old.stale and not new.stale
    return mended or (new.cluster, new.available, new.given, _entries(new)) != (old.cluster, old.available, old.given, _entries(old))


def _entries(config: KeyConfig) -> list[tuple[Any, dict[str, Any]]]:
    return [(entry.selector, entry.strategy) for entry in config.nodes]


class SLOConfigStore:
    """The configuration in force and its history of one step: feed it the ConfigMap's data, read `.config`."""

    def __init__(self) -> None:
        self.config = SLOConfig({**SLOConfig().keys, s.COLOCATION: KeyConfig(s.COLOCATION, s.DEFAULTS[s.COLOCATION], available=False)})
        self.errors: list[ConfigError] = []
        self._seen: SLOConfig | None = None

    def update(self, data: Mapping[str, str] | None) -> ParseResult:
        """Take the ConfigMap's data (None: absent)."""
        result = parse(data, previous=self._seen)
        self.config = self._seen = result.config
        self.errors = result.errors
        return result

    def restore(self, texts: Mapping[str, str]) -> None:
        """Begin with what was in force before this process, where what is now said cannot be read."""
        self.config = self._seen = parse(texts, previous=None).config

    def remember(self, keys: Collection[str]) -> None:
        """Keys that something was written by before this process: what is not said of them now is a feature rolled back."""
        known = self.config.keys.items()
        if any(key in keys and not found.given for key, found in known):
            self.config = self._seen = SLOConfig({key: replace(found, given=found.given or key in keys) for key, found in known})


def good_texts(data: Mapping[str, str], config: SLOConfig, before: Mapping[str, str]) -> dict[str, str]:
    """The texts of the keys that are in force: what `data` says, or where that was refused what was said `before`.

    A key that was taken out is an empty text, so that whoever reads them takes back what the key has written.
    """
    said = {key: before.get(key) if config.stale(key) else data.get(key, "" if config.keys[key].given else None) for key in s.KEYS}
    return {key: text for key, text in said.items() if text is not None}
