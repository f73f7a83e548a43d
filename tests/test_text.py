"""Streaming text: stop strings across token and step boundaries, half characters, and nothing lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.text import TextStream


def stream(pieces: list[bytes], stop: tuple[str, ...] = (), strip: bool = False) -> TextStream:
    return TextStream(lambda token: pieces[token], stop, strip)


def test_half_characters_wait_for_their_other_half() -> None:
    euro = "€".encode()
    s = stream([b"a" + euro[:1], euro[1:2], euro[2:] + b"b"])
    assert [s.push(i) for i in range(3)] == ["a", "", "€b"]


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
