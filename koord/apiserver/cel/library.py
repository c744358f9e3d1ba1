"""Functions that Kubernetes adds to CEL: regular expressions, lists, URLs, quantities, addresses and the authorizer.

Values that CEL does not know (a quantity, a URL) are protobuf messages of the package `kubernetes`, each with its canonical text, so
that equal values are equal in CEL as well.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson
from cel_expr_python import cel
from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, duration_pb2, message_factory, struct_pb2, timestamp_pb2, wrappers_pb2

from koord.api.quantity import Quantity, QuantityError
from koord.apiserver.cel import versions
from koord.apiserver.schema import formats
from koord.apiserver.schema.builtin import reads
from koord.apiserver.schema.structural import compiled_pattern
from koord.apiserver.users import ACCOUNT, account_groups

Text = cel.Type.STRING
_OPAQUE = ("Quantity", "URL", "IP", "CIDR", "Authorizer", "Check", "Decision", "Semver")
WELL_KNOWN_FILES = tuple(f"google/protobuf/{name}.proto" for name in ("struct", "timestamp", "duration"))


def new_pool() -> descriptor_pool.DescriptorPool:
    """A pool with the messages of this library and the well-known types."""
    made = descriptor_pool.DescriptorPool()
    for well_known in (struct_pb2, timestamp_pb2, duration_pb2, any_pb2, wrappers_pb2):
        made.AddSerializedFile(well_known.DESCRIPTOR.serialized_pb)
    file = descriptor_pb2.FileDescriptorProto(name="koord/cel.proto", package="kubernetes", syntax="proto3")
    for name in _OPAQUE:
        message = file.message_type.add(name=name)
        message.field.add(name="text", number=1, type=9, label=1)
    made.Add(file)
    return made


@lru_cache(maxsize=1)
def pool() -> descriptor_pool.DescriptorPool:
    """The pool of environments without types of their own."""
    return new_pool()


@lru_cache(maxsize=1)
def _classes() -> dict[str, Any]:
    return {name: message_factory.GetMessageClass(pool().FindMessageTypeByName(f"kubernetes.{name}")) for name in _OPAQUE}


def _made(kind: str, text: str) -> Any:
    return _classes()[kind](text=text)


def own_type(kind: str) -> Any:
    """One of the types of this library, such as Authorizer."""
    return cel.Type(f"kubernetes.{kind}")


# -- values --------------------------------------------------------------------------------------------------------------------------


def quantity(text: str) -> Any:
    """The value of a quantity. Raises ValueError."""
    try:
        return _made("Quantity", str(Quantity(text)))
    except QuantityError as error:
        raise ValueError(str(error)) from None


def semver(text: str) -> Any:
    """The value of a semantic version. Raises ValueError."""
    if not versions.valid(text):
        raise ValueError(f"{json.dumps(text)} is no semantic version")
    return _made("Semver", text)


def _number(at: int, value: Any) -> int:
    return versions.numbers(value.text)[at]


def _of(value: Any) -> Quantity:
    return Quantity(value.text)


def _plus(value: Any, other: Any, *, sign: int) -> Any:
    more = Quantity(other) if isinstance(other, int) else _of(other)
    return _made("Quantity", str(_of(value) + more * sign))


def _as_integer(value: Any) -> int:
    amount = _of(value)
    if not amount.is_integer():
        raise ValueError("cannot convert value to integer")
    return amount.value()


def _url(text: str) -> Any:
    if not formats.uri(text):
        raise ValueError(f"URL parse error during conversion from string: parse {json.dumps(text)}: invalid URI for request")
    _ = urlsplit(text).port  # raises for one that is no number
    return _made("URL", text)


def _host(value: Any, *, port: bool) -> str:
    parts = urlsplit(value.text)
    place = str(parts.netloc).rpartition("@")[2]
    if port:
        return place
    name = place.rpartition(":")[0] if parts.port is not None else place
    return name.removeprefix("[").removesuffix("]")


def _ip(text: str) -> Any:
    if "%" in text or text.lower().startswith("::ffff:"):
        raise ValueError(f"IP Address {json.dumps(text)} parse error during conversion from string: not an address of its own")
    return _made("IP", str(ipaddress.ip_address(text)))


def _cidr(text: str) -> Any:
    if "/" not in text:
        raise ValueError(f"network address parse error during conversion from string: {json.dumps(text)}")
    return _made("CIDR", str(ipaddress.ip_interface(text)))


def _address(value: Any) -> Any:
    return ipaddress.ip_address(value if isinstance(value, str) else value.text)


def _network(value: Any) -> Any:
    return ipaddress.ip_interface(value if isinstance(value, str) else value.text).network


def _contains(network: Any, other: Any) -> bool:
    mine, theirs = _network(network), other
    return bool(mine.version == theirs.version and (theirs in mine if not hasattr(theirs, "prefixlen") else theirs.subnet_of(mine)))


def _find(text: str, pattern: str, limit: int) -> list[str]:
    return [found.group(0) for _, found in zip(range(limit), compiled_pattern(pattern).finditer(text), strict=False)]


# -- lists ---------------------------------------------------------------------------------------------------------------------------


def _index(values: list[Any], wanted: Any, *, last: bool) -> int:
    found = [at for at, value in enumerate(values) if value == wanted and isinstance(value, bool) == isinstance(wanted, bool)]
    return (found[-1] if last else found[0]) if found else -1


def _extreme(pick: Callable[[Iterable[Any]], Any]) -> Callable[[list[Any]], Any]:
    def chosen(values: list[Any]) -> Any:
        if not values:
            raise ValueError(f"{pick.__name__} called on empty list")
        return pick(values)

    return chosen


# -- the authorizer ------------------------------------------------------------------------------------------------------------------


def authorizer(user: str, groups: Iterable[str], **given: str) -> Any:
    """The variable `authorizer` for a user, or a question of which parts are known already."""
    text = orjson.dumps({"user": user, "groups": list(groups), **given}).decode()
    return _made("Check" if given else "Authorizer", text)


def _asked(part: str, kind: str = "Check") -> Callable[..., Any]:
    return lambda question, value: _made(kind, json.dumps({**json.loads(question.text), part: value}))


def _as_account(question: Any, namespace: str, name: str) -> Any:
    return authorizer(f"{ACCOUNT}{namespace}:{name}", account_groups(namespace))


# -- declarations --------------------------------------------------------------------------------------------------------------------


_STANDARD = ("strings", "lists", "optional", "sets", "two-var-comprehensions")


@lru_cache(maxsize=4)
def config(*more: str) -> Any:
    """The extensions of CEL itself that Kubernetes has everywhere, and `more` by name."""
    names = ", ".join(f"{{name: {name}}}" for name in (*_STANDARD, *more))
    return cel.NewEnvConfigFromYaml(f"name: kubernetes\nextensions: [{names}]\n")


def extensions(allows: Callable[[dict[str, Any]], tuple[bool, str]] | None = None, *, semver: bool = False) -> list[Any]:
    """What Kubernetes adds. `allows` answers the authorizer's questions: whether, and why. `semver`: with semantic versions."""
    made = [*_functions(semver=semver), *(_versions() if semver else ())]
    if allows is not None:
        made += _authorization(allows)
    return [cel.CelExtension("kubernetes", made)]


