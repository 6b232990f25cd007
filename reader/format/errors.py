"""Errors that a caller of reader may catch, each also a builtin; and the interrupt behind an error."""

from __future__ import annotations


class StoreError(ValueError):
    """A folder is not a readable store; the message names the error, the expectation and what to do."""


class IncompleteStoreError(StoreError):
    """The folder holds a pack that has not finished."""


class MissingLibraryError(StoreError, ImportError):
    """The library that decodes a store's frames is not installed."""


def interrupt_behind(error: BaseException | None) -> BaseException | None:
    """Return the interrupt behind an error (the error itself, or its cause), or None.

    If Ctrl-C interrupts Python's `Condition.wait` at the wrong moment, it raises RuntimeError: release unlocked lock.
    """
    while isinstance(error, Exception):
        error = error.__context__
    return error
