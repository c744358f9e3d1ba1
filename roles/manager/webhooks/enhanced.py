"""The enhanced pod validator: labels that every pod must carry, from a ConfigMap (MGR-POD-V-05)."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from koord import seams
from koord.api.kinds import CONFIGMAPS
from koord.api.objects import decode
from koord.kube.client import Client
from koord.kube.errors import ApiError, NotFound
from roles.manager.options import Options

log = logging.getLogger("koord.manager.webhooks")

PATIENCE = 2.0  # seconds for a look at the ConfigMap, for which reviews wait
AGAIN = 10.0  # seconds at most until the next look after one that failed


class Rule(msgspec.Struct, rename="camel", frozen=True):
    """Labels that pods must have, outside the namespaces of the whitelist."""

    name: str = ""
    required_labels: tuple[str, ...] = ()
    namespace_whitelist: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RuleSet:
    """What the ConfigMap says."""

    enabled: bool = False
    rules: tuple[Rule, ...] = ()


def parse(data: Mapping[str, str], previous: RuleSet) -> RuleSet:
    """The rules of a ConfigMap's data; rules that cannot be read leave the previous ones in force; pure."""
    enabled, text = data.get("enable", "").strip().lower() == "true", data.get("rules", "").strip() or "[]"
    try:
        rules = decode(text.encode(), tuple[Rule, ...]) if text != "null" else ()
    except (msgspec.DecodeError, RecursionError) as error:
        log.warning("pod-enhanced-validator: rules cannot be read, the previous ones stay: %s", error)
        rules = previous.rules
    return RuleSet(enabled, rules)


def failure(rules: RuleSet, labels: Mapping[str, str], namespace: str) -> str:
    """The first rule that a pod breaks, with all labels that it lacks; "" for none; pure."""
    for rule in rules.rules if rules.enabled else ():
        if namespace in rule.namespace_whitelist:
            continue
        missing = [key for key in rule.required_labels if key not in labels]
        if missing:
            return f"rule {rule.name!r} requires labels that the pod does not have: {', '.join(missing)}"
    return ""


class EnhancedValidator:
    """Keeps the rules: read at the first pod, then again after the interval. Reviews share one look, which does not hold them up for long:
    an API server that does not answer must not make every pod's review late."""

    def __init__(self, client: Client, options: Options) -> None:
        self.client, self.options = client, options
        self.rules = RuleSet()
        self._reading = asyncio.Lock()
        self._next = -math.inf  # monotonic time of the next look

    async def current(self, now: float) -> RuleSet:
        """The rules at a monotonic time; a ConfigMap that is gone means none, one that cannot be reached changes nothing."""
        if now >= self._next:
            async with self._reading:
                if now >= self._next:  # nobody has looked meanwhile
                    await self._read()
        return self.rules

    async def _read(self) -> None:
        interval = self.options.enhanced_validator_interval
        name, namespace = self.options.enhanced_validator_name, self.options.enhanced_validator_namespace
        try:
            async with asyncio.timeout(PATIENCE):
                found = await self.client.get(CONFIGMAPS, name, namespace)
            self.rules = parse(found.get("data") or {}, self.rules)
        except NotFound:
            self.rules = RuleSet()
        except (ApiError, TimeoutError) as error:
            log.warning("pod-enhanced-validator: %s; the rules stay", str(error) or f"no answer within {PATIENCE:g} s")
            interval = min(interval, AGAIN)
        self._next = seams.monotonic() + interval