def _function(name: str, *overloads: tuple[Any, list[Any], Callable[..., Any]], member: bool = True) -> Any:
    own = f"kubernetes_{name.replace('.', '_')}"
    made = [cel.Overload(f"{own}_{at}", result, given, member, impl) for at, (result, given, impl) in enumerate(overloads)]
    return cel.FunctionDecl(name, made)


def _plain(name: str, result: Any, given: list[Any], impl: Callable[..., Any]) -> Any:
    return _function(name, (result, given, impl), member=False)


def _member(name: str, result: Any, given: list[Any], impl: Callable[..., Any]) -> Any:
    return _function(name, (result, given, impl))


def _functions(*, semver: bool) -> list[Any]:
    yes, whole, real, any_ = cel.Type.BOOL, cel.Type.INT, cel.Type.DOUBLE, cel.Type.DYN
    many, texts = cel.Type.List(any_), cel.Type.List(Text)
    amount, url, ip, cidr = (own_type(name) for name in _OPAQUE[:4])
    compared = any_ if semver else amount  # the library cannot tell overloads for two sorts of messages apart

    return [
        _member("find", Text, [Text, Text], lambda text, pattern: next(iter(_find(text, pattern, 1)), "")),
        _function(
            "findAll",
            (texts, [Text, Text], lambda text, pattern: _find(text, pattern, len(text) + 1)),
            (texts, [Text, Text, whole], lambda text, pattern, limit: _find(text, pattern, len(text) + 1 if limit < 0 else limit)),
        ),
        _member("isSorted", yes, [many], lambda values: all(a <= b for a, b in pairwise(values))),
        _member("sum", any_, [many], lambda values: sum(values[1:], values[0]) if values else 0),
        _member("min", any_, [many], _extreme(min)),
        _member("max", any_, [many], _extreme(max)),
        _member("indexOf", whole, [many, any_], lambda values, value: _index(values, value, last=False)),
        _member("lastIndexOf", whole, [many, any_], lambda values, value: _index(values, value, last=True)),
        _plain("isURL", yes, [Text], reads(_url)),
        _plain("url", url, [Text], _url),
        _member("getScheme", Text, [url], lambda value: urlsplit(value.text).scheme),
        _member("getHost", Text, [url], lambda value: _host(value, port=True)),
        _member("getHostname", Text, [url], lambda value: _host(value, port=False)),
        _member("getPort", Text, [url], lambda value: str(urlsplit(value.text).port or "")),
        _member("getEscapedPath", Text, [url], lambda value: urlsplit(value.text).path),
        _member("getQuery", cel.Type.Map(Text, texts), [url], lambda value: parse_qs(urlsplit(value.text).query, keep_blank_values=True)),
        _plain("isQuantity", yes, [Text], reads(quantity)),
        _plain("quantity", amount, [Text], quantity),
        _member("isInteger", yes, [amount], lambda value: _of(value).is_integer()),
        _member("asInteger", whole, [amount], _as_integer),
        _member("asApproximateFloat", real, [amount], lambda value: float(_of(value).as_fraction())),
        _member("sign", whole, [amount], lambda value: (_of(value) > Quantity(0)) - (_of(value) < Quantity(0))),
        _function("add", *((amount, [amount, other], partial(_plus, sign=1)) for other in (amount, whole))),
        _function("sub", *((amount, [amount, other], partial(_plus, sign=-1)) for other in (amount, whole))),
        _member("isGreaterThan", yes, [compared, compared], lambda a, b: _compare(a, b) > 0),
        _member("isLessThan", yes, [compared, compared], lambda a, b: _compare(a, b) < 0),
        _member("compareTo", whole, [compared, compared], _compare),
        _plain("isIP", yes, [Text], reads(_ip)),
        _plain("ip", ip, [Text], _ip),
        _plain("ip.isCanonical", yes, [Text], lambda text: _ip(text).text == text),
        _member("family", whole, [ip], lambda value: _address(value).version),
        _member("isUnspecified", yes, [ip], lambda value: _address(value).is_unspecified),
        _member("isLoopback", yes, [ip], lambda value: _address(value).is_loopback),
        _member("isLinkLocalMulticast", yes, [ip], _link_local_multicast),
        _member("isLinkLocalUnicast", yes, [ip], lambda value: _address(value).is_link_local),
        _member("isGlobalUnicast", yes, [ip], _global_unicast),
        _plain("isCIDR", yes, [Text], reads(_cidr)),
        _plain("cidr", cidr, [Text], _cidr),
        _function("containsIP", *((yes, [cidr, other], lambda a, b: _contains(a, _address(b))) for other in (ip, Text))),
        _function("containsCIDR", *((yes, [cidr, other], lambda a, b: _contains(a, _network(b))) for other in (cidr, Text))),
        _member("prefixLength", whole, [cidr], lambda value: _network(value).prefixlen),
        _member("masked", cidr, [cidr], lambda value: _made("CIDR", str(_network(value)))),
    ]


