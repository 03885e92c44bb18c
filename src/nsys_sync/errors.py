"""Every error that a user can cause. Each says which file, what is wrong, and what to type next, on one line."""

from __future__ import annotations


class NsysSyncError(Exception):
    """Base of all errors of this package; `exit_status` is what the commands return for it."""

    exit_status = 1


class UsageError(NsysSyncError):
    """The command line or the arguments of `analyze` make no sense."""

    exit_status = 2


class TraceError(NsysSyncError):
    """The trace cannot be read, or cannot be analysed."""


class ConfigError(NsysSyncError):
    """The file with the budgets cannot be read."""


class OutputError(NsysSyncError):
    """A report could not be written."""


class NsysError(NsysSyncError):
    """nsys was not found, is too old for what was asked, or failed."""
