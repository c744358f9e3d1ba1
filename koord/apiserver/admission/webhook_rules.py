"""The registered webhooks, ready to match."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from koord.apiserver.admission.attributes import Attributes
from koord.apiserver.admission.matching import Match, compile_match, matching_resource

if TYPE_CHECKING:
    from koord.apiserver.cel.environment import Environment
    from koord.apiserver.cel.policy import Condition
    from koord.apiserver.core import Core
    from koord.apiserver.resources import Resource

Obj = dict[str, Any]


class ConditionError(Exception):
    """A match condition that cannot be evaluated."""


@dataclass(frozen=True, slots=True)
class Hook:
    """One registered webhook."""

    configuration: str
    name: str
    raw: Obj
    match: Match
    ignore_failure: bool
    timeout: float
    reinvoke: bool
    dry_run_safe: bool
    conditions: tuple[Condition, ...] = ()
    env: Environment | None = None
    """What the conditions are evaluated in."""


def compile_hooks(configurations: list[Obj], core: Core) -> list[Hook]:
    """All webhooks in calling order: by configuration name, then as listed."""
    out: list[Hook] = []
    for configuration in sorted(configurations, key=lambda c: c["metadata"]["name"]):
        for raw in configuration.get("webhooks") or ():
            out.append(
                Hook(
                    configuration["metadata"]["name"],
                    raw["name"],
                    raw,
                    compile_match(raw, "rules"),
                    raw.get("failurePolicy") == "Ignore",
                    float(raw.get("timeoutSeconds", 10)),
                    raw.get("reinvocationPolicy") == "IfNeeded",
                    raw.get("sideEffects") in ("None", "NoneOnDryRun"),
                    *_conditions(raw, core),
                )
            )
    return out


def _conditions(raw: Obj, core: Core) -> tuple[tuple[Condition, ...], Environment | None]:
    if not raw.get("matchConditions"):
        return (), None
    from koord.apiserver.admission.expressions import answers
    from koord.apiserver.cel.policy import environment, match_conditions

    env = environment(answers(core))
    return match_conditions(raw["matchConditions"], env, "", []), env


def wanted(core: Core, hook: Hook, attributes: Attributes) -> Resource | None:
    """The resource (version) in which a webhook is asked about a request; None when it is not. Raises ConditionError."""
    if hook.match.rules is None:
        return None
    found = matching_resource(core, hook.match, attributes)
    if found is None or hook.env is None:
        return found
    from koord.apiserver.admission.expressions import values
    from koord.apiserver.cel.environment import CelError
    from koord.apiserver.cel.policy import meets

    try:
        return found if meets(hook.conditions, hook.env.bind(values(core, found, attributes))) else None
    except CelError as error:
        raise ConditionError(str(error)) from None
