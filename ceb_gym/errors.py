"""Every error that ceb_gym raises on purpose.

    CebError
    ├── ConfigurationError      an argument, a spec string or a command line that cannot work
    ├── UsageError              calls in the wrong order, such as `step` before `reset`
    ├── CriticError             a critic failed or returned something that is no confidence
    ├── ChatError               a language model's endpoint gave no usable reply
    │   ├── BudgetError         the budget of requests, tokens or money is spent: no request was made
    │   └── ReplyMissingError   replayed replies hold none for this request
    ├── LabelerError            a hindsight labeler failed or its labels do not fit the trajectory
    ├── SummaryError            an observation or action that cannot be turned into text
    ├── BankError               the bank cannot be opened, read or written
    │   ├── BankSchemaError     the file is not a bank, or one of another version
    │   ├── BankConflictError   the same id with other content
    │   └── RevisionGoneError   a revision below the floor was asked for: rebuild
    ├── StreamError             a recorded stream breaks its format
    └── MetricInputError        scores or labels that no metric is defined for

A message says what failed, the value, and what to do.
"""

from __future__ import annotations


class CebError(Exception):
    """Base of all errors raised by ceb_gym."""


class ConfigurationError(CebError, ValueError):
    """An argument, a spec string or a command line that cannot work."""


class UsageError(CebError, RuntimeError):
    """Calls in an order that has no meaning, such as `step` before `reset`."""


class CriticError(CebError, RuntimeError):
    """A critic failed, or returned something that is no confidence."""


class ChatError(CebError, RuntimeError):
    """A language model's endpoint gave no usable reply."""


class BudgetError(ChatError):
    """The budget of requests, tokens or money is spent: no request was made."""


class ReplyMissingError(ChatError):
    """Replies are replayed, and none is kept for this request."""


class LabelerError(CebError, RuntimeError):
    """A hindsight labeler failed, or its labels do not fit the trajectory."""


class SummaryError(CebError, ValueError):
    """An observation or action that cannot be turned into text."""


class BankError(CebError, RuntimeError):
    """The bank cannot be opened, read or written."""


class BankSchemaError(BankError):
    """The file is not a bank, or a bank of another schema version."""


class BankConflictError(BankError):
    """An id that the bank already holds arrived with other content."""


class RevisionGoneError(BankError):
    """Changes since a revision below the scope's floor were asked for: rebuild from `records`."""


class StreamError(CebError, ValueError):
    """A recorded stream breaks its format; the message starts with file and line."""


class MetricInputError(CebError, ValueError):
    """Scores or labels for which no metric is defined."""
