"""What a user's own code may add to the node agent (KA-PLG-01): strategies, policies for pods, another evictor, NodeSLO extensions.

An extension is a function ``register(extensions)``, found by the entry point ``koord.koordlet.extensions`` or in a file of
``--plugin-path``. It is called once, before anything runs.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import orjson

from koord.api.names import ANNOTATION_CPU_BURST, ANNOTATION_MEMORY_QOS
from koord.process.errors import ConfigurationError, UsageError, told
from roles.koordlet.qos.outcome import Strategy
from roles.koordlet.states.model import PodState

if TYPE_CHECKING:
    from koord.kube.client import Client
    from roles.koordlet.eviction.evictor import Evictor
    from roles.koordlet.options import Options

log = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "koord.koordlet.extensions"


@dataclass(frozen=True, slots=True)
class PodPolicy:
    """What a pod gets that says nothing of its own: the fields of the two annotations, as in their JSON. None leaves it."""

    cpu_burst: Mapping[str, Any] | None = None
    memory_qos: Mapping[str, Any] | None = None


#: Asked when the kubelet lists a pod that is new or changed.
PolicyOf = Callable[[PodState], PodPolicy | None]
#: (client, the evictor of koordlet) -> the evictor to use.
EvictorFactory = Callable[["Client", "Evictor"], "Evictor"]


@dataclass(slots=True)
class Extensions:
    """What was registered."""

    strategies: list[type[Strategy[Any]]] = field(default_factory=list)
    policies: list[PolicyOf] = field(default_factory=list)
    evictor: EvictorFactory | None = None
    slo_defaults: dict[str, Any] = field(default_factory=dict)
    gates: dict[str, bool] = field(default_factory=dict)
    """``--qos-extension-plugins``."""
    _complaints: dict[str, str] = field(default_factory=dict)

    # -- for extensions ------------------------------------------------------------------------------------------------------

    def strategy(self, kind: type[Strategy[Any]]) -> None:
        """Add a strategy; it runs where ``--qos-extension-plugins`` has its name. Raises ConfigurationError for a name that is taken, and
        for a class that is not whole."""
        from roles.koordlet.qos.registry import NAMES

        if not (inspect.isclass(kind) and issubclass(kind, Strategy)):
            raise ConfigurationError(f"{kind!r:.80} is no Strategy class")
        if not getattr(kind, "name", ""):
            raise ConfigurationError(f"strategy {kind.__name__} of {kind.__module__} has no `name`")
        if inspect.isabstract(kind):
            missing = ", ".join(sorted(kind.__abstractmethods__))
            raise ConfigurationError(f"strategy {kind.name!r} of {kind.__module__} does not define: {missing}")
        if kind.name in NAMES or any(kind.name == other.name for other in self.strategies):
            raise ConfigurationError(f"strategy {kind.name!r} of {kind.__module__} is there already")
        self.strategies.append(kind)

    def pod_policy(self, function: PolicyOf) -> None:
        """Add a source of policies for pods without annotations; the first that answers counts."""
        self.policies.append(function)

    def replace_evictor(self, factory: EvictorFactory) -> None:
        """Evict in another way. Raises ConfigurationError when somebody does already."""
        if self.evictor is not None:
            raise ConfigurationError("two extensions want to replace the evictor")
        self.evictor = factory

    def slo_extension(self, key: str, default: Any) -> None:
        """Have ``NodeSLO.spec.extensions[key]`` delivered, laid over ``default``, in ``snapshot.slo.extensions``. Raises ConfigurationError
        for a key that has another default already, and for a default that is not JSON."""
        if key in self.slo_defaults and self.slo_defaults[key] != default:
            raise ConfigurationError(f"the NodeSLO extension {key!r} is there already")
        try:
            orjson.dumps({key: default})
        except TypeError as error:
            raise ConfigurationError(f"the NodeSLO extension {key!r}: its default cannot be in a NodeSLO: {error}") from error
        self.slo_defaults[key] = default

    # -- for the agent -------------------------------------------------------------------------------------------------------

    def gate(self, gate: Callable[[str], bool]) -> Callable[[str], bool]:
        """Gates of the agent, with those of extensions."""
        return lambda name: self.gates[name] if name in self.gates else gate(name)

    def make_strategies(self, options: Options, gate: Callable[[str], bool]) -> list[Strategy[Any]]:
        """Those that are switched on."""
        return [kind(options, self.gate(gate)) for kind in self.strategies if self.gates.get(kind.name, False)]

    def with_policies(self, pod: PodState) -> PodState:
        """The pod as if it carried the annotations that its policies stand for; its own annotations win."""
        missing = [key for key in (ANNOTATION_CPU_BURST, ANNOTATION_MEMORY_QOS) if key not in pod.annotations]
        if not self.policies or not missing:
            return pod
        added: dict[str, str] = {}
        for function in self.policies:
            try:
                found = _annotations(function(pod))
            except (Exception, SystemExit) as error:
                # a mistake in one extension must not cost the pod its isolation
                self._complain(f"pod policy {getattr(function, '__name__', function)}", f"{type(error).__name__}: {error}")
                continue
            added |= {key: text for key, text in found.items() if key in missing and key not in added}
        return replace(pod, annotations={**pod.annotations, **added}) if added else pod

    def _complain(self, who: str, what: str) -> None:
        """Once a policy until it fails in another way: what it says may name each pod that comes."""
        if self._complaints.get(who) != what:
            log.log(logging.DEBUG if who in self._complaints else logging.ERROR, "%s: %s", who, what)
            self._complaints[who] = what


def _annotations(policy: Any) -> dict[str, str]:
    """What a policy stands for. Raises TypeError."""
    if policy is None:
        return {}
    if not isinstance(policy, PodPolicy):
        raise TypeError(f"a PodPolicy or None is wanted, not {policy!r:.80}")
    values = ((ANNOTATION_CPU_BURST, policy.cpu_burst), (ANNOTATION_MEMORY_QOS, policy.memory_qos))
    return {key: orjson.dumps(dict(value)).decode() for key, value in values if value is not None}


def parse_gates(text: str) -> dict[str, bool]:
    """``Name=true,Other=false``. Raises ConfigurationError."""
    out: dict[str, bool] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, value = part.partition("=")
        if value not in ("true", "false") or not name.strip():
            raise UsageError(f"--qos-extension-plugins: {part!r} is not Name=true|false")
        out[name.strip()] = value == "true"
    return out


def load(paths: Iterable[str], gates: str = "") -> Extensions:
    """Find and call everything that is offered. Raises ConfigurationError, which names what cannot be used and why."""
    found = Extensions(gates=parse_gates(gates))
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        try:
            register = entry.load()
        except Exception as error:
            raise ConfigurationError(f"extension {entry.name!r} ({entry.value}) cannot be loaded: {told(error)}") from error
        _call(register, found, f"extension {entry.name!r}")
    for path in paths:
        _call(_register_of(path), found, path)
    unknown = sorted(set(found.gates) - {kind.name for kind in found.strategies})
    if unknown:
        known = ", ".join(kind.name for kind in found.strategies) or "none"
        raise UsageError(f"--qos-extension-plugins: {', '.join(unknown)}: extension strategies that were loaded: {known}")
    for kind in found.strategies:
        if kind.name not in found.gates:
            log.info("strategy %s is loaded and off; --qos-extension-plugins=%s=true turns it on", kind.name, kind.name)
    return found


def _register_of(path: str) -> Any:
    """``register`` of a Python file. Raises ConfigurationError."""
    name = f"koord_extension_{os.path.splitext(os.path.basename(path))[0]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not os.path.isfile(path):
        raise ConfigurationError(f"--plugin-path: {path} {'is no Python file' if os.path.exists(path) else 'does not exist'}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a file that calls exit() must not end koordlet without a word
        del sys.modules[name]
        raise ConfigurationError(f"--plugin-path: {path} cannot be loaded: {told(error, path)}") from error
    return getattr(module, "register", None)


def _call(register: Any, extensions: Extensions, source: str) -> None:
    if not callable(register):
        raise ConfigurationError(f"{source}: there is no function register(extensions)")
    try:
        register(extensions)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(f"{source}: register failed: {told(error, source)}") from error
    log.info("extension %s is loaded", source)
