"""How large a JSON text is in parts, counted on its bytes before anything is built of it.

A list of two million numbers takes a second to read and a gigabyte to hold, and no other thread runs meanwhile: what is
too large is refused here, in passes over arrays that let other threads run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_QUOTE, _BACKSLASH = ord('"'), ord("\\")


@dataclass(frozen=True, slots=True)
class JsonSize:
    """`levels` of brackets, `items` of lists and objects, and how many of those have `keys`.

    Right for every text that is JSON, and for what comes before the first mistake of any other: no parser gets further.
    """

    levels: int
    items: int
    keys: int

    @staticmethod
    def of(text: bytes) -> JsonSize:
        data = np.frombuffer(text, dtype=np.uint8)
        data = data[~_in_strings(data)]
        opening, closing = (data == ord("[")) | (data == ord("{")), (data == ord("]")) | (data == ord("}"))
        depth = np.cumsum(opening.astype(np.int8) - closing.astype(np.int8), dtype=np.int32)
        count = np.count_nonzero
        return JsonSize(
            levels=int(depth.max(initial=0)),
            items=int(count(data == ord(",")) + count(opening)),
            keys=int(count(data == ord(":"))),
        )


def _in_strings(data: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which bytes stand between quotes. A quote is a letter after an odd number of backslashes."""
    quote = data == _QUOTE
    backslash = data == _BACKSLASH
    if backslash.any():
        places = np.arange(len(data), dtype=np.int32)
        # The last byte up to each place that is no backslash: how far it is away is the length of the run.
        other = np.maximum.accumulate(np.where(backslash, np.int32(-1), places))
        odd = (places - other) % 2 == 1
        quote[1:] &= ~odd[:-1]
    return np.logical_xor.accumulate(quote)
