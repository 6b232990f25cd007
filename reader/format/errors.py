"""Errors that a caller of reader may catch, each also a builtin, and those that one module of it raises for another."""

from __future__ import annotations


class StoreError(ValueError):
    """A folder is not a readable store; the message says what is wrong, what was expected and what to do."""


class IncompleteStoreError(StoreError):
    """The folder holds a pack that has not finished."""


class MissingLibraryError(StoreError, ImportError):
    """The library that decodes a store's frames is not installed."""


def interrupt_behind(error: BaseException | None) -> BaseException | None:
    """Return the interrupt that an error is or was caused by, or None.

    Python's `Condition.wait` that Ctrl-C meets at the wrong moment ends in RuntimeError: release unlocked lock.
    """
    while isinstance(error, Exception):
        error = error.__context__
    return error
