"""One ValidatingAdmissionPolicy, compiled: what it says of a request. Decides only; matching and look-ups are its caller's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from koord.apiserver.admission.matching import Attributes, describe, in_version
from koord.apiserver.cel.environment import (
    BOOL,
    DYN,
    NULL,
    STRING,
    Allows,
    Bound,
    CelError,
    Environment,
    Program,
    Type,
    check_message,
    readable,
    told,
)
from koord.apiserver.cel.library import authorizer, own_type
from koord.apiserver.errors import Cause, duplicate, invalid_value, not_supported, required
from koord.apiserver.rbac import Attributes as Question
from koord.apiserver.store import Obj
from koord.apiserver.users import User

if TYPE_CHECKING:
    from koord.apiserver.resources import Resource
    from koord.apiserver.state import State


def values(state: State, resource: Resource, attributes: Attributes) -> Obj:
    """The variables of a request. `params` is the caller's."""
    user = attributes.options.user
    namespace = state.store.bucket("/namespaces").get("", attributes.namespace) if attributes.namespace else None
    given = {"group": resource.group, "resource": resource.plural, "subresource": attributes.subresource}
    given |= {"namespace": attributes.place, "name": attributes.name}
    return {
        "object": readable(in_version(attributes.obj, resource)) if attributes.obj is not None else None,
        "oldObject": readable(in_version(attributes.old, resource)) if attributes.old is not None else None,
        "request": readable(describe(resource, attributes)),
        "namespaceObject": readable(namespace.obj) if namespace is not None else None,
        "params": None,
        "authorizer": authorizer(user.name, user.groups),
        "authorizer.requestResource": authorizer(user.name, user.groups, **given),
    }


def answers(state: State) -> Callable[[Obj], tuple[bool, str]]:
    """The authorizer of a server; without RBAC everybody may do everything."""

    def allows(question: Obj) -> tuple[bool, str]:
        if state.authorizer is None:
            return True, ""
        parts = ("verb", "group", "resource", "subresource", "namespace", "name", "path")
        wanted = Question(**{part: question.get(part) or "" for part in parts})
        return state.authorizer.would_allow(User(question["user"], tuple(question["groups"])), wanted), ""

    return allows


Values = dict[str, Any]

REASONS = ("Forbidden", "Invalid", "RequestEntityTooLarge")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_USED = re.compile(r"\bvariables\s*\.\s*([A-Za-z_][A-Za-z0-9_]*)")


def environment(allows: Allows | None, *, variables: Mapping[str, Program] | None = None) -> Environment:
    """What expressions of policies and match conditions may use. Without `allows` the authorizer's answers are all no."""
    known: dict[str, Type] = dict.fromkeys(("object", "oldObject", "request", "namespaceObject", "params"), DYN)
    known |= {"authorizer": own_type("Authorizer"), "authorizer.requestResource": own_type("Check")}
    made = {f"variables.{name}": program for name, program in (variables or {}).items()}
    known |= {name: program.type for name, program in made.items()}
    sizes = {name: program.size for name, program in made.items()}
    return Environment(known, sizes=sizes, allows=allows or (lambda question: (False, "")))


def match_conditions(raw: Iterable[Obj], env: Environment, path: str, causes: list[Cause]) -> tuple[Program, ...]:
    """Compile match conditions; what is wrong with them becomes causes."""
    found = [compiled(env, item.get("expression"), f"{path}[{at}].expression", causes, BOOL) for at, item in enumerate(raw)]
    return tuple(program for program in found if program is not None)


def compiled(env: Environment, text: Any, path: str, causes: list[Cause], *results: str) -> Program | None:
    """Compile an expression that must be there; None with a cause for what is wrong."""
    if not text or not str(text).strip():
        causes.append(required(path, "expression is not specified"))
        return None
    try:
        return env.compile(text, *results)
    except CelError as error:
        causes.append(invalid_value(path, text, str(error)))
        return None


