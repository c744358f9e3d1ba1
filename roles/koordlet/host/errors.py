"""What can go wrong when the host is read; every error names the file."""

from __future__ import annotations


class HostError(Exception):
    """Base of all errors of the host layer."""


class HostFileError(HostError):
    """A file could not be read, or holds what it must not hold."""

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"{path}: {detail}")
        self.path = path
        self.detail = detail

    def again(self) -> HostFileError:
        """The same error, never raised: one that was raised and is kept keeps every frame on its way, and what they held."""
        other = type(self).__new__(type(self), *self.args)
        other.path, other.detail = self.path, self.detail
        return other


class FileMissingError(HostFileError):
    """The file does not exist (its directory does)."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "file does not exist")


class CgroupGoneError(HostFileError):
    """The directory of the file does not exist: the cgroup was removed or never made."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "cgroup directory does not exist")


class ParseError(HostFileError):
    """The content is not what the format says."""


class ResourceUnsupportedError(HostError):
    """This kernel or cgroup version has no such file."""
