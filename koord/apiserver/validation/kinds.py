"""What is checked of kinds other than pods and CustomResourceDefinitions, beside the rules of `schema/rules.json`."""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

import orjson

from koord.api.quantity import Quantity
from koord.api.selectors import SelectorError, from_label_selector
from koord.apiserver.admission.quotas import POD_SCOPES, STANDARD, scopes
from koord.apiserver.errors import Cause, duplicate, field_forbidden, invalid_value, not_supported, required, too_long
from koord.apiserver.facts import conditions
from koord.apiserver.schema.builtin import Path_, path_text
from koord.apiserver.schema.lists import repeats
from koord.apiserver.schema.rules import checking, defaulting, making, updating
from koord.apiserver.store import Obj
from koord.apiserver.validation.names import check_name, label_selector, label_value, pathless, qualified_name
from koord.apiserver.validation.pods import amount, no_volume, whole
from koord.apiserver.validation.rollouts import share

_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_DATA_LIMIT = 1024 * 1024
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_CRON = re.compile(r"^(@(yearly|annually|monthly|weekly|daily|midnight|hourly)|@every .+|(\S+\s+){4}\S+)\Z")
_HIGHEST_USER_PRIORITY = 1_000_000_000
_SYSTEM_PRIORITIES = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}
_SCOPE_OPERATORS = ("DoesNotExist", "Exists", "In", "NotIn")
_WHOLE = ("pods", "services", "replicationcontrollers", "resourcequotas", "secrets", "configmaps", "persistentvolumeclaims")
_POD_PARTS = ("cpu", "memory", "requests", "limits", "ephemeral-storage")
_LONGEST_NOTE = 1024  # of an event
_BEST_EFFORT = frozenset({"pods", "count/pods"})


def _spec(obj: Obj) -> Obj:
    return obj.get("spec") or {}


# -- workloads -----------------------------------------------------------------------------------------------------------------------


@checking("V1Deployment", "V1ReplicaSet", "V1StatefulSet", "V1DaemonSet", "V1ReplicationController")
def _workload(obj: Obj, path: Path_, causes: list[Cause]) -> None:
    """The selector selects the template, whose pods start again for ever."""
    template, selector = _spec(obj).get("template") or {}, _spec(obj).get("selector")
    labels = (template.get("metadata") or {}).get("labels") or {}
    if selector:
        if obj["kind"] == "ReplicationController":
            matches = all(labels.get(k) == v for k, v in selector.items())
        else:
            try:
                matches = from_label_selector(selector).matches(labels)
            except SelectorError as error:
                causes.append(invalid_value("spec.selector", selector, str(error)))
                matches = True
            if not (selector.get("matchLabels") or selector.get("matchExpressions")):
                causes.append(invalid_value("spec.selector", selector, f"empty selector is invalid for {obj['kind'].lower()}"))
        if not matches:
            causes.append(invalid_value("spec.template.metadata.labels", labels, "`selector` does not match template `labels`"))
    restart = (template.get("spec") or {}).get("restartPolicy", "Always")
    if restart != "Always":
        causes.append(not_supported("spec.template.spec.restartPolicy", restart, ("Always",)))


