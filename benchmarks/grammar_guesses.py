"""How many steps on a device a request with a grammar sits out beside others, with and without guesses of what comes.

    python benchmarks/grammar_guesses.py

Texts are given, so no network is run: the steps of one lane are played through with the default model's tokens, real
grammars and the engine's own guesses, without drafts and with what the grammar forces, up to 4 tokens a step.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from time import perf_counter
from typing import Any, NamedTuple

from outrider import LLM
from outrider.control.forced import forced
from outrider.core.request import ResolvedParams
from outrider.core.step import Guide, Offer
from outrider.engine import guesses
from outrider.engine.device_guides import guides_of
from outrider.engine.request import Request
from outrider.engine.text import TextStream
from outrider.sampling.grammar import Grammar, Grammars
from outrider.sampling.history import History
from outrider.sampling.params import SamplingParams

PEOPLE = [
    ("Ada Lovelace", "teacher", 36, True),
    ("Charles", "student", 17, False),
    ("Grace Hopper", "parent", 85, True),
]
RECORD = {
    "first_name": {"type": "string", "maxLength": 24},
    "kind_of_person": {"enum": ["teacher", "student", "parent"]},
    "age_in_years": {"type": "integer", "maximum": 120, "minimum": 1},
    "member": {"type": "boolean"},
}
SWITCH = {"on": {"type": "boolean"}, "level": {"enum": ["low", "mid", "high"]}, "port": {"enum": [80, 443]}}


def listed(properties: dict[str, Any]) -> Grammar:
    item = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return Grammar.json_schema({"type": "array", "items": item})


CASES: dict[str, tuple[Grammar, str]] = {
    "JSON, records with names": (
        listed(RECORD),
        json.dumps([dict(zip(RECORD, person, strict=True)) for person in PEOPLE * 3]),
    ),
    "JSON, booleans and enums": (
        listed(SWITCH),
        json.dumps([{"on": i % 3 > 0, "level": "low", "port": (80, 443)[i % 2]} for i in range(12)]),
    ),
    "regex, dates": (Grammar.regex(r"(20[0-9]{2}-[01][0-9]-[0-3][0-9]\n){1,40}"), "2024-01-31\n2023-12-05\n" * 6),
    "regex, moves": (
        Grammar.regex(r"((north|south|east|west) (slowly|fast)\n){1,60}"),
        "north fast\neast slowly\nwest fast\nsouth slowly\n" * 4,
    ),
}


class Played(NamedTuple):
    steps: int
    sat_out: int
    milliseconds: float
    """Of guessing, a step."""


def played(params: ResolvedParams, text: Sequence[int], length: int) -> Played:
    """The steps of one lane that is to write `text`, each launched while the one before is under way."""
    one = Request(0, [1], 1, params, len(text) + 1, TextStream(lambda token: b"x", (), False), History([1]))
    guessing = guesses.Guesses(None)
    steps = sat_out = 0
    seconds = 0.0
    sent: Guide | None = None
    while one.generated < len(text):
        now = guesses.under_way(one, sent, length)
        if now is None:
            sat_out += steps > 0
            steps += 2 if steps else 1
            assert one.walk is not None
            offer = Offer(len(one.tokens), forced(one.walk.forced(), length).tokens, "grammar")
            now = guides_of({0: one}, [one], {0: offer}, length)[0]
        else:
            steps += 1
        left = text[one.generated :]
        right = 0
        while right < min(len(now.offer.tokens), len(left)) and now.offer.tokens[right] == left[right]:
            right += 1
        began = perf_counter()
        sent = guessing.of({0: (one, now)}, length).get(0)
        seconds += perf_counter() - began
        came = left[: right + 1]
        one.tokens += came
        one.history.append(came)
    return Played(steps, sat_out, 1e3 * seconds / (steps - sat_out))


def main() -> None:
    tokenizer = LLM().tokenizer
    grammars = Grammars(tokenizer, tokenizer.vocab_size)
    for name, (grammar, text) in CASES.items():
        asked, tokens = SamplingParams(temperature=1.0, seed=0, grammar=grammar), tokenizer.encode(text, False)
        params = asked.resolve({}, tokenizer.eos_token_ids, tokenizer.vocab_size, grammars=grammars)
        for length in (0, 4):
            found = []
            for guesses.MOST in (0, 8):
                found.append(played(params, tokens, length))
            before, after = found
            print(
                f"{name:26} {len(tokens)} tokens, drafts of {length}: sat out {before.sat_out} of {before.steps} steps "
                f"-> {after.sat_out} of {after.steps}, {after.milliseconds:.2f} ms of guessing a step",
                flush=True,
            )


if __name__ == "__main__":
    main()
