"""A suffix automaton that grows by one token at a time, and a bounded one that forgets the oldest text.

The automaton of a text recognises exactly its substrings. A state stands for a set of substrings that end at
the same places; `length` is the longest of them, and `link` leads to the state of the longest suffix that
also ends elsewhere. So the longest suffix of the text that occurred before is `length[link[last]]` tokens
long, and what followed it back then is what the transitions of `link[last]` spell: no search, no rescan of
the text.

Size: at most 2n - 1 states and 3n - 4 transitions for n ≥ 3 tokens, whatever the text. Layout: parallel
lists, the first transition of a state inline (most states have only that one) and a dict for the others; this
halves the memory of one dict per state, about 240 bytes per token of source code, at the same speed, about 2
µs per token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

ROOT_STATE = 0
NO_TOKEN = -1


class SuffixAutomaton:
    """The automaton of one text, or of several (`restart` between them: no substring spans two texts).

    Read-only for others: `length`, `link`, `count` (per state), `first`/`target` (the inline transition,
    NO_TOKEN if none), `branches` (the others), `last` (state of the whole text), `size` (tokens taken in).

    `count[s]` is how often the strings of state s occur. Every new token adds one occurrence to all of its
    suffixes, which can be as many as the text is long (a run of one token); only the `walk` longest ones are
    counted, so that a token costs O(1). Short strings inside very repetitive text are therefore undercounted,
    never overcounted.
    """

    __slots__ = ("branches", "count", "first", "last", "length", "link", "size", "target", "walk")

    def __init__(self, walk: int = 32) -> None:
        self.walk = walk
        self.length: list[int] = [0]
        self.link: list[int] = [-1]
        self.count: list[int] = [0]
        self.first: list[int] = [NO_TOKEN]
        self.target: list[int] = [ROOT_STATE]
        self.branches: list[dict[int, int] | None] = [None]
        self.last = ROOT_STATE
        self.size = 0

    def restart(self) -> None:
        """The next token begins a new text."""
        self.last = ROOT_STATE

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens (each ≥ 0) to the current text; amortised O(1) each."""
        length, link, count = self.length, self.link, self.count
        first, target, branches = self.first, self.target, self.branches
        for token in tokens:
            p = self.last
            q = -1 if first[p] == NO_TOKEN else self.step(p, token)
            if q >= 0:  # only after a restart: this text begins like an earlier one
                self.last = q if length[q] == length[p] + 1 else self._clone(p, token, q)
            else:
                new = len(length)
                length.append(length[p] + 1)
                link.append(ROOT_STATE)
                count.append(0)
                first.append(NO_TOKEN)
                target.append(ROOT_STATE)
                branches.append(None)
                while p >= 0:
                    known = first[p]
                    if known == token:
                        q = target[p]
                        break
                    if known == NO_TOKEN:
                        first[p] = token
                        target[p] = new
                    else:
                        others = branches[p]
                        if others is None:
                            branches[p] = {token: new}
                        elif token in others:
                            q = others[token]
                            break
                        else:
                            others[token] = new
                    p = link[p]
                if p >= 0:
                    link[new] = q if length[q] == length[p] + 1 else self._clone(p, token, q)
                self.last = new
            p = self.last
            steps = self.walk
            while p > 0 and steps:
                count[p] += 1
                p = link[p]
                steps -= 1
            self.size += 1

    def step(self, state: int, token: int) -> int:
        """Where `token` leads from `state`; -1 if nowhere."""
        if self.first[state] == token:
            return self.target[state]
        others = self.branches[state]
        return -1 if others is None else others.get(token, -1)

    def advance(self, state: int, matched: int, token: int) -> tuple[int, int]:
        """Follow `token` from the longest suffix of the match that allows it: the new (state, matched
        length)."""
        first, link = self.first, self.link
        while state >= 0:
            if first[state] == token:
                return self.target[state], matched + 1
            others = self.branches[state]
            if others is not None and token in others:
                return others[token], matched + 1
            state = link[state]
            matched = self.length[state]  # link[ROOT_STATE] is -1: a harmless read of the last entry
        return ROOT_STATE, 0

    def settle(self, state: int, matched: int) -> int:
        """The state that holds the match *now*: extensions split states, moving their shorter strings to a
        clone."""
        link, length = self.link, self.length
        while state > 0 and matched <= length[link[state]]:
            state = link[state]
        return state

    def match(self, tokens: Sequence[int]) -> tuple[int, int]:
        """(state, length) of the longest suffix of `tokens` that occurs in the text."""
        state, matched = ROOT_STATE, 0
        for token in tokens:
            state, matched = self.advance(state, matched, token)
        return state, matched

    def _clone(self, p: int, token: int, q: int) -> int:
        """Split the strings of q up to length[p] + 1 off into a state of their own, and redirect p and its
        suffixes."""
        first, target, branches, link = self.first, self.target, self.branches, self.link
        clone = len(self.length)
        self.length.append(self.length[p] + 1)
        link.append(link[q])
        link[q] = clone
        self.count.append(self.count[q])
        first.append(first[q])
        target.append(target[q])
        others = branches[q]
        branches.append(None if others is None else others.copy())
        while p >= 0:
            if first[p] == token:
                if target[p] != q:
                    break
                target[p] = clone
            else:
                others = branches[p]
                if others is None or others.get(token) != q:
                    break
                others[token] = clone
            p = link[p]
        return clone


class RollingAutomaton:
    """An automaton over at least the newest half, and at most all, of the last `limit` tokens.

    Once `live` is half full every token also goes into a second automaton, which takes over when `live` is
    full: the oldest half is dropped, the work per token at most doubles and no step ever stops for a rebuild.
    `epoch` counts the take-overs; a state remembered from an earlier epoch means nothing any more.
    """

    __slots__ = ("_next", "epoch", "limit", "live")

    def __init__(self, limit: int) -> None:
        self.limit = max(2, limit)
        self.live = SuffixAutomaton()
        self.epoch = 0
        self._next: SuffixAutomaton | None = None

    @property
    def size(self) -> int:
        """Tokens that can be found."""
        return self.live.size

    def learn(self, tokens: Sequence[int]) -> None:
        """Take in a text that is complete: no match spans it and another."""
        self.live.restart()
        if self._next is not None:
            self._next.restart()
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        half = self.limit // 2
        done = 0
        while done < len(tokens):
            # Up to the next boundary: live reaching the half or the limit.
            room = (half if self._next is None else self.limit) - self.live.size
            part = tokens[done : done + room]
            done += len(part)
            self.live.extend(part)
            if self._next is not None:
                self._next.extend(part)
                if self.live.size >= self.limit:
                    self.live, self._next = self._next, SuffixAutomaton()
                    self.epoch += 1
            elif self.live.size >= half:
                self._next = SuffixAutomaton()
