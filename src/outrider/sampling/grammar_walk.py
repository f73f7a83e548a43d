"""A compiled grammar over the target's tokens, and where one output stands in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from outrider.core.draft import ROOT, Draft
from outrider.core.request import Forced
from outrider.sampling.layout import Layout

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from outrider.core.request import ResolvedParams
    from outrider.sampling.history import History

_AHEAD = 64
"""Bytes of forced text that are looked for."""
_ENOUGH = 16
"""Forced tokens that are left of those found before, so that nothing need be looked for: the text may be long."""
_FEW = 64
"""Tokens among which the likely ones can be told."""
_RESTARTS = 3
"""How often a walk that meets a limit is begun anew. It takes a compilation, which holds up everybody's next step."""


def limit_met(matcher: LLMatcher) -> str | None:
    """The limit that has put an end to this matcher, in words. More than the first line would quote the output."""
    if not matcher.is_error():
        return None
    return f"it is too large; simplify it (llguidance: {matcher.get_error().partition(chr(10))[0][:300]})"


class CompiledGrammar:
    """A grammar over the target's tokens; shared by all who walk it.

    `ends` are the tokens that end an output. `eos` are those that llguidance would have end it. `build` compiles it
    once more: copies of one matcher share what it has learned, and all are spoiled once one of them meets a limit.
    `words`: the vocabulary as llguidance knows it. `lays_out`: whether outputs choose the blanks in JSON.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        build: Callable[[], LLMatcher],
        words: LLTokenizer,
        lays_out: bool,
        ends: Sequence[int],
        eos: Sequence[int],
        size: int,
    ) -> None:
        self.matcher, self.build, self.words, self.lays_out = matcher, build, words, lays_out
        self.ends, self.eos, self.size = list(ends), list(eos), size

    def start(self) -> Walk:
        return Walk(self)


class Walk:
    """Where one output stands in its grammar, and what may follow it along paths of further tokens.

    The matcher stands at the end of `_at`, the path asked for last: a rule goes from node to child, so that the next
    path mostly begins with it. Masks are kept until the output grows, since several parts ask for the same ones.

    llguidance gives up where work or memory would exceed its limits, and a matcher never recovers from that, nor do its
    copies. What it had used up may be another request's, or of paths that were only drafted, so one of the walk's own
    is then compiled and sent there straight; what that one meets is the limit of this grammar and output.
    """

    def __init__(self, grammar: CompiledGrammar) -> None:
        self._grammar = grammar
        self._matcher = grammar.matcher.deep_copy()
        self._output: list[int] = []
        self._over = False
        """The output has ended."""
        self._at: tuple[int, ...] = ()
        self._masks: dict[tuple[int, ...], NDArray[np.bool_] | None] = {}
        self._limits: dict[tuple[int, ...], str] = {}
        self._forced: dict[tuple[int, ...], Forced] = {}
        self._looks_ahead = True
        self._layout = Layout() if grammar.lays_out else None
        self._restarts = 0

    def advance(self, tokens: Sequence[int]) -> None:
        """The output has grown by `tokens`."""
        grown = tuple(tokens)
        moved = self._move(grown)
        self._over = not moved and not self._matcher.is_error()
        self._output += grown
        if self._layout is not None:
            self._layout.feed(self._grammar.words.decode_bytes(list(grown)))
        self._masks = {(): self._masks[grown]} if grown in self._masks else {}
        self._limits = {(): self._limits[grown]} if grown in self._limits else {}
        self._at = ()
        self._forced = _remaining(self._forced, grown)

    def allowed(self, path: Sequence[int]) -> NDArray[np.bool_] | None:
        """Which tokens [V] may follow the output and `path`; None where none may, `path` itself may not be written, or
        nobody can tell (`limit`). The mask is not the caller's to change."""
        key = tuple(path)
        if key not in self._masks:
            self._masks[key] = self._look(key)
        return self._masks[key]

    def forced(self, path: Sequence[int] = ()) -> Forced:
        """What must follow the output and `path`: the tokens that alone are allowed, then the likeliest ones of text
        that must come. Where the output must end, it ends."""
        key = tuple(path)
        if key not in self._forced:
            known = self._look_ahead(key) if self._looks_ahead else Forced()
            if self._matcher.is_error():  # text that must come may be longer than llguidance's limits
                self._looks_ahead, known = False, Forced()
                self._renew()
            self._forced[key] = known
        return self._forced[key]

    def likely(self, mask: NDArray[np.bool_]) -> Sequence[int]:
        """A text may be cut into tokens in many ways, and models choose the longest: those that begin no other token of
        these come first, then the longer ones."""
        if np.count_nonzero(mask) > _FEW:
            return ()
        words = self._grammar.words
        texts = {token: words.decode_bytes([token]) for token in np.flatnonzero(mask).tolist()}
        ordered = sorted(texts.values())
        begun = {text for text, after in pairwise(ordered) if after != text and after.startswith(text)}
        return sorted(texts, key=lambda token: (texts[token] in begun, -len(texts[token]), token))

    def legal(self, draft: Draft) -> list[int]:
        """The nodes of a draft that may be written after the output, with all before them. Where a limit is met they
        are taken for forbidden: it is for `allowed` to tell."""
        found: list[int] = []
        paths: dict[int, tuple[int, ...]] = {} if self._over else {ROOT: ()}
        for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            if (path := paths.get(parent)) is None:
                continue
            if token in self._grammar.ends:  # nothing follows it
                may = self._go(path, ask=False) and self._matcher.is_accepting()
            elif may := self._go((*path, token), ask=False):
                paths[node] = (*path, token)
            if may:
                found.append(node)
        return found

    def _look_ahead(self, path: tuple[int, ...]) -> Forced:
        if not self._move(path):
            return Forced()
        certain: list[int] = self._matcher.compute_ff_tokens()
        if self._matcher.is_error() or any(token in self._grammar.eos for token in certain):
            return Forced()
        words = self._grammar.words
        if not self._matcher.is_stopped():
            text = self._text_ahead(path)
            rest = words.tokenize_bytes(text[len(words.decode_bytes(certain)) :])
        else:
            rest = [token for token in self._grammar.eos if token in self._grammar.ends][:1]
        return Forced((*certain, *rest), len(certain))

    def _text_ahead(self, path: tuple[int, ...]) -> bytes:
        """The text that must follow `path`, where the matcher stands, with the layout that it probably has where
        that is all there is to choose. The matcher is left there."""
        text, sure, taken = b"", 0, 0  # `sure`: without blanks at its end, which may go with what follows them
        layout = None if self._layout is None else self._layout.copy()
        if layout is not None:
            layout.feed(self._grammar.words.decode_bytes(list(path)))
        while len(text) < _AHEAD:
            piece: bytes = self._matcher.compute_ff_bytes()
            pieces = [piece] if piece or layout is None else layout.guesses()
            steps = {piece: count for piece in pieces if piece and (count := self._tried(piece))}
            if len(steps) != 1:
                break
            ((guess, count),) = steps.items()
            self._matcher.try_consume_tokens(self._grammar.words.tokenize_bytes(guess))
            taken += count
            text += guess
            sure = len(text.rstrip()) if layout is not None and not piece else len(text)
            if layout is None:
                break
            layout.feed(guess)
        self._matcher.rollback(taken)
        return text[:sure]

    def _tried(self, text: bytes) -> int:
        """How many tokens it takes to write the text here; 0 where it may not be written."""
        tokens = self._grammar.words.tokenize_bytes(text)
        taken: int = self._matcher.try_consume_tokens(tokens)
        self._matcher.rollback(taken)
        return taken if taken == len(tokens) else 0

    def limit(self, path: Sequence[int]) -> str | None:
        """Why it cannot be told what may follow the output and `path`; None where it can."""
        self.allowed(path)
        return self._limits.get(tuple(path))

    def _look(self, path: tuple[int, ...]) -> NDArray[np.bool_] | None:
        mask = self._mask() if self._move(path) else None
        if self._matcher.is_error() and self._restart():
            mask = self._mask() if self._go(path) else None
        if (met := limit_met(self._matcher)) is not None:
            self._limits[path] = met
            return None
        return mask

    def _mask(self) -> NDArray[np.bool_] | None:
        """What may follow where the matcher stands."""
        may_end = self._matcher.is_accepting()
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            return None
        mask = np.unpackbits(bits, bitorder="little", count=self._grammar.size).view(np.bool_)
        for token in self._grammar.eos:  # few: faster than by their list
            mask[token] = False
        for token in self._grammar.ends:
            mask[token] = may_end
        return mask if mask.any() else None

    def _move(self, path: tuple[int, ...]) -> bool:
        """Bring the matcher to the end of `path`, as far as that may be written; whether all of it may. It is in error
        afterwards only if a fresh one cannot be brought there either."""
        if self._over:
            return False
        moved = self._go(path)
        if self._matcher.is_error() and self._restart():
            moved = self._go(path)
        return moved

    def _restart(self) -> bool:
        """A matcher of our own, at the end of the output; False where that has been tried often enough."""
        if self._restarts == _RESTARTS:
            return False
        self._restarts += 1
        self._renew()
        return True

    def _renew(self) -> None:
        self._matcher, self._at = self._grammar.build(), ()
        self._matcher.try_consume_tokens(self._output)

    def _go(self, path: tuple[int, ...], *, ask: bool = True) -> bool:
        """`ask`: whether to find out if what is not taken has met a limit."""
        common = 0
        while common < min(len(self._at), len(path)) and self._at[common] == path[common]:
            common += 1
        if common < len(self._at):
            self._matcher.rollback(len(self._at) - common)
        rest = list(path[common:])
        text = next((i for i, token in enumerate(rest) if token in self._grammar.ends), len(rest))
        taken: int = self._matcher.try_consume_tokens(rest[:text])
        self._at = path[: common + taken]
        if taken < text and ask:
            # A spoiled copy takes nothing and does not say why, unless it is asked what it would take.
            known = self._masks.get(self._at)
            if known is None or known[rest[taken]]:
                self._matcher.compute_bitmask()
        return taken == len(rest)


def _remaining(known: dict[tuple[int, ...], Forced], grown: tuple[int, ...]) -> dict[tuple[int, ...], Forced]:
    """What is left of what was forced once the output has grown; nothing: it must be looked for again."""
    if grown in known:
        return {(): known[grown]}
    run = known.get((), Forced())
    if run.tokens[: len(grown)] != grown or len(run.tokens) - len(grown) < _ENOUGH:
        return {}
    return {(): Forced(run.tokens[len(grown) :], max(0, run.certain - len(grown)))}


def allowed(params: ResolvedParams, history: History, path: Sequence[int]) -> NDArray[np.bool_] | None:
    """Which tokens [V] the grammar and `min_tokens` let follow the history and `path`; None where none may."""
    assert params.grammar is not None, "there is no grammar to ask"
    mask = history.walk(params.grammar).allowed(path)
    if mask is None or history.generated + len(path) >= params.min_tokens or not params.stop_token_ids:
        return mask
    mask = mask.copy()
    mask[list(params.stop_token_ids)] = False
    return mask if mask.any() else None
