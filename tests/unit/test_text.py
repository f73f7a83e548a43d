"""Streaming text: stop strings across token and step boundaries, half characters, and nothing lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import resolved

from outrider.engine.request import Request
from outrider.engine.text import TextStream
from outrider.sampling.history import History


def stream(pieces: list[bytes], stop: tuple[str, ...] = (), strip: bool = False) -> TextStream:
    return TextStream(lambda token: pieces[token], stop, strip)


def test_half_characters_wait_for_their_other_half() -> None:
    euro = "€".encode()
    s = stream([b"a" + euro[:1], euro[1:2], euro[2:] + b"b"])
    assert [s.push(i) for i in range(3)] == ["a", "", "€b"]


def written(pieces: list[bytes], min_tokens: int, **options: Any) -> Request:
    """A request that says the pieces one by one until it ends."""
    params = resolved(len(pieces), min_tokens=min_tokens, **options)
    made = Request(0, [0], 1, params, 100, stream(pieces, params.stop), History([0]))
    for token in range(len(pieces)):
        if made.finish_reason is None:
            made.push(token)
    return made


@pytest.mark.parametrize("min_tokens", [0, 2, 3])
def test_a_stop_string_completed_by_the_last_token_that_must_be(min_tokens: int) -> None:
    """The third token completes it: with three to be written that is enough."""
    done = written([b"one ", b"E", b"ND", b" two", b" three"], min_tokens, stop="END")
    assert (done.generated, done.stream.text, done.finish_reason) == (3, "one ", "stop")


def test_a_stop_string_completed_too_early_is_text() -> None:
    done = written([b"one ", b"E", b"ND", b" two", b" END", b"x"], 4, stop="END")
    assert (done.generated, done.stream.text, done.finish_reason) == (5, "one END two ", "stop")


@pytest.mark.parametrize(("min_tokens", "generated"), [(2, 3), (3, 3), (4, 5)])
def test_a_stop_token_at_the_last_place_that_must_be_written(min_tokens: int, generated: int) -> None:
    assert written([b"a", b"b", b"", b"c", b""], min_tokens, stop_token_ids=[2, 4]).generated == generated


def test_half_character_at_the_end_is_replaced() -> None:
    s = stream([b"x", "é".encode()[:1]])
    assert s.push(0) + s.push(1) + s.finish() == "x\ufffd" == s.text


def test_stop_string_across_tokens_is_never_shown() -> None:
    s = stream([b"one EN", b"D", b" two"], ("END",))
    assert s.push(0) == "one "
    assert s.push(1) == ""
    assert s.stopped
    assert s.finish() == ""
    assert s.text == "one "


def test_prefix_of_a_stop_string_is_released_once_it_cannot_match() -> None:
    s = stream([b"EN", b"T", b"E"], ("END",))
    assert [s.push(0), s.push(1), s.push(2), s.finish()] == ["", "ENT", "", "E"]


def test_earliest_of_several_stops_wins() -> None:
    s = stream([b"ab##c**"], ("**", "##"))
    assert s.push(0) == "ab"


def test_stop_is_ignored_until_it_may_apply() -> None:
    s = stream([b"STOP", b"x"], ("STOP",))
    assert s.push(0, may_stop=False) + s.push(1) == "STOPx"


def test_leading_space_is_stripped_once() -> None:
    s = stream([b" a", b" b"], strip=True)
    assert s.push(0) + s.push(1) == "a b"


@given(st.text(max_size=30), st.lists(st.text(min_size=1, max_size=4), max_size=3), st.data())
def test_any_cutting_gives_the_same_text(text: str, stops: list[str], data: st.DataObject) -> None:
    """However the bytes are cut into tokens: the pieces join to the text before the first stop to complete."""
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    s = stream(pieces, tuple(stops))
    shown = ""
    for token in range(len(pieces)):
        shown += s.push(token)
        if s.stopped:
            break
    shown += s.finish()
    assert shown == s.text
    ends = [text.find(stop) for stop in stops if stop in text]
    assert s.stopped == bool(ends)
    if len(stops) <= 1 or not ends:  # with several, which completes first depends on where tokens end
        assert shown == (text[: ends[0]] if ends else text)
    else:
        assert text.startswith(shown)
        assert not any(stop in shown for stop in stops)
