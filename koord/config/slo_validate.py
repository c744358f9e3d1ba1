"""What the ConfigMap webhook demands of slo-controller-config beyond being readable (MGR-CM-V-01); pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import orjson

from koord.api.quantity import QuantityError, parse_value
from koord.api.selectors import Selector
from koord.config import slo_schema as s
from koord.config.errors import ConfigError, join
from koord.config.schema import errors
from koord.config.selector_index import SelectorIndex
from koord.config.selectors import compile_selector, selector_errors

CHECKED = (s.COLOCATION, s.THRESHOLD, s.QOS, s.SYS, s.BURST, *s.EXTENSIONS)
"""Keys whose node entries and ranges are checked strictly; the other keys are checked for types and ranges only."""

_NETWORK_CLASSES = ("lsrClass", "lsClass", "beClass")
_NETWORK_FIELDS = ("ingressRequest", "ingressLimit", "egressRequest", "egressLimit")


class Refused(ValueError):
    """The ConfigMap is refused; the text is JSON with reason and message between underscores, as clients of upstream parse it."""

    def __init__(self, reason: str, messages: Iterable[str]) -> None:
        body = orjson.dumps({"reason": reason, "message": "; ".join(messages)}).decode()
        super().__init__(f"___{body}___")
        self.reason = reason


class NodeEntries:
    """The node entries of one key, compiled once; entries whose selector cannot be read match nothing."""

    def __init__(self, key: str, entries: list[dict[str, Any]]) -> None:
        self.key = key
        self._entries = entries
        self._index = SelectorIndex([_compiled(entry.get("nodeSelector")) for entry in entries])

    def __len__(self) -> int:
        return len(self._entries)

    def conflict(self, labels: Mapping[str, str]) -> list[str]:
        """Names of the entries that a node with these labels matches, if there are several."""
        hits = self._index.matching(labels)
        return [_name(self._entries[hit], hit) for hit in hits] if len(hits) > 1 else []

    def overlaps(self) -> Iterator[ConfigError]:
        """Entries that match the same nodes, with the labels of such a node."""
        for one, other, labels in self._index.overlaps():
            names = ", ".join(_name(self._entries[number], number) for number in (one, other))
            yield ConfigError(_where(self.key, one), f"the node strategies {names} match the same nodes, such as {labels}")


def _compiled(selector: Any) -> Selector | None:
    try:
        return None if selector is None else compile_selector(selector)
    except ConfigError:
        return None


def entries_in(data: Mapping[str, str], keys: Iterable[str] = CHECKED) -> list[NodeEntries]:
    """The node entries of the keys that can be read and have more than one."""
    found = []
    for key in keys:
        try:
            entries = entries_of(key, _parse(key, data[key])) if data.get(key) else []
        except Refused:
            continue
        if len(entries) > 1:
            found.append(NodeEntries(key, entries))
    return found


def check(new: Mapping[str, str], old: Mapping[str, str], *, need_names: bool) -> list[NodeEntries]:
    """Check every key that is non-empty and changed; the changed keys that have more than one node entry. Raises Refused."""
    many = []
    for key in s.KEYS:
        text = new.get(key, "")
        if not text.strip() or text == old.get(key):
            continue
        value = _parse(key, text)
        system = _parse(s.SYS, new[s.SYS]) if key == s.QOS and new.get(s.SYS, "").strip() else {}
        _raise("ConfigParamInvalid", errors(s.KEYS[key], value, key, "cm"))
        if key not in CHECKED:
            continue
        entries = entries_of(key, value)
        _raise("ConfigParamInvalid", _entry_errors(key, entries, need_names))
        if key == s.QOS:
            _raise("ConfigParamInvalid", _network_errors(value, system))
        compiled = NodeEntries(key, entries)
        _raise("NodeStrategiesOverlap", islice(compiled.overlaps(), 1))
        if len(compiled) > 1:
            many.append(compiled)
    return many


def mistakes(data: Mapping[str, str]) -> Iterator[ConfigError]:
    """Everything that `check` would refuse, each with its path. Keys that are not JSON are passed over."""
    readable: dict[str, dict[str, Any]] = {}
    for key in s.KEYS:
        try:
            readable[key] = _parse(key, data.get(key, "").strip() or "null")
        except Refused as refused:
            if refused.reason == "ParseConfigFail" and _is_json(data[key]):
                yield from errors(s.KEYS[key], orjson.loads(data[key]), key, "cm")
    for key, value in readable.items():
        yield from errors(s.KEYS[key], value, key, "cm")
        if key not in CHECKED:
            continue
        entries = entries_of(key, value)
        wrong = list(_entry_errors(key, entries, need_names=False))
        yield from wrong
        if key == s.QOS:
            yield from _network_errors(value, readable.get(s.SYS, {}))
        if not wrong:
            yield from islice(NodeEntries(key, entries).overlaps(), 1)


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _parse(key: str, text: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Refused("ParseConfigFail", [f"{key}: not valid JSON: {error}"]) from None
    value = {} if value is None else value
    _raise("ParseConfigFail", errors(s.KEYS[key], value, key))
    return value  # type: ignore[no-any-return]


def _raise(reason: str, found: Iterable[ConfigError]) -> None:
    messages = [str(error) for error in found]
    if messages:
        raise Refused(reason, messages)


def entries_of(key: str, value: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The node entries of a key's value."""
    field = "nodeConfigs" if key in s.FLAT else "nodeStrategies"
    return [entry for entry in value.get(field) or () if entry is not None]


