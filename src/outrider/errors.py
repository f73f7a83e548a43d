"""Errors a person can act on: one sentence that names what is wrong and what to do next.

The command line prints `OutriderError` as that sentence and exits non-zero; anything else is a bug.
"""

_LONGEST = 80
"""Characters of a value in a message."""


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


class Busy(OutriderError):
    """More requests than the queue takes; `retry_after` seconds from now there may be room."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(OutriderError):
    """The engine is stopping, or has failed as a whole (a GPU, for good): no request can be served."""


class DeviceLost(Unavailable):
    """The GPU has failed, and this process cannot use it any more: only another one can."""


class RequestFailed(OutriderError):
    """One request could not be carried through; the others go on."""


class NotANumber(RequestFailed, ModelError):
    """The model's scores after a request's text are not numbers: no token can follow, and that request ends."""


def shown(value: object) -> str:
    """A value as a message shows it: on one line, and short, whatever was given."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an integer of thousands of digits has no repr, and a repr is anybody's code
        return f"a number of {value.bit_length()} bits" if isinstance(value, int) else f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
