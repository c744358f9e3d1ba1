"""Defaults and validation of what limits others: admission policies, their bindings, and resource quotas."""

from __future__ import annotations

from typing import Any

from koord.api.quantity import Quantity
from koord.api.selectors import SelectorError, from_label_selector
from koord.apiserver.admission.quotas import COMPUTE, POD_SCOPES, STANDARD, scopes
from koord.apiserver.defaulting.cluster import default_match
from koord.apiserver.errors import Cause, field_forbidden, invalid_value, not_supported, required
from koord.apiserver.validation.names import qualified_name

Obj = dict[str, Any]

_ACTIONS = ("Deny", "Warn", "Audit")
_OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
_SCOPE_OPERATORS = ("DoesNotExist", "Exists", "In", "NotIn")
_WHOLE = ("pods", "services", "replicationcontrollers", "resourcequotas", "secrets", "configmaps", "persistentvolumeclaims")
_BEST_EFFORT = frozenset({"pods", "count/pods"})


# -- policies ------------------------------------------------------------------------------------------------------------------------


def default_policy(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("failurePolicy", "Fail")
    if spec.get("matchConstraints") is not None:
        default_match(spec["matchConstraints"], "resourceRules", "excludeResourceRules")


def default_binding(obj: Obj) -> None:
    match = (obj.get("spec") or {}).get("matchResources")
    if match is not None:
        default_match(match, "resourceRules", "excludeResourceRules")


def check_policy(obj: Obj, causes: list[Cause]) -> None:
    """What a policy matches, and that its expressions compile."""
    spec = obj.get("spec") or {}
    if spec.get("failurePolicy") not in ("Fail", "Ignore"):
        causes.append(not_supported("spec.failurePolicy", spec.get("failurePolicy") or "", ("Fail", "Ignore")))
    match = spec.get("matchConstraints")
    if match is None:
        causes.append(required("spec.matchConstraints"))
    else:
        if not match.get("resourceRules"):
            causes.append(required("spec.matchConstraints.resourceRules"))
        _check_match(match, "spec.matchConstraints", causes)
    kind = spec.get("paramKind")
    for key in ("apiVersion", "kind"):
        if kind is not None and not kind.get(key):
            causes.append(required(f"spec.paramKind.{key}"))
    if not spec.get("validations") and not spec.get("auditAnnotations"):
        causes.append(required("spec.validations", "validations or auditAnnotations must be specified"))
    from koord.apiserver.cel.policy import compile_policy

    causes += compile_policy(obj["metadata"].get("name") or "", spec).causes


def _check_match(match: Obj, path: str, causes: list[Cause]) -> None:
    if match.get("matchPolicy") not in ("Exact", "Equivalent"):
        causes.append(not_supported(f"{path}.matchPolicy", match.get("matchPolicy") or "", ("Equivalent", "Exact")))
    for key in ("namespaceSelector", "objectSelector"):
        try:
            from_label_selector(match.get(key) or {})
        except SelectorError as error:
            causes.append(invalid_value(f"{path}.{key}", match.get(key), str(error)))
    for key in ("resourceRules", "excludeResourceRules"):
        for at, rule in enumerate(match.get(key) or ()):
            where = f"{path}.{key}[{at}]"
            for part in ("operations", "apiGroups", "apiVersions", "resources"):
                if not rule.get(part):
                    causes.append(required(f"{where}.{part}"))
            for index, operation in enumerate(rule.get("operations") or ()):
                if operation not in _OPERATIONS:
                    causes.append(not_supported(f"{where}.operations[{index}]", operation, _OPERATIONS))
            if rule.get("scope") not in ("*", "Cluster", "Namespaced"):
                causes.append(not_supported(f"{where}.scope", rule.get("scope") or "", ("*", "Cluster", "Namespaced")))


def check_binding(obj: Obj, causes: list[Cause]) -> None:
    """Which policy, what happens to what it denies, and with which parameters."""
    spec = obj.get("spec") or {}
    if not spec.get("policyName"):
        causes.append(required("spec.policyName"))
    actions = spec.get("validationActions") or []
    if not actions:
        causes.append(required("spec.validationActions", "at least one validation action is required"))
    for at, action in enumerate(actions):
        if action not in _ACTIONS:
            causes.append(not_supported(f"spec.validationActions[{at}]", action, sorted(_ACTIONS)))
        elif action in actions[:at]:
            causes.append(Cause("FieldValueDuplicate", f"spec.validationActions[{at}]", f'Duplicate value: "{action}"'))
    if "Deny" in actions and "Warn" in actions:
        causes.append(
            invalid_value("spec.validationActions", actions, "must not contain both Deny and Warn (repeating the same information)")
        )
    if spec.get("matchResources") is not None:
        _check_match(spec["matchResources"], "spec.matchResources", causes)
    ref = spec.get("paramRef")
    if ref is not None:
        if ref.get("name") and ref.get("selector") is not None:
            causes += [field_forbidden(f"spec.paramRef.{key}", "name and selector are mutually exclusive") for key in ("name", "selector")]
        elif not ref.get("name") and ref.get("selector") is None:
            causes.append(required("spec.paramRef", "one of name or selector must be specified"))
        if not ref.get("parameterNotFoundAction"):
            causes.append(required("spec.paramRef.parameterNotFoundAction"))
        elif ref["parameterNotFoundAction"] not in ("Allow", "Deny"):
            causes.append(
                not_supported("spec.paramRef.parameterNotFoundAction", ref.get("parameterNotFoundAction") or "", ("Allow", "Deny"))
            )


# -- quotas --------------------------------------------------------------------------------------------------------------------------


def check_quota(obj: Obj, causes: list[Cause]) -> None:
    """Names and amounts of the limits, and the scopes they hold for."""
    spec = obj.get("spec") or {}
    for part, limits in (
        ("spec.hard", spec.get("hard")),
        *((f"status.{key}", (obj.get("status") or {}).get(key)) for key in ("hard", "used")),
    ):
        for name, text in (limits or {}).items():
            where = f"{part}[{name}]"
            wrong = qualified_name(name)
            if wrong:
                causes.append(invalid_value(where, name, wrong))
            elif "/" not in name and name not in STANDARD and not _known_part(name):
                causes.append(invalid_value(where, name, "must be a standard resource for quota"))
            amount = Quantity(text)
            if amount < Quantity(0):
                causes.append(invalid_value(where, text, "must be greater than or equal to 0"))
            elif (name in _WHOLE or name.startswith("count/")) and not amount.is_integer():
                causes.append(invalid_value(where, text, "must be an integer"))
    _check_scopes(obj, spec, causes)


def _known_part(name: str) -> bool:
    """hugepages and what is requested of them."""
    return name.removeprefix("requests.").startswith("hugepages-")


def _check_scopes(obj: Obj, spec: Obj, causes: list[Cause]) -> None:
    seen: list[str] = []
    for scope in scopes(obj):
        name, operator, values = scope.get("scopeName") or "", scope.get("operator") or "", scope.get("values") or ()
        where = "spec.scopes" if name in (spec.get("scopes") or ()) else "spec.scopeSelector.matchExpressions"
        if name not in POD_SCOPES:
            causes.append(invalid_value(where, name, "unsupported scope"))
            continue
        if operator not in _SCOPE_OPERATORS:
            causes.append(not_supported(f"{where}.operator", operator, _SCOPE_OPERATORS))
        elif operator in ("In", "NotIn") and not values:
            causes.append(required(f"{where}.values", "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"))
        elif name != "PriorityClass" and operator != "Exists":
            text = "must be 'Exist' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, "
            text += "ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity"
            causes.append(invalid_value(f"{where}.operator", operator, text))
        for limit in spec.get("hard") or ():
            if limit not in _BEST_EFFORT and (name == "BestEffort" or not _of_pods(limit)):
                causes.append(invalid_value(where, name, "unsupported scope applied to resource"))
                break
        seen.append(name)
    for one, other in (("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")):
        if one in seen and other in seen:
            causes.append(invalid_value("spec.scopes", spec.get("scopes") or [], "conflicting scopes"))


def _of_pods(limit: str) -> bool:
    """Whether a limit is about pods."""
    return limit in COMPUTE or (limit.split(".", 1)[0] in ("requests", "limits", "ephemeral-storage") and limit != "requests.storage")


def check_quota_update(new: Obj, old: Obj, causes: list[Cause]) -> None:
    if ((new.get("spec") or {}).get("scopes") or []) != ((old.get("spec") or {}).get("scopes") or []):
        causes.append(invalid_value("spec.scopes", (new.get("spec") or {}).get("scopes") or [], "field is immutable"))