def meets(conditions: Iterable[Program], values: Bound) -> bool:
    """Whether all conditions hold of values of their environment. One that is false decides, whatever others fail with. Raises CelError."""
    failed: CelError | None = None
    for condition in conditions:
        try:
            if not condition.evaluate(values):
                return False
        except CelError as error:
            failed = failed or CelError(f"expression '{condition.expression}' resulted in error: {error}")
    if failed is not None:
        raise failed
    return True


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is held against a request."""

    message: str
    reason: str = "Invalid"


@dataclass(frozen=True, slots=True)
class _Validation:
    program: Program
    message: str
    message_program: Program | None
    reason: str


@dataclass(slots=True)
class Policy:
    """A policy, ready to judge. `causes` are the mistakes of its text; a policy that has any judges nothing."""

    name: str
    spec: Obj
    env: Environment
    causes: list[Cause] = field(default_factory=list)
    conditions: tuple[Program, ...] = ()
    variables: list[tuple[str, Program]] = field(default_factory=list)
    validations: list[_Validation] = field(default_factory=list)
    annotations: list[tuple[str, Program]] = field(default_factory=list)
    used: dict[str, set[str]] = field(default_factory=dict)
    """Variables by the expressions that use them."""

    @property
    def fails(self) -> bool:
        """What cannot be judged is refused."""
        return self.spec.get("failurePolicy") != "Ignore"

    def _bound(self, given: Values, programs: Iterable[Program], failed: dict[str, str]) -> Bound:
        """Values for some expressions: `given`, and the variables that they use, which `given` keeps. Those that fail go to `failed`."""
        wanted: set[str] = set()
        for program in programs if self.variables else ():
            if program.expression not in self.used:
                self.used[program.expression] = _uses(program, dict(self.variables))
            wanted |= self.used[program.expression]
        for name, variable in self.variables:
            key = f"variables.{name}"
            if name in wanted and key not in given:
                try:
                    given[key] = variable.evaluate(self.env.bind(given))
                except CelError as error:  # it fails where it is used, if it is
                    failed[key] = f'composited variable "{name}" fails to evaluate: {error}'
        return self.env.bind(given)

    def applies(self, given: Values) -> bool:
        """Whether all match conditions hold. Raises CelError."""
        return not self.conditions or meets(self.conditions, self.env.bind(given))

    def judge(self, given: Values) -> list[Verdict]:
        """All validations that do not hold, also those that cannot be judged where the policy says so; `given` collects the variables."""
        out: list[Verdict] = []
        failed: dict[str, str] = {}
        bound = self._bound(given, (validation.program for validation in self.validations), failed)
        for validation in self.validations:
            try:
                held = validation.program.evaluate(bound)
            except CelError as error:
                if self.fails:
                    why = next((why for key, why in failed.items() if f'"{key}"' in str(error)), str(error))
                    out.append(Verdict(f"expression '{validation.program.expression}' resulted in error: {why}"))
                continue
            if not held:
                out.append(Verdict(self._message(validation, given), validation.reason))
        return out

    def _message(self, validation: _Validation, given: Values) -> str:
        program = validation.message_program
        made = told(program, self._bound(given, (program,), {})) if program is not None else ""
        return made or validation.message or f"failed expression: {validation.program.expression.strip()}"

    def audit(self, given: Values) -> dict[str, str]:
        """The audit annotations that say something."""
        out: dict[str, str] = {}
        for key, program in self.annotations:
            try:
                value = program.evaluate(self._bound(given, (program,), {}))
            except CelError as error:
                value = f"error: {error}"
            if value:
                out[f"{self.name}/{key}"] = value
        return out


def _uses(program: Program, variables: Mapping[str, Program]) -> set[str]:
    """Names of the variables that an expression uses, directly or through others."""
    found: set[str] = set()
    rest = [program.expression]
    while rest:
        for name in _USED.findall(rest.pop()):
            if name in variables and name not in found:
                found.add(name)
                rest.append(variables[name].expression)
    return found


def compile_policy(name: str, spec: Obj, allows: Allows | None = None) -> Policy:
    """Compile a policy's spec; mistakes are in its `causes`."""
    causes: list[Cause] = []
    variables: dict[str, Program] = {}
    env = environment(allows)
    for at, item in enumerate(spec.get("variables") or ()):  # each knows those before it
        where = f"spec.variables[{at}]"
        own = item.get("name") or ""
        if not _IDENTIFIER.fullmatch(own):
            causes.append(invalid_value(f"{where}.name", own, "name is not a valid CEL identifier") if own else required(f"{where}.name"))
        elif own in variables:
            causes.append(duplicate(f"{where}.name", own))
        program = compiled(env, item.get("expression"), f"{where}.expression", causes)
        if program is not None and own and own not in variables:
            variables[own] = program
            env = environment(allows, variables=variables)
    out = Policy(name, spec, env, causes)
    if not causes:
        out.variables = [(item["name"], env.compile(item["expression"])) for item in spec.get("variables") or ()]
    out.conditions = match_conditions(spec.get("matchConditions") or (), env, "spec.matchConditions", causes)
    for at, item in enumerate(spec.get("validations") or ()):
        made = _validation(env, item, f"spec.validations[{at}]", causes)
        if made is not None:
            out.validations.append(made)
    for at, item in enumerate(spec.get("auditAnnotations") or ()):
        where = f"spec.auditAnnotations[{at}]"
        program = compiled(env, item.get("valueExpression"), f"{where}.valueExpression", causes, STRING, NULL)
        if program is not None:
            out.annotations.append((item.get("key") or "", program))
    return out


def _validation(env: Environment, item: Obj, where: str, causes: list[Cause]) -> _Validation | None:
    program = compiled(env, item.get("expression"), f"{where}.expression", causes, BOOL)
    message, reason = item.get("message") or "", item.get("reason") or "Invalid"
    message_of = None
    if item.get("messageExpression"):
        message_of = compiled(env, item["messageExpression"], f"{where}.messageExpression", causes, STRING)
    check_message(message, str(item.get("expression") or ""), where, "expression", causes)
    if reason not in REASONS:
        causes.append(not_supported(f"{where}.reason", reason, REASONS))
    return _Validation(program, message.strip(), message_of, reason) if program is not None else None