def _versions() -> list[Any]:
    """Semantic versions."""
    kind = own_type("Semver")
    numbers = (_member(part, cel.Type.INT, [kind], partial(_number, at)) for at, part in enumerate(("major", "minor", "patch")))
    return [
        _plain("isSemver", cel.Type.BOOL, [Text], reads(semver)),
        _plain("semver", kind, [Text], semver),
        *numbers,
    ]


def _compare(one: Any, other: Any) -> int:
    """Two quantities, or two semantic versions."""
    if one.DESCRIPTOR.name == other.DESCRIPTOR.name == "Semver":
        return versions.compare(one.text, other.text)
    return (_of(one) > _of(other)) - (_of(one) < _of(other))


def _link_local_multicast(value: Any) -> bool:
    address = _address(value)
    return address in ipaddress.ip_network("224.0.0.0/24" if address.version == 4 else "ff02::/16")


def _global_unicast(value: Any) -> bool:
    address = _address(value)
    return not (
        address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local or str(address) == "255.255.255.255"
    )


def _authorization(allows: Callable[[dict[str, Any]], tuple[bool, str]]) -> list[Any]:
    yes = cel.Type.BOOL
    asker, check, decision = (own_type(name) for name in _OPAQUE[4:7])

    def decide(question: Any, verb: str) -> Any:
        allowed, why = allows({**json.loads(question.text), "verb": verb})
        return _made("Decision", json.dumps({"allowed": allowed, "reason": why}))

    return [
        _member("path", check, [asker, Text], _asked("path")),
        _member("serviceAccount", asker, [asker, Text, Text], _as_account),
        _member("group", check, [asker, Text], _asked("group")),
        *(_member(part, check, [check, Text], _asked(part)) for part in ("resource", "subresource", "namespace", "name")),
        _member("fieldSelector", check, [check, Text], lambda question, _: question),
        _member("labelSelector", check, [check, Text], lambda question, _: question),
        _member("check", decision, [check, Text], decide),
        _member("allowed", yes, [decision], lambda value: json.loads(value.text)["allowed"]),
        _member("reason", Text, [decision], lambda value: json.loads(value.text)["reason"]),
        _member("errored", yes, [decision], lambda value: False),
        _member("error", Text, [decision], lambda value: ""),
    ]
