"""Errors that end a process in an orderly way."""

from __future__ import annotations


class ConfigurationError(Exception):
    """The process cannot run as it was told to: a flag, a file, an address, an environment variable.

    The text is one line: what, where, and what is accepted. Ends the process with status 1 and that line.
    """


class FatalError(Exception):
    """The process must end with status 1 although it was configured well: a lost lease, a supervised task that crashed."""
