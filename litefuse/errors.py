"""The errors that litefuse raises on purpose. Each says what is wrong, where, and what to do.

Exit codes of the command are attributes of the classes, so that there is one place which defines them.
"""

from __future__ import annotations


class LitefuseError(Exception):
    """Base of every error that litefuse raises on purpose; exit code 1."""

    exit_code = 1


class UsageError(LitefuseError):
    """A name that does not exist was given: of a rule, level, target or tensor; exit code 2."""

    exit_code = 2


class SchemaError(LitefuseError):
    """The input is not a readable `.tflite` file; exit code 3."""

    exit_code = 3


class UnknownFieldError(SchemaError):
    """The file uses a field newer than the schema tables, so that it cannot be written back without loss."""


class CheckError(LitefuseError):
    """The converted model does not compute the same as the original; exit code 4."""

    exit_code = 4


class RuntimeMissingError(LitefuseError):
    """No TFLite runtime is installed, or the installed one cannot do what was asked; exit code 5."""

    exit_code = 5


class OutputError(LitefuseError):
    """The output cannot be written; exit code 6."""

    exit_code = 6


class BudgetError(LitefuseError):
    """The intermediates do not fit into the memory that there is; exit code 7."""

    exit_code = 7
