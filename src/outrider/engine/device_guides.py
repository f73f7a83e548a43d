"""What goes with a step to the lanes of a device: what is offered to them, and what their grammars let follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outrider.core.step import Guide, Offer
from outrider.engine.request import Request
from outrider.sampling.grammar_walk import allowed


def offers_of(lanes: Mapping[int, Request], found: Mapping[int, Offer]) -> dict[int, Offer]:
    """By lane, to those without a grammar; `found`: by their ids."""
    return {number: found[s.id] for number, s in lanes.items() if s.id in found and s.params.grammar is None}


def guides_of(
    lanes: Mapping[int, Request], ready: Sequence[Request], found: Mapping[int, Offer], length: int
) -> dict[int, Guide]:
    """By lane, for those `ready` that have a grammar: all of their texts is known. At most `length` tokens are
    offered."""
    guided = {s.id for s in ready if s.params.grammar is not None}
    return {number: _guide(s, found.get(s.id), length) for number, s in lanes.items() if s.id in guided}


def _guide(request: Request, offered: Offer | None, length: int) -> Guide:
    """What may follow its text, and what is offered to it as far as that may be written."""
    p, history = request.params, request.history
    path, masks = list[int](), [allowed(p, history, ())]
    for token in offered.tokens[:length] if offered else ():
        mask = masks[-1]
        if mask is None or not mask[token]:
            break
        path.append(token)
        masks.append(allowed(p, history, path))
    return Guide(Offer(len(request.tokens), path, offered.source if offered else ""), masks)
