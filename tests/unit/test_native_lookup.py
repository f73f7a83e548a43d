"""The compiled lookup finds what the reference finds: the same tokens, parents and numbers, to the last bit."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import Sequence_, numbered

from outrider.core.draft import ROOT, Budget, Draft
from outrider.drafters.native import texts as native
from outrider.drafters.native.texts import NativeTexts, library
from outrider.drafters.suffix import SuffixDrafter
from outrider.drafters.suffix_search import ReferenceTexts
from outrider.drafters.suffix_texts import SuffixConfig

pytestmark = pytest.mark.skipif(library() is None, reason="the lookup was not compiled")

OPEN = Budget(16, 16)


class Both:
    """A drafter of each form, told the same."""

    def __init__(self, config: SuffixConfig | None = None) -> None:
        config = config or SuffixConfig()
        self.compiled = SuffixDrafter(config, NativeTexts(config))
        self.reference = SuffixDrafter(config, ReferenceTexts(config))

    def open(self, request: Sequence_) -> None:
        self.compiled.open(request)
        self.reference.open(request)

    def close(self, request: Sequence_) -> None:
        self.compiled.close(request)
        self.reference.close(request)
        assert self.compiled.held == self.reference.held
        assert self.compiled.texts.remembered == self.reference.texts.remembered

    def propose(self, requests: Sequence[Sequence_], budgets: Sequence[Budget]) -> int:
        """Nodes proposed in all."""
        found = self.compiled.propose(requests, budgets)
        assert list(map(exactly, found)) == list(map(exactly, self.reference.propose(requests, budgets)))
        return sum(map(len, found))

    def continuation(self, request: Sequence_, count: int) -> int:
        found = self.compiled.continuation(request, count)
        assert exactly(found) == exactly(self.reference.continuation(request, count))
        return len(found)


def exactly(draft: Draft) -> tuple[list[int], list[int], list[str], str]:
    return list(draft.tokens), list(draft.parents), [claim.hex() for claim in draft.confidence], draft.source


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.sampled_from([(12, 10), (60, 24), (4000, 4000)]), st.integers(2, 6))
def test_requests_that_come_and_go(seed: int, shared: bool, limits: tuple[int, int], alphabet: int) -> None:
    """Up to four at a time, some of which begin like a running one, with histories that are dropped on the way."""
    draw, both = random.Random(seed), Both(SuffixConfig(shared, *limits))
    running: list[Sequence_] = []
    for number in range(80):
        new = [draw.randrange(alphabet) for _ in range(draw.randrange(1, 13))]
        if len(running) < 4 and draw.random() < 0.5:
            fork = draw.choice(running).tokens if running and draw.random() < 0.3 else []
            running.append(numbered(number, [*fork, *new], cache_salt=draw.choice([None, None, "ann"])))
            both.open(running[-1])
        sizes = [(draw.randrange(20), draw.randrange(9)) for _ in running]
        both.propose(running, [Budget(*size, draw.random() / 2, draw.random() < 0.7) for size in sizes])
        grows = draw.choice(running) if running else None
        if grows is not None:
            grows.tokens.extend(new)
            both.continuation(grows, draw.randrange(20))
            if draw.random() < 0.2:
                running.remove(grows)
                both.close(grows)


def written(draw: random.Random, length: int, words: int, alphabet: int) -> list[int]:
    """Text of words that come again and again, with slips."""
    known = [[draw.randrange(alphabet) for _ in range(draw.randrange(1, 9))] for _ in range(words)]
    text: list[int] = []
    while len(text) < length:
        text += draw.choice(known)
        if draw.random() < 0.1:
            text.append(draw.randrange(alphabet))
    return text[:length]


def test_long_runs_are_counted_alike() -> None:
    """Of a token's suffixes only the longest are counted: in runs that shows."""
    draw, both = random.Random(0), Both()
    request = numbered(0, [9])
    both.open(request)
    for _ in range(60):
        request.tokens.extend([*[0] * draw.randrange(1, 90), draw.randrange(1, 4), *[0] * draw.randrange(3)])
        assert both.propose([request], [OPEN]) > 0 or len(request.tokens) < 200


def test_what_others_say_meanwhile_is_found() -> None:
    """Also where it parts what was one state of the history: the match moves to the one that has both."""
    both, running = Both(), numbered(0, [50, 51])
    both.open(running)
    for number, said in ((1, [8, 1, 2, 3]), (2, [7, 1, 2, 5])):
        if number == 2:
            running.tokens.extend([1, 2])
        both.propose([running], [OPEN])
        other = numbered(number, [60 + number])
        both.open(other)
        other.tokens.extend(said)
        both.propose([other], [OPEN])
        both.close(other)
    assert both.propose([running], [OPEN]) >= 2
    (found,) = both.compiled.propose([running], [OPEN])
    assert {3, 5} <= {found.tokens[node] for node in found.children(ROOT)}


@pytest.mark.parametrize(("words", "alphabet"), [(3, 2), (20, 40), (200, 50_000), (1, 1)])
def test_prompts_of_thousands_of_tokens(words: int, alphabet: int) -> None:
    """And the requests after them, which find their outputs: states with hundreds of continuations, words that were
    seen thousands of times, matches far longer than any that is told apart."""
    draw = random.Random(words)
    both = Both(SuffixConfig(shared_tokens=3000, request_tokens=4000))
    total = 0
    for number in range(4):
        text = written(draw, 5000, words, alphabet)
        first, second = numbered(2 * number, text[:3000]), numbered(2 * number + 1, text[:2000])
        both.open(first)
        both.open(second)
        for at in range(3000, 4000, 40):
            total += both.propose([first, second], [OPEN, Budget(16, 6, 0.01, at % 80 == 0)])
            total += both.continuation(second, 100)
            first.tokens.extend(text[at : at + 40])
            second.tokens.extend(text[at - 1000 : at - 1000 + draw.randrange(1, 80)])
        both.close(first)
        both.close(second)
    assert total > 1000


def test_a_history_that_has_changed_is_matched_anew() -> None:
    """As far back as the reference looks, and no further."""
    both = Both(SuffixConfig(shared_tokens=400))
    long = list(range(100, 260))
    running = numbered(0, [1, *long])
    both.open(running)
    both.propose([running], [OPEN])
    for number in range(1, 5):
        other = numbered(number, [2])
        both.open(other)
        other.tokens.extend([*long, 7, 8, 9])
        both.propose([other], [OPEN])
        both.close(other)
        assert both.propose([running], [OPEN]) > 0


def test_what_is_gone_is_never_found_again() -> None:
    """A history may be made where another was: its address tells nothing."""
    both = Both(SuffixConfig(shared_tokens=40))
    running = numbered(0, [1, 2, 3], cache_salt="ann")
    both.open(running)
    for number in range(1, 40):
        said = numbered(number, [9], cache_salt=("ann", "bob", "eve")[number % 3])
        both.open(said)
        said.tokens.extend([1, 2, 3, number, *range(20)])
        both.propose([said], [OPEN])
        both.close(said)
        both.propose([running], [OPEN])


def test_every_structure_is_told_of() -> None:
    mirrored = {each for each in vars(native).values() if isinstance(each, type) and issubclass(each, ctypes.Structure)}
    assert {each.__name__ for each in mirrored - {ctypes.Structure}} == {"_Ask", "_Room", "_Rules"}
    assert native._ASK.size == ctypes.sizeof(native._Ask)
