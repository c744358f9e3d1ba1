"""What is remembered of rules is asked anew where the answer may be another."""

from __future__ import annotations

from dataclasses import replace

from koord.apiserver.admission.matching import Attributes, compile_match, matching_resource
from koord.apiserver.config import ServerConfig
from koord.apiserver.core import Core
from koord.apiserver.rest.context import Options


def _asked(core: Core, name: str, operation: str = "UPDATE", plural: str = "pods") -> Attributes:
    return Attributes(operation, core.resources.builtin("", plural), "", "apps", name, {}, None, Options())


def test_names_and_operations_are_told_apart() -> None:
    core = Core(ServerConfig())
    rule = {"operations": ["UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "resourceNames": ["a"]}
    match = compile_match({"rules": [rule]}, "rules")
    for _ in range(2):
        assert matching_resource(core, match, _asked(core, "a")) is not None
        assert matching_resource(core, match, _asked(core, "b")) is None
        assert matching_resource(core, match, _asked(core, "a", "CREATE")) is None
        assert matching_resource(core, match, _asked(core, "a", plural="configmaps")) is None


def test_a_version_that_comes_later_is_matched() -> None:
    core = Core(ServerConfig())
    pods = core.resources.builtin("", "pods")
    rule = {"operations": ["*"], "apiGroups": [""], "apiVersions": ["v9"], "resources": ["pods"]}
    match = compile_match({"rules": [rule]}, "rules")
    assert matching_resource(core, match, _asked(core, "a")) is None
    later = replace(pods, version="v9")
    core.resources.add(later)
    assert matching_resource(core, match, _asked(core, "a")) is later
    core.resources.remove(later)
    assert matching_resource(core, match, _asked(core, "a")) is None
