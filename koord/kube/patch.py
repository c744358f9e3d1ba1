"""JSON Patch (RFC 6902), JSON Merge Patch (RFC 7386) and their inverses; pure.

Nothing here changes its arguments. Results share the parts that did not change with the input, so a caller that
means to change a result in place copies it first (`copy_json`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from koord.kube.errors import PatchError, PatchTestFailed

MAX_COPIED = 3 * 1024 * 1024  # bytes
_INDEX = re.compile(r"0|[1-9][0-9]*")
_OPERATIONS = ("add", "remove", "replace", "move", "copy", "test")


def copy_json(value: Any) -> Any:
    """A deep copy of a JSON value (about five times as quick as `copy.deepcopy`)."""
    if isinstance(value, dict):
        return {key: copy_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copy_json(item) for item in value]
    return value


def json_equal(left: Any, right: Any) -> bool:
    """Equality as JSON sees it: `1` equals `1.0`, but `true` does not equal `1`."""
    return bool(left == right) and _same_booleans(left, right)


def _same_booleans(left: Any, right: Any) -> bool:
    """Of values that Python takes for equal: whether `true` and `false` are so on both sides."""
    if left is right:
        return True
    if isinstance(left, dict):
        for key, item in left.items():
            if type(item) is str:  # most are: no calls for them
                continue
            if not _same_booleans(item, right[key]):
                return False
        return True
    if isinstance(left, list):
        return all(map(_same_booleans, left, right))
    return isinstance(left, bool) is isinstance(right, bool)


# -- RFC 7386 ------------------------------------------------------------------------------------------------------


def apply_merge_patch(doc: Any, patch: Any) -> Any:
    """Apply a JSON merge patch: objects merge, null removes, everything else (lists too) replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(doc) if isinstance(doc, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = apply_merge_patch(merged.get(key), value)
        else:
            merged[key] = value
    return merged


def diff_merge_patch(old: Any, new: Any) -> Any:
    """The smallest merge patch that makes `old` into `new`; `{}` if they are equal objects.

    Exact for documents without null members: a merge patch cannot say "set to null", so a null in `new` is the same as
    an absent member.
    """
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    patch: dict[str, Any] = {}
    for key, value in new.items():
        if value is None:
            if old.get(key) is not None:
                patch[key] = None
            continue
        if key not in old:
            patch[key] = value
            continue
        before = old[key]
        if json_equal(before, value):
            continue
        patch[key] = diff_merge_patch(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    for key in old:
        if key not in new:
            patch[key] = None
    return patch


# -- RFC 6902 ------------------------------------------------------------------------------------------------------


def apply_json_patch(doc: Any, operations: Sequence[Mapping[str, Any]], *, lenient: bool = False) -> Any:
    """Apply a JSON Patch document. All or nothing: raises PatchError (with the operation's index) on the first failure,
    PatchTestFailed if that is a `test` that does not hold.

    `lenient` treats a missing member of an object as kube-apiserver's library does, RFC or not: replace adds it, test and copy see
    null. All that is copied has at most 3 MiB as JSON, as there: a copy into itself doubles.
    """
    if isinstance(operations, (str, bytes, Mapping)) or not isinstance(operations, Sequence):
        raise PatchError("a JSON patch must be a list of operations")
    doc = copy_json(doc)
    copied = 0
    for number, operation in enumerate(operations):
        try:
            if isinstance(operation, Mapping) and operation.get("op") == "copy":
                copied += _copied(doc, operation)
                if copied > MAX_COPIED:
                    raise PatchError(f"the accumulated size of what is copied is {copied} bytes, more than {MAX_COPIED}")
            doc = _apply_operation(doc, _softened(doc, operation) if lenient else operation)
        except PatchError as error:
            raise type(error)(f"operation {number}: {error}") from None
    return doc


def _softened(doc: Any, operation: Mapping[str, Any]) -> Mapping[str, Any]:
    """An operation that is about a missing member of an object, as one that the RFC allows."""
    if not isinstance(operation, Mapping) or (op := operation.get("op")) not in ("replace", "test", "copy"):
        return operation
    path = _pointer(operation.get("from" if op == "copy" else "path"), "path")
    parent = _get(doc, path[:-1]) if path else None
    if not isinstance(parent, dict) or path[-1] in parent:
        return operation
    if op == "copy":
        return {"op": "add", "path": operation.get("path"), "value": None}
    if op == "replace":
        return {**operation, "op": "add"}
    return {"op": "test", "path": "", "value": doc} if operation.get("value", 0) is None else operation


def _copied(doc: Any, operation: Mapping[str, Any]) -> int:
    """Bytes of JSON that a copy adds; 0 where there is nothing to copy, which is told when it is done."""
    try:
        return len(orjson.dumps(_get(doc, _pointer(operation.get("from"), "from"))))
    except PatchError:
        return 0
    except TypeError:
        raise PatchError("what is to be copied is nested too deeply") from None


def _apply_operation(doc: Any, operation: Mapping[str, Any]) -> Any:
    if not isinstance(operation, Mapping):
        raise PatchError("must be an object with op and path")
    op = operation.get("op")
    if op not in _OPERATIONS:
        raise PatchError(f"op {op!r} is not known; accepted: {', '.join(_OPERATIONS)}")
    path = _pointer(operation.get("path"), "path")
    if op in ("add", "replace", "test"):
        if "value" not in operation:
            raise PatchError(f"{op} needs a value")
        value = operation["value"]
        if op == "test":
            if not json_equal(_get(doc, path), value):
                raise PatchTestFailed(f"test of {_format(path)} failed")
            return doc
        return _add(doc, path, copy_json(value)) if op == "add" else _replace(doc, path, copy_json(value))
    if op == "remove":
        return _remove(doc, path)
    source = _pointer(operation.get("from"), "from")
    if op == "copy":
        return _add(doc, path, copy_json(_get(doc, source)))
    if len(path) > len(source) and path[: len(source)] == source:
        raise PatchError(f"cannot move {_format(source)} into its own child {_format(path)}")
    value = _get(doc, source)
    if path == source:
        return doc
    return _add(_remove(doc, source), path, value)


def _pointer(text: Any, field: str) -> list[str]:
    """Split a JSON pointer (RFC 6901)."""
    if not isinstance(text, str):
        raise PatchError(f"{field} must be a JSON pointer, not {text!r}")
    if not text:
        return []
    if not text.startswith("/"):
        raise PatchError(f"{field} {text!r} must be empty or start with '/'")
    return [part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/")]


def _format(path: Sequence[str | int]) -> str:
    return "".join(f"/{_token(part)}" for part in path)


def _token(part: str | int) -> str:
    text = str(part)
    return text.replace("~", "~0").replace("/", "~1") if "/" in text or "~" in text else text


def _index(token: str, length: int, path: Sequence[str]) -> int:
    if not _INDEX.fullmatch(token):
        raise PatchError(f"{_format(path)}: {token!r} is no list index")
    index = int(token)
    if index >= length:
        raise PatchError(f"{_format(path)}: index {index} is out of range (length {length})")
    return index


def _step(node: Any, token: str, path: Sequence[str]) -> Any:
    if isinstance(node, dict):
        if token not in node:
            raise PatchError(f"{_format(path)} does not exist")
        return node[token]
    if isinstance(node, list):
        return node[_index(token, len(node), path)]
    raise PatchError(f"{_format(path)} does not exist: its parent is neither object nor list")


def _get(doc: Any, path: Sequence[str]) -> Any:
    for depth, token in enumerate(path):
        doc = _step(doc, token, path[: depth + 1])
    return doc


def _add(doc: Any, path: Sequence[str], value: Any) -> Any:
    if not path:
        return value
    parent, token = _get(doc, path[:-1]), path[-1]
    if isinstance(parent, dict):
        parent[token] = value
    elif isinstance(parent, list):
        parent.insert(len(parent) if token == "-" else _index(token, len(parent) + 1, path), value)
    else:
        raise PatchError(f"{_format(path)}: its parent is neither object nor list")
    return doc


def _replace(doc: Any, path: Sequence[str], value: Any) -> Any:
    if not path:
        return value
    parent, token = _get(doc, path[:-1]), path[-1]
    _step(parent, token, path)  # must exist
    parent[int(token) if isinstance(parent, list) else token] = value
    return doc


def _remove(doc: Any, path: Sequence[str]) -> Any:
    if not path:
        raise PatchError("the whole document cannot be removed")
    parent, token = _get(doc, path[:-1]), path[-1]
    _step(parent, token, path)  # must exist
    del parent[int(token) if isinstance(parent, list) else token]
    return doc


def diff_json_patch(old: Any, new: Any) -> list[dict[str, Any]]:
    """A JSON Patch that makes `old` into `new`; `[]` if they are equal.

    Objects are compared member by member. Lists keep their common head and tail; the stretch between is changed in
    place, then lengthened or shortened.
    """
    operations: list[dict[str, Any]] = []
    _diff(old, new, "", operations)
    return operations


def _diff(old: Any, new: Any, path: str, operations: list[dict[str, Any]]) -> None:
    if old is new:  # documents that share what did not change are compared in no time
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old:
            if key not in new:
                operations.append({"op": "remove", "path": f"{path}/{_token(key)}"})
        for key, value in new.items():
            if key not in old:
                operations.append({"op": "add", "path": f"{path}/{_token(key)}", "value": value})
            elif old[key] is not value:
                _diff(old[key], value, f"{path}/{_token(key)}", operations)
    elif isinstance(old, list) and isinstance(new, list):
        _diff_lists(old, new, path, operations)
    elif not json_equal(old, new):
        operations.append({"op": "replace", "path": path, "value": new})


def _diff_lists(old: list[Any], new: list[Any], path: str, operations: list[dict[str, Any]]) -> None:
    head, shorter = 0, min(len(old), len(new))
    while head < shorter and json_equal(old[head], new[head]):
        head += 1
    tail = 0
    while tail < shorter - head and json_equal(old[-1 - tail], new[-1 - tail]):
        tail += 1
    old_end, new_end = len(old) - tail, len(new) - tail
    both = min(old_end, new_end)
    for index in range(head, both):
        _diff(old[index], new[index], f"{path}/{index}", operations)
    for index in range(old_end - 1, both - 1, -1):
        operations.append({"op": "remove", "path": f"{path}/{index}"})
    for index in range(both, new_end):
        operations.append({"op": "add", "path": f"{path}/{index}", "value": new[index]})