@checking("V1JobSpec")
def _job(spec: Obj, path: Path_, causes: list[Cause]) -> None:
    if "template" not in spec:
        causes.append(required(f"{path_text(path)}.template.spec.containers"))
    elif ((spec["template"].get("spec")) or {}).get("restartPolicy") == "Always":
        causes.append(required(f"{path_text(path)}.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"'))


# where the pods of a suspended Job run
_PLACING = frozenset({"nodeSelector", "schedulingGates", "tolerations"})


def _unplaced(template: Obj) -> Obj:
    """What a template says of its pods, without where they run and how much they ask for."""
    spec = {key: value for key, value in _spec(template).items() if key not in _PLACING}
    affinity = {key: value for key, value in (spec.pop("affinity", None) or {}).items() if key != "nodeAffinity"}
    for part in ("containers", "initContainers"):
        spec[part] = [{**container, "resources": None} for container in spec.get(part) or ()]
    return {**spec, "affinity": affinity}


@updating("V1Job")
def _job_stays(new: Obj, old: Obj, causes: list[Cause]) -> None:
    """What a Job runs stays. While a suspended one has no pods, they may be placed elsewhere; if they have indexes, there may be more."""
    spec, before = _spec(new), _spec(old)
    more, former = spec.get("completions"), before.get("completions")
    if more != former and spec.get("completionMode") != "Indexed":
        causes.append(invalid_value("spec.completions", more, "field is immutable"))
    elif more != former and more != spec.get("parallelism"):
        causes.append(invalid_value("spec.completions", more, "can only be modified in tandem with spec.parallelism"))
    template, stored = spec.get("template") or {}, before.get("template") or {}
    place, status = "spec.template", old.get("status") or {}
    stopped = not status.get("startTime") or conditions(old).get("Suspended") == "True"
    if before.get("suspend") and stopped and not status.get("active"):
        place, template, stored = "spec.template.spec", _unplaced(template), _unplaced(stored)
    if template != stored:
        causes.append(invalid_value(place, template, "field is immutable"))


_CHANGEABLE = (
    "replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit", "persistentVolumeClaimRetentionPolicy", "minReadySeconds",
)  # fmt: skip


@updating("V1StatefulSet")
def _stateful_set(new: Obj, old: Obj, causes: list[Cause]) -> None:
    """Most of a StatefulSet stays as it was made."""
    if any(_spec(new).get(key) != _spec(old).get(key) for key in (_spec(new).keys() | _spec(old).keys()) - {*_CHANGEABLE}):
        named = ", ".join(f"'{key}'" for key in _CHANGEABLE[:-1])
        text = f"updates to statefulset spec for fields other than {named} and '{_CHANGEABLE[-1]}' are forbidden"
        causes.append(field_forbidden("spec", text))


@checking("V1StatefulSetSpec")
def _claimed_volumes(spec: Obj, path: Path_, causes: list[Cause]) -> None:
    """The claims that each pod gets are volumes of it. The template, which is checked before, does not name them."""
    claims = {str((claim.get("metadata") or {}).get("name") or "") for claim in spec.get("volumeClaimTemplates") or ()}
    if claims:
        causes[:] = [cause for cause in causes if cause not in {no_volume(cause.field, claim) for claim in claims}]
    if spec.get("podManagementPolicy") not in ("OrderedReady", "Parallel"):
        causes.append(invalid_value("spec.podManagementPolicy", spec.get("podManagementPolicy"), "must be 'OrderedReady' or 'Parallel'"))


@checking("V1CronJobSpec")
def _cron_job(spec: Obj, path: Path_, causes: list[Cause]) -> None:
    if spec.get("schedule") and not _CRON.match(spec["schedule"]):
        causes.append(invalid_value("spec.schedule", spec["schedule"], "expected exactly 5 fields"))
    if "jobTemplate" not in spec:
        causes.append(required("spec.jobTemplate.spec.template.spec.containers"))


@checking("V2HorizontalPodAutoscalerSpec")
def _autoscaler(spec: Obj, path: Path_, causes: list[Cause]) -> None:
    if max(1, spec.get("maxReplicas", 0)) == spec.get("maxReplicas") < spec.get("minReplicas", 1):
        causes.append(invalid_value("spec.maxReplicas", spec["maxReplicas"], "must be greater than or equal to `minReplicas`"))


@checking("V1PodDisruptionBudget")
def _budget(obj: Obj, path: Path_, causes: list[Cause]) -> None:
    """minAvailable and maxUnavailable: one of them, whole and not negative, or a percentage."""
    spec = _spec(obj)
    if "minAvailable" in spec and "maxUnavailable" in spec:
        causes.append(invalid_value("spec", spec, "minAvailable and maxUnavailable cannot be both set"))
    for key in ("minAvailable", "maxUnavailable"):
        share(spec.get(key), f"spec.{key}", causes)


# -- nodes and what pods use ---------------------------------------------------------------------------------------------------------


@checking("V1Node")
def _node(node: Obj, path: Path_, causes: list[Cause]) -> None:
    """Taints, and the names and quantities of resources."""
    seen: set[tuple[str, str]] = set()
    for i, taint in enumerate(_spec(node).get("taints") or ()):
        where = f"metadata.taints[{i}]"
        key, value, effect = (taint.get(part) or "" for part in ("key", "value", "effect"))
        check_name(qualified_name, key, f"{where}.key", causes)
        check_name(label_value, value, f"{where}.value", causes)
        if not effect:
            causes.append(required(f"{where}.effect"))
        elif effect not in _EFFECTS:
            causes.append(not_supported(f"{where}.effect", effect, _EFFECTS))
        if (key, effect) in seen:
            what = duplicate(where, taint).message
            causes.append(Cause("FieldValueDuplicate", where, f"{what}: taints must be unique by key and effect pair"))
        seen.add((key, effect))
    for part in ("capacity", "allocatable"):
        for name, value in ((node.get("status") or {}).get(part) or {}).items():
            where = f"status.{part}[{name}]"
            if not check_name(qualified_name, name, where, causes) and not amount(value, where, causes):
                whole(name, value, where, causes)


@checking("V1ConfigMap")
def _data(obj: Obj, path: Path_, causes: list[Cause]) -> None:
    size = 0
    for field in ("data", "binaryData"):
        for key, value in (obj.get(field) or {}).items():
            if not _DATA_KEY.fullmatch(key) or key in (".", "..") or len(key) > 253:
                usual = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"  # noqa: E501
                causes.append(invalid_value(f"{field}[{key}]", key, f"must not be '{key}'" if key in (".", "..") else usual))
            if field == "data" and key in (obj.get("binaryData") or ()):
                causes.append(invalid_value(f"data[{key}]", key, "duplicate of key present in binaryData"))
            text = field == "data" and obj["kind"] == "ConfigMap"
            size += len(value.encode()) if text else len(value) // 4 * 3 - value[-2:].count("=")  # else it is base64
    if size > _DATA_LIMIT:
        field = "data" if obj["kind"] == "Secret" else ""
        causes.append(too_long(field, _DATA_LIMIT))


# the keys that a secret of a type must have
_SECRET_KEYS = {
    "kubernetes.io/basic-auth": ("username", "password"),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}
_ACCOUNT = "kubernetes.io/service-account.name"


@checking("V1Secret")
def _secret(obj: Obj, path: Path_, causes: list[Cause]) -> None:
    """What the type of a secret wants in it."""
    _data(obj, path, causes)
    kind, data = obj.get("type") or "", obj.get("data") or {}
    missing = [key for key in _SECRET_KEYS.get(kind, ()) if key not in data]
    # a user or a password alone will do
    if missing and not (kind == "kubernetes.io/basic-auth" and len(missing) == 1):
        causes += [required(f"data[{key}]") for key in missing]
    elif kind in ("kubernetes.io/dockercfg", "kubernetes.io/dockerconfigjson"):
        (key,) = _SECRET_KEYS[kind]
        try:
            orjson.loads(base64.b64decode(data[key]))
        except ValueError as error:
            causes.append(invalid_value(f"data[{key}]", "<secret contents redacted>", str(error)))
    elif kind == "kubernetes.io/service-account-token" and not (obj["metadata"].get("annotations") or {}).get(_ACCOUNT):
        causes.append(required(f"metadata.annotations[{_ACCOUNT}]"))


@updating("V1ConfigMap", "V1Secret")
def _immutable_data(new: Obj, old: Obj, causes: list[Cause]) -> None:
    """ConfigMaps and Secrets marked immutable stay as they are."""
    if old.get("immutable"):
        changed = (() if new.get("immutable") else ("immutable",)) + tuple(k for k in ("data", "binaryData") if new.get(k) != old.get(k))
        causes += [field_forbidden(key, "field is immutable when `immutable` is set") for key in changed]


@checking("V1ServiceSpec")
def _service(spec: Obj, path: Path_, causes: list[Cause]) -> None:
    ports = spec.get("ports") or ()
    if spec.get("type") == "ExternalName":
        if spec.get("clusterIP"):
            causes.append(field_forbidden("spec.clusterIPs", "may not be set for ExternalName services"))
        if not spec.get("externalName"):
            causes.append(required("spec.externalName"))
    elif spec.get("clusterIP") not in (None, "", "None"):
        try:
            ipaddress.ip_address(spec["clusterIP"])
        except ValueError:
            text = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            causes.append(invalid_value("spec.clusterIPs[0]", spec["clusterIP"], text))
    if not ports and spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName":
        causes.append(required("spec.ports"))
    causes += [required(f"spec.ports[{i}].name") for i, port in enumerate(ports) if len(ports) > 1 and not port.get("name")]
    causes += [duplicate(f"spec.ports[{i}].nodePort", ports[i]["nodePort"]) for i in _taken(ports, "nodePort")]
    causes += [duplicate(f"spec.ports[{i}]", {key: ports[i].get(key) for key in ("protocol", "port")}) for i in _taken(ports, "port")]


@updating("V1Service")
def _same_address(new: Obj, old: Obj, causes: list[Cause]) -> None:
    """A Service keeps its address until it has none, by its type."""
    before, after = _spec(old), _spec(new)
    stays = before.get("clusterIP") and "ExternalName" not in (before.get("type"), after.get("type"))
    if stays and after.get("clusterIP") != before["clusterIP"]:
        causes.append(invalid_value("spec.clusterIPs[0]", [after.get("clusterIP")], "may not change once set"))


def _taken(ports: Sequence[Obj], key: str) -> list[int]:
    """Those of which another of the same protocol has the number."""
    return repeats([port.get("protocol"), port[key]] if port.get(key) else at for at, port in enumerate(ports))


@checking("CoreV1Event")
def _event(obj: Obj, path: Path_, causes: list[Cause]) -> None:
    _told(obj, "reportingComponent", causes)


@checking("EventsV1Event")
def _newer_event(obj: Obj, path: Path_, causes: list[Cause]) -> None:
    """An event of the newer API, in the form in which it is stored."""
    _told(obj, "reportingController", causes)


def _told(event: Obj, reporter: str, causes: list[Cause]) -> None:
    """An older event lives in the namespace of what it is about; one with a time of its own says who tells it, and no essays."""
    involved = (event.get("involvedObject") or {}).get("namespace") or ""
    namespace = event["metadata"].get("namespace") or ""
    elsewhere = not involved and namespace not in ("default", "kube-system")
    if not event.get("eventTime"):
        elsewhere = involved != namespace and not (not involved and namespace == "default")
    if elsewhere:
        causes.append(invalid_value("involvedObject.namespace", involved, "does not match event.namespace"))
    if not event.get("eventTime"):
        return
    shown = {"reportingComponent": reporter}
    for key in ("reportingComponent", "reportingInstance", "action", "reason", "message"):
        text, where = event.get(key) or "", shown.get(key, key)
        if not text and key != "message":
            causes.append(required(where))
        elif key == "reportingComponent":
            check_name(qualified_name, text, where, causes)
        elif len(text.encode()) > (most := _LONGEST_NOTE if key == "message" else 128):
            causes.append(invalid_value(where, "", f"can have at most {most} characters"))


@making("EventsV1Event")
def _new_event(obj: Obj, causes: list[Cause]) -> None:
    """The newer API does without what the older one counted by."""
    _series(obj, causes)
    if not obj.get("eventTime"):
        causes.append(required("eventTime"))
    if obj.get("type") not in ("Normal", "Warning"):
        causes.append(invalid_value("type", "", f"has invalid value: {obj.get('type') or ''}"))
    source = obj.get("source") or {}
    unset = {key: obj.get(key) for key in ("firstTimestamp", "lastTimestamp", "count")}
    unset["source"] = source.get("component") or source.get("host")
    causes += [invalid_value(key, "", "needs to be unset") for key, value in unset.items() if value]


@updating("EventsV1Event")
def _same_event(new: Obj, old: Obj, causes: list[Cause]) -> None:
    """Only the series goes on."""
    if new.get("series") != old.get("series"):
        _series(new, causes)
    for key in _FIXED_OF_EVENTS:
        if (new.get(key) or None) != (old.get(key) or None):
            where = "reportingController" if key == "reportingComponent" else key
            causes.append(invalid_value(where, new.get(key), "field is immutable"))


_FIXED_OF_EVENTS = (
    "involvedObject", "reason", "message", "source", "firstTimestamp", "lastTimestamp", "count", "type", "eventTime", "action", "related",
    "reportingComponent", "reportingInstance",
)  # fmt: skip


def _series(event: Obj, causes: list[Cause]) -> None:
    series = event.get("series")
    if series is not None and series.get("count", 0) < 2:
        causes.append(invalid_value("series.count", "", "should be at least 2"))
    if series is not None and not series.get("lastObservedTime"):
        causes.append(required("series.lastObservedTime"))


@checking("V1PersistentVolumeClaim")
def _claim(obj: Obj, path: Path_, causes: list[Cause]) -> None:
    if path is not None:  # the templates of StatefulSets are checked by nobody
        return
    if not _spec(obj).get("accessModes"):
        causes.append(required("spec.accessModes", "at least 1 access mode is required"))
    if "storage" not in ((_spec(obj).get("resources") or {}).get("requests") or {}):
        causes.append(required("spec.resources[storage]"))


@updating("V1PersistentVolumeClaim")
def _claim_stays(new: Obj, old: Obj, causes: list[Cause]) -> None:
    """A claim may be bound, and then grow, nothing else. It may ask for less again, as far as that is more than there is."""
    bound = (old.get("status") or {}).get("phase") == "Bound"
    before, after = (_fixed_claim(_spec(obj), bound=bound) for obj in (old, new))
    for key in ("volumeName", "storageClassName"):  # what is not known yet
        if not before.get(key):
            before[key] = after[key] = None
    if after != before:
        text = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
        causes.append(field_forbidden("spec", text))
    size, known = (_storage(_spec(obj).get("resources"), "requests") for obj in (new, old))
    if size < known and size <= _storage(old.get("status"), "capacity"):
        causes.append(field_forbidden("spec.resources.requests.storage", "field can not be less than status.capacity"))


def _fixed_claim(spec: Obj, *, bound: bool) -> Obj:
    """What a claim says that may not change."""
    resources = spec.get("resources") or {}
    if bound:
        requests = {name: amount for name, amount in (resources.get("requests") or {}).items() if name != "storage"}
        spec = {**spec, "resources": {**resources, "requests": requests}, "volumeAttributesClassName": None}
    return dict(spec)


def _storage(holder: Obj | None, part: str) -> Quantity:
    return Quantity(((holder or {}).get(part) or {}).get("storage", 0))


@checking("V1Namespace")
def _namespace(obj: Obj, path: Path_, causes: list[Cause]) -> None:
    for i, finalizer in enumerate(_spec(obj).get("finalizers") or ()):
        if not check_name(qualified_name, finalizer, f"spec.finalizers[{i}]", causes) and pathless([finalizer]):
            text = "name is neither a standard finalizer name nor is it fully qualified"
            causes.append(invalid_value(f"spec.finalizers[{i}]", finalizer, text))


@checking("V1AggregationRule")
def _aggregation(rule: Obj, path: Path_, causes: list[Cause]) -> None:
    where, selectors = f"{path_text(path)}.clusterRoleSelectors", rule.get("clusterRoleSelectors") or ()
    if not selectors:
        causes.append(required(where, "at least one clusterRoleSelector required if aggregationRule is non-nil"))
    for i, selector in enumerate(selectors):
        label_selector(selector, f"{where}[{i}]", causes)


@checking("V1PriorityClass")
def _priority_class(obj: Obj, path: Path_, causes: list[Cause]) -> None:
    """User classes stay below the system's; the prefix system- is reserved."""
    name, value = obj["metadata"].get("name") or "", obj.get("value", 0)
    if name.startswith("system-"):
        known = _SYSTEM_PRIORITIES.get(name)
        if known != value:
            why = f"value of {name} PriorityClass must be {known}" if known else f"{name} is not a known system priority class"
            text = f"priority class names with 'system-' prefix are reserved for system use only. error: {why}"
            causes.append(field_forbidden("metadata.name", text))
    elif value > _HIGHEST_USER_PRIORITY:
        causes.append(field_forbidden("value", f"maximum allowed value of a user defined priority is {_HIGHEST_USER_PRIORITY}"))


@checking("V1beta1PodGroupSchedulingPolicy")
def _group_policy(obj: Obj, path: Path_, causes: list[Cause]) -> None:
    """Exactly one policy."""
    given = [name for name in ("basic", "gang") if obj.get(name) is not None]
    if len(given) != 1:
        said = "{" + ", ".join(given) + "}" if given else ""
        text = "must specify exactly one of: `basic`, `gang`" if given else "must specify one of: `basic`, `gang`"
        causes.append(invalid_value(path_text(path), said, text))


# -- admission -----------------------------------------------------------------------------------------------------------------------


@checking("V1MutatingWebhookConfiguration", "V1ValidatingWebhookConfiguration")
def _webhooks(obj: Obj, path: Path_, causes: list[Cause]) -> None:
    """Names and client configurations of webhooks."""
    for i, hook in enumerate(obj.get("webhooks") or ()):
        where, name = f"webhooks[{i}]", hook.get("name") or ""
        if name and name.count(".") < 2:
            causes.append(invalid_value(f"{where}.name", name, "should be a domain with at least three segments separated by dots"))
        client = hook.get("clientConfig") or {}
        if ("url" in client) == ("service" in client):
            causes.append(required(f"{where}.clientConfig", "exactly one of url or service is required"))
        elif "url" in client:
            _webhook_url(client["url"], f"{where}.clientConfig.url", causes)
        else:
            causes += [required(f"{where}.clientConfig.service.{key}") for key in ("name", "namespace") if not client["service"].get(key)]
        for at, rule in enumerate(hook.get("rules") or ()):
            _webhook_rule(rule, f"{where}.rules[{at}]", causes)
        versions = hook.get("admissionReviewVersions") or ()
        if versions and not {"v1", "v1beta1"} & set(versions):
            text = "must include at least one of v1, v1beta1"
            causes.append(invalid_value(f"{where}.admissionReviewVersions", list(versions), text))
        if hook.get("matchConditions"):
            from koord.apiserver.cel.policy import environment, match_conditions

            match_conditions(hook["matchConditions"], environment(None), f"{where}.matchConditions", causes)


_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def _webhook_url(text: str, where: str, causes: list[Cause]) -> None:
    """Where a webhook is. On this machine, for development, plain HTTP will do."""
    url, form = urlsplit(text), "; desired format: https://host[/path]"
    if url.scheme != "https" and not (url.scheme == "http" and url.hostname in _LOOPBACK):
        causes.append(invalid_value(where, url.scheme, f"'https' is the only allowed URL scheme{form}"))
    if not url.hostname:
        causes.append(invalid_value(where, url.hostname or "", f"host must be specified{form}"))
    for part, value in (("user information", url.username), ("fragment", url.fragment), ("query parameters", url.query)):
        if value:
            causes.append(invalid_value(where, value, f"{part} are not permitted in the URL"))


def _webhook_rule(rule: Obj, where: str, causes: list[Cause]) -> None:
    """A wildcard stands alone."""
    operations, resources = rule.get("operations") or (), rule.get("resources") or ()
    if len(operations) > 1 and "*" in operations:
        causes.append(invalid_value(f"{where}.operations", operations, "if '*' is present, must not specify other operations"))
    if len(resources) > 1 and "*/*" in resources:
        causes.append(invalid_value(f"{where}.resources", resources, "if '*/*' is present, must not specify other resources"))
    elif "*" in resources and any("/" not in name for name in resources if name != "*"):
        text = "if '*' is present, must not specify other resources without subresources"
        causes.append(invalid_value(f"{where}.resources", resources, text))


@checking("V1ValidatingAdmissionPolicy")
def _policy(obj: Obj, path: Path_, causes: list[Cause]) -> None:
    """What a policy matches, and that its expressions compile."""
    from koord.apiserver.cel.policy import compile_policy

    spec = _spec(obj)
    if spec.get("matchConstraints") and not spec["matchConstraints"].get("resourceRules"):
        causes.append(required("spec.matchConstraints.resourceRules"))
    if not spec.get("validations") and not spec.get("auditAnnotations"):
        causes.append(required("spec.validations", "validations or auditAnnotations must be specified"))
    causes += compile_policy(obj["metadata"].get("name") or "", spec).causes


@checking("V1ValidatingAdmissionPolicyBindingSpec")
def _binding(spec: Obj, path: Path_, causes: list[Cause]) -> None:
    """What happens to what a policy denies, and with which parameters it is asked."""
    actions, ref = spec.get("validationActions") or [], spec.get("paramRef")
    known = ("Deny", "Warn", "Audit")
    causes += [duplicate(f"spec.validationActions[{at}]", actions[at]) for at in repeats(actions) if actions[at] in known]
    if "Deny" in actions and "Warn" in actions:
        text = "must not contain both Deny and Warn (repeating the same information)"
        causes.append(invalid_value("spec.validationActions", actions, text))
    if ref is not None and ref.get("name") and ref.get("selector") is not None:
        causes += [field_forbidden(f"spec.paramRef.{key}", "name and selector are mutually exclusive") for key in ("name", "selector")]
    elif ref is not None and not ref.get("name") and ref.get("selector") is None:
        causes.append(required("spec.paramRef", "one of name or selector must be specified"))


# -- rights --------------------------------------------------------------------------------------------------------------------------


@checking("V1Role", "V1ClusterRole")
def _role(obj: Obj, path: Path_, causes: list[Cause]) -> None:
    """Each rule is about verbs on resources, or in a ClusterRole on paths."""
    for i, rule in enumerate(obj.get("rules") or ()):
        where, paths = f"rules[{i}]", rule.get("nonResourceURLs")
        if paths and obj["kind"] == "Role":
            causes.append(invalid_value(f"{where}.nonResourceURLs", paths, "namespaced rules cannot apply to non-resource URLs"))
        elif paths:
            if rule.get("apiGroups") or rule.get("resources") or rule.get("resourceNames"):
                text = "rules cannot apply to both regular resources and non-resource URLs"
                causes.append(invalid_value(f"{where}.nonResourceURLs", paths, text))
        else:
            if not rule.get("apiGroups"):
                causes.append(required(f"{where}.apiGroups", "resource rules must supply at least one api group"))
            if not rule.get("resources"):
                causes.append(required(f"{where}.resources", "resource rules must supply at least one resource"))


_RBAC_GROUP = "rbac.authorization.k8s.io"
_SUBJECTS = {"ServiceAccount": "", "User": _RBAC_GROUP, "Group": _RBAC_GROUP}


@defaulting("V1RoleBinding", "V1ClusterRoleBinding")
def _binding_groups(obj: Obj) -> None:
    ref = obj.setdefault("roleRef", {})
    ref["apiGroup"] = ref.get("apiGroup") or _RBAC_GROUP
    for subject in obj.get("subjects") or ():
        if not subject.get("apiGroup") and subject.get("kind") in ("User", "Group"):
            subject["apiGroup"] = _RBAC_GROUP


@checking("V1RoleBinding", "V1ClusterRoleBinding")
def _role_binding(obj: Obj, path: Path_, causes: list[Cause]) -> None:
    """To which role, and to whom."""
    ref, kinds = obj.get("roleRef") or {}, ("ClusterRole",) if obj["kind"] == "ClusterRoleBinding" else ("Role", "ClusterRole")
    if ref.get("kind") not in kinds:
        causes.append(not_supported("roleRef.kind", ref.get("kind") or "", kinds))
    for i, subject in enumerate(obj.get("subjects") or ()):
        where, kind, group = f"subjects[{i}]", subject.get("kind"), subject.get("apiGroup") or ""
        wanted = _SUBJECTS.get(kind)
        if wanted is not None and group != wanted:
            causes.append(not_supported(f"{where}.apiGroup", group, (wanted,)))
        if kind == "ServiceAccount" and not subject.get("namespace") and obj["kind"] == "ClusterRoleBinding":
            causes.append(required(f"{where}.namespace"))


@updating("V1RoleBinding", "V1ClusterRoleBinding")
def _same_role(new: Obj, old: Obj, causes: list[Cause]) -> None:
    if new.get("roleRef") != old.get("roleRef"):
        causes.append(invalid_value("roleRef", new.get("roleRef"), "cannot change roleRef"))


@checking("V1ResourceQuota")
def _quota(obj: Obj, path: Path_, causes: list[Cause]) -> None:
    """Names and amounts of the limits, and the scopes they hold for."""
    status = obj.get("status") or {}
    for part, limits in (("spec.hard", _spec(obj).get("hard")), ("status.hard", status.get("hard")), ("status.used", status.get("used"))):
        for name, text in (limits or {}).items():
            where = f"{part}[{name}]"
            known = "/" in name or name in STANDARD or name.removeprefix("requests.").startswith("hugepages-")
            if not check_name(qualified_name, name, where, causes) and not known:
                causes.append(invalid_value(where, name, "must be a standard resource for quota"))
            counted = name in _WHOLE or name.startswith("count/")
            if not amount(text, where, causes) and counted and not Quantity(text).is_integer():
                causes.append(invalid_value(where, text, "must be an integer"))
    _scopes(obj, _spec(obj), causes)


def _scopes(obj: Obj, spec: Obj, causes: list[Cause]) -> None:
    seen: set[str] = set()
    plain, hard = frozenset(spec.get("scopes") or ()), spec.get("hard") or ()
    of_pods = {limit for limit in hard if limit.split(".", 1)[0] in _POD_PARTS and limit != "requests.storage"}
    # of a quota with scopes, and with that of best-effort pods
    strange = any(limit not in _BEST_EFFORT and limit not in of_pods for limit in hard)
    strange_at_best = any(limit not in _BEST_EFFORT for limit in hard)
    for scope in scopes(obj):
        name, operator, values = scope.get("scopeName") or "", scope.get("operator") or "", scope.get("values") or ()
        where = "spec.scopes" if name in plain else "spec.scopeSelector.matchExpressions"
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
        if strange_at_best if name == "BestEffort" else strange:
            causes.append(invalid_value(where, name, "unsupported scope applied to resource"))
        seen.add(name)
    for one, other in (("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")):
        if one in seen and other in seen:
            causes.append(invalid_value("spec.scopes", spec.get("scopes") or [], "conflicting scopes"))
