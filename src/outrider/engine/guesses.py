"""What grammars will let follow texts that are still to come: guessed while a step is under way, for the next one.

A step leaves a request with some of its drafts and one token more, of those that a mask lets follow them. Where few
may, or one is likely, the masks behind each of them are made beforehand, and the device takes the one that came true.
Guesses cost the host time that the device takes anyway, within bounds; they never change a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter

from outrider.control.forced import NAME
from outrider.control.offers import OFFERED
from outrider.core.drafter import Drafter
from outrider.core.step import Guide, Offer
from outrider.engine.request import Request
from outrider.sampling.grammar_walk import allowed

MOST = 8
"""Guides made for one request."""
SECONDS = 1e-3
"""For guesses of all requests before one launch, at most."""
SHARE = 0.25
"""Of what a step takes the device: the rest of it is for whatever else the host has to do."""


class Guesses:
    """For all requests whose last step is under way. They take turns in being first, as time may run out."""

    def __init__(self, lookup: Drafter | None) -> None:
        self.step_seconds = 0.0
        """What the last step took the device; 0: nobody knows."""
        self._lookup = lookup
        self._turn = 0

    def of(self, waiting: Mapping[int, tuple[Request, Guide]], length: int) -> dict[int, Guide]:
        """By lane; given what is verified of each in the step under way, and how many drafts the next one verifies."""
        found = dict[int, Guide]()
        if not waiting:
            return found
        end = perf_counter() + min(SECONDS, SHARE * self.step_seconds or SECONDS)
        self._turn += 1
        numbers = list(waiting)
        for i in range(len(numbers)):
            if perf_counter() >= end:  # looking up and telling what is likely takes time, too
                break
            number = numbers[(self._turn + i) % len(numbers)]
            request, now = waiting[number]
            hint = self._lookup.continuation(request, len(now.masks)).tokens if self._lookup is not None else ()
            if guide := _guess(request, now, length, hint, end):
                found[number] = guide
        return found


def under_way(request: Request, guide: Guide | None, length: int) -> Guide | None:
    """What is verified of a request in a step of at most `length` drafts that was sent this guide: from its text on.
    None: it sits out. All of its text before that step is known."""
    text = request.tokens
    while guide is not None:
        start, tokens = guide.offer.start, list(guide.offer.tokens)
        behind = len(text) - start
        if guide.since <= behind < guide.since + len(guide.masks) and text[start:] == tokens[:behind]:
            masks = guide.masks[behind - guide.since :][: length + 1]
            return Guide(Offer(len(text), tokens[behind : behind + len(masks) - 1], guide.offer.source), masks)
        guide = guide.otherwise
    return None


def _guess(request: Request, now: Guide, length: int, hint: Sequence[int], end: float) -> Guide | None:
    """For the step after one that verifies `now`; behind the likeliest outcome with at most `length` drafts, which are
    what the grammar forces there and take time to find. `hint`: what its text is expected to go on with. `end`: when to
    stop. None: there is nothing to guess, or no time."""
    found = list[Guide]()
    for path in _ways(request, now, hint):
        if len(found) == MOST or perf_counter() > end:
            break
        if (behind := _behind(request, path, 0 if found else length)) is not None:
            found.append(behind)
    guide = None
    for each in reversed(found):
        guide = each._replace(otherwise=guide)
    return guide


def _ways(request: Request, now: Guide, hint: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """How the step may come out, the likeliest first: that all drafts are accepted, or the last is refused, and so on.
    Those that end the request are left out."""
    p = request.params
    assert p.grammar is not None
    drafts, ends, walk = tuple(now.offer.tokens), p.stop_token_ids, request.history.walk(p.grammar)
    for count in reversed(range(len(now.masks))):
        mask, path = now.masks[count], drafts[:count]
        if mask is None:
            continue
        refused = drafts[count] if count < len(drafts) else None
        told = [hint[count]] if len(hint) > count and tuple(hint[:count]) == path and mask[hint[count]] else []
        for token in dict.fromkeys([*told, *walk.likely(mask)]):
            if token != refused and token not in ends:
                yield (*path, token)


def _behind(request: Request, path: tuple[int, ...], length: int) -> Guide | None:
    """What may follow `path`, and then what the grammar forces."""
    p, history, walk = request.params, request.history, request.walk
    masks = [allowed(p, history, path)]
    if masks[0] is None:
        return None
    follows = list[int]()
    most = min(length, OFFERED - len(path))
    for token in walk.forced(path).tokens[:most] if walk is not None and most > 0 else ():
        mask = masks[-1]
        if mask is None or not mask[token]:
            break
        follows.append(token)
        masks.append(allowed(p, history, (*path, *follows)))
    return Guide(Offer(len(request.tokens), [*path, *follows], NAME), masks, since=len(path))
