"""Errors a person can act on: one sentence that names what is wrong and what to do next.

The command line prints `OutriderError` as that sentence and exits non-zero; anything else is a bug.
"""


class OutriderError(Exception):
    """Base of every error Outrider raises on purpose."""


class InvalidRequest(OutriderError, ValueError):
    """A prompt or parameter that cannot be served; the message names the parameter."""


class ModelError(OutriderError):
    """A model that cannot be found, fetched, read or run."""


class DrafterError(OutriderError):
    """A drafter that does not fit its target, or an unknown drafter."""


class TrainingError(OutriderError):
    """Training that cannot go on; what it has saved is intact."""