def _where(key: str, index: int) -> str:
    return join(join(key, "nodeConfigs" if key in s.FLAT else "nodeStrategies"), index)


def _entry_errors(key: str, entries: list[dict[str, Any]], need_names: bool) -> Iterator[ConfigError]:
    seen: set[str] = set()
    for index, entry in enumerate(entries):
        selector, name = entry.get("nodeSelector"), entry.get("name") or ""
        if not selector or not (selector.get("matchLabels") or selector.get("matchExpressions")):
            yield ConfigError(join(_where(key, index), "nodeSelector"), "must not be empty")
        else:
            yield from selector_errors(selector, join(_where(key, index), "nodeSelector"))
        if need_names and not name:
            yield ConfigError(join(_where(key, index), "name"), "must be set (--node-strategy-name-need-check)")
        elif need_names and name in seen:
            yield ConfigError(join(_where(key, index), "name"), f"{name!r} is already the name of another entry")
        seen.add(name)


def _network_errors(value: Mapping[str, Any], system: Mapping[str, Any]) -> Iterator[ConfigError]:
    """Requests of LSR, LS and BE within one strategy: one form, at most 100 and at most the bandwidth of the matching system strategy."""
    places = [(join(s.QOS, "clusterStrategy"), value.get("clusterStrategy") or {}, None)]
    places += [(_where(s.QOS, i), entry, entry.get("nodeSelector")) for i, entry in enumerate(entries_of(s.QOS, value))]
    for where, strategy, selector in places:
        bandwidth = _bandwidth(system, selector)
        for direction in ("ingressRequest", "egressRequest"):
            requests: list[int | str] = []
            for name in _NETWORK_CLASSES:
                network = (strategy.get(name) or {}).get("networkQOS") or {}
                path = join(join(where, name), "networkQOS")
                if direction == "ingressRequest":
                    yield from _network_value_errors(network, path)
                if network.get(direction) is not None:
                    requests.append(network[direction])
            yield from _request_errors(requests, bandwidth, f"{where}.*.networkQOS.{direction}")


def _network_value_errors(network: Mapping[str, Any], path: str) -> Iterator[ConfigError]:
    for field in _NETWORK_FIELDS:
        amount = network.get(field)
        if isinstance(amount, int) and not 0 <= amount <= 100:
            yield ConfigError(join(path, field), f"a number is a percent and must be between 0 and 100, got {amount}")
        if isinstance(amount, str):
            try:
                parse_value(amount)
            except QuantityError:
                yield ConfigError(join(path, field), f'a string is a bandwidth like "10M", got {amount!r}')


def _request_errors(requests: list[int | str], bandwidth: int, where: str) -> Iterator[ConfigError]:
    if not requests:
        return
    if len({type(request) for request in requests}) > 1:
        yield ConfigError(where, "must be all percents (numbers) or all bandwidths (strings) within one strategy")
        return
    try:
        total = sum(parse_value(request) for request in requests)
    except QuantityError:
        return  # told by _network_value_errors
    if total > 100:
        yield ConfigError(where, f"the sum must not be more than 100, got {total}")
    elif isinstance(requests[0], str) and total > bandwidth:
        yield ConfigError(where, f"the sum must not be more than totalNetworkBandwidth ({bandwidth}), got {total}")


def _bandwidth(system: Mapping[str, Any], selector: Any) -> int:
    strategy: Mapping[str, Any] = {}
    if selector is None or not entries_of(s.SYS, system):
        strategy = system.get("clusterStrategy") or {}
    else:
        strategy = next((entry for entry in entries_of(s.SYS, system) if entry.get("nodeSelector") == selector), {})
    return parse_value(strategy.get("totalNetworkBandwidth") or 0)


def _name(entry: Mapping[str, Any], index: int) -> str:
    return str(entry.get("name") or f"#{index}")
