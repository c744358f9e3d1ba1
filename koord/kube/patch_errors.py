"""Errors of the patch functions."""

from __future__ import annotations


class PatchError(ValueError):
    """A patch that cannot be applied: malformed, or it does not fit the document. The text says where and what is accepted."""


class PatchTestFailed(PatchError):
    """A JSON Patch `test` operation whose value differs from the document's."""
