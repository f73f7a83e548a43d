"""What a grammar leaves no choice about, drafted for nothing: tokens per pass and per second on JSON and tool calls.

    python benchmarks/forced_tokens.py [--model NAME] [--dtype auto] [--rounds 3] [--schemas 20] [--machine amx-4]
                                       [--out FILE.json]

Twenty schemas as programs have them, each asked for twice: as a `response_format` and as the arguments of a tool. Three
arms write the same answers in turns, greedily: plain decoding, `auto` without forced drafts, `auto` with them. All must
write the same tokens. Leave the machine otherwise idle; with `--machine` it need not be: the same tokens are written in
the virtual time of another (virtual_machine.py), which counts passes and nothing else.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from virtual_machine import MACHINES, Clock

from outrider import LLM, Grammar, SamplingParams
from outrider.control.forced import NAME
from outrider.core.draft import Speculation
from outrider.core.request import Completion
from outrider.models.cpu import cpu_name
from outrider.provenance import provenance
from outrider.server.schemas import closed
from outrider.server.tools.dialect import GENERIC
from outrider.server.tools.rules import Function, rules

TEXT = {"type": "string", "maxLength": 24}
NUMBER, COUNT, FLAG = {"type": "number"}, {"type": "integer"}, {"type": "boolean"}


def one_of(*values: str) -> dict[str, Any]:
    return {"enum": list(values)}


def record(**properties: Any) -> dict[str, Any]:
    return closed({"type": "object", "properties": properties, "required": list(properties)})


def several(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 2, "maxItems": 3}


DAY = one_of("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
SCHEMAS: dict[str, tuple[str, dict[str, Any]]] = {
    "get_weather": ("the weather in Paris", record(city=TEXT, unit=one_of("celsius", "fahrenheit"), days=COUNT)),
    "book_flight": (
        "a flight from Rome to Oslo on Monday",
        record(
            origin=TEXT,
            destination=TEXT,
            departure_day=DAY,
            passengers=COUNT,
            cabin_class=one_of("economy", "business"),
        ),
    ),
    "create_user": (
        "a new user, Ann Lee",
        record(first_name=TEXT, last_name=TEXT, email_address=TEXT, is_administrator=FLAG),
    ),
    "send_email": (
        "an email to Bob about lunch",
        record(recipient=TEXT, subject=TEXT, priority=one_of("low", "normal", "high")),
    ),
    "search_products": (
        "red shoes under 50 dollars",
        record(
            query=TEXT,
            maximum_price=NUMBER,
            in_stock_only=FLAG,
            sort_order=one_of("price_ascending", "price_descending"),
        ),
    ),
    "add_event": (
        "a meeting on Friday at ten",
        record(title=TEXT, day_of_week=DAY, start=record(hour=COUNT, minute=COUNT), reminder_enabled=FLAG),
    ),
    "classify_review": (
        "the review 'It broke after a day'",
        record(
            sentiment=one_of("positive", "neutral", "negative"),
            mentions_quality=FLAG,
            mentions_price=FLAG,
            confidence=NUMBER,
        ),
    ),
    "extract_person": (
        "Marie Curie, born in Warsaw in 1867",
        record(full_name=TEXT, birth=record(place=TEXT, year=COUNT), occupation=TEXT),
    ),
    "set_thermostat": (
        "20 degrees in the kitchen",
        record(room_name=TEXT, target_temperature=NUMBER, mode=one_of("heating", "cooling", "off")),
    ),
    "convert_currency": (
        "100 euros in dollars",
        record(amount=NUMBER, source_currency=one_of("EUR", "USD", "GBP"), target_currency=one_of("EUR", "USD", "GBP")),
    ),
    "play_music": (
        "something calm by Bach",
        record(artist=TEXT, genre=one_of("classical", "jazz", "rock"), shuffle_enabled=FLAG, volume_percent=COUNT),
    ),
    "file_bug": (
        "the login page is blank",
        record(
            component_name=TEXT,
            severity=one_of("minor", "major", "critical"),
            is_reproducible=FLAG,
            steps_to_reproduce=several(TEXT),
        ),
    ),
    "order_pizza": (
        "two large pizzas with olives",
        record(
            size=one_of("small", "medium", "large"),
            quantity=COUNT,
            toppings=several(one_of("olives", "mushrooms", "cheese")),
        ),
    ),
    "translate": (
        "'good morning' into French",
        record(source_text=TEXT, source_language=TEXT, target_language=TEXT, formal=FLAG),
    ),
    "move_robot": (
        "two metres north, slowly",
        record(
            direction=one_of("north", "south", "east", "west"), distance_in_metres=NUMBER, speed=one_of("slow", "fast")
        ),
    ),
    "open_account": (
        "a savings account for John Smith of Leeds",
        record(
            account_type=one_of("savings", "current"),
            holder=record(given_name=TEXT, family_name=TEXT, address=record(city=TEXT, country_code=TEXT)),
        ),
    ),
    "schedule_backup": (
        "the database every Sunday",
        record(
            resource_name=TEXT, frequency=one_of("daily", "weekly", "monthly"), weekday=DAY, retention_in_days=COUNT
        ),
    ),
    "rate_recipe": (
        "pancakes, easy and good",
        record(
            recipe_name=TEXT,
            difficulty_level=one_of("easy", "medium", "hard"),
            preparation_minutes=COUNT,
            would_recommend=FLAG,
        ),
    ),
    "list_cities": (
        "two cities of Italy",
        record(country_name=TEXT, cities=several(record(name=TEXT, population=COUNT, is_capital=FLAG))),
    ),
    "resize_image": (
        "cat.png to 640 by 480",
        record(
            file_name=TEXT,
            target_width=COUNT,
            target_height=COUNT,
            keep_aspect_ratio=FLAG,
            output_format=one_of("png", "jpeg"),
        ),
    ),
}
"""By the function's name: what is asked for, and its form."""


@dataclass
class Arm:
    name: str
    speculation: Speculation
    plain: bool = False
    tokens: int = 0
    forced: int = 0
    """Of them, drafted by the grammar."""
    steps: int = 0
    seconds: list[float] = field(default_factory=list)
    """Of each round."""


def arms() -> list[Arm]:
    return [
        Arm("plain", Speculation(), plain=True),
        Arm("auto, no forced drafts", Speculation(forced=False)),
        Arm("auto", Speculation()),
    ]


def tasks(llm: LLM, count: int) -> Iterator[tuple[str, list[int], Grammar]]:
    for name, (wish, schema) in list(SCHEMAS.items())[:count]:
        call = rules(GENERIC, [Function(name, schema)], {}, text=False, several=False)
        asked = f"{name.replace('_', ' ').capitalize()}: {wish}."
        yield "tool", llm.encode_chat([{"role": "user", "content": asked}]), call
        asked += f" Answer in JSON with {', '.join(schema['properties'])}."
        yield "json", llm.encode_chat([{"role": "user", "content": asked}]), Grammar.json_schema(schema)


def write(llm: LLM, arm: Arm, prompt: list[int], grammar: Grammar) -> Completion:
    params = SamplingParams(max_tokens=256, temperature=0, grammar=grammar)
    return llm.generate([prompt], params, speculation=Speculation(max_nodes=0) if arm.plain else arm.speculation)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--schemas", type=int, default=len(SCHEMAS))
    parser.add_argument("--machine", choices=list(MACHINES), help="in virtual time")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    dtype, machine = options.dtype, cpu_name()
    if options.machine:
        dtype, machine = MACHINES[options.machine].dtype, f"{options.machine}, virtual time"
        Clock(MACHINES[options.machine]).install()
    llm = LLM(options.model, dtype=dtype, max_batch=1, max_context=1024, remember=False)
    result: dict[str, Any] = {"provenance": provenance(), "machine": machine, "dtype": dtype, "rounds": options.rounds}
    compared = {kind: arms() for kind in ("tool", "json")}
    for kind, prompt, grammar in tasks(llm, options.schemas):  # compile grammars, measure costs
        write(llm, compared[kind][2], prompt, grammar)
    for _ in range(options.rounds):
        for each in (arm for arms_ in compared.values() for arm in arms_):
            each.tokens = each.forced = each.steps = 0
            each.seconds.append(0.0)
        said: dict[str, list[list[int]]] = {}
        for number in range(len(arms())):  # one arm after the other: none begins with a prompt another has just run
            for kind, prompt, grammar in tasks(llm, options.schemas):
                arm = compared[kind][number]
                done = write(llm, arm, prompt, grammar)
                said.setdefault(arm.name, []).append(done.token_ids)
                arm.tokens += len(done.token_ids)
                arm.forced += done.sources[NAME].accepted if NAME in done.sources else 0
                arm.steps += done.steps
                arm.seconds[-1] += done.seconds
        assert all(tokens == said["plain"] for tokens in said.values()), "an arm wrote other tokens"
    for kind, these in compared.items():
        plain, without, _ = (median(arm.seconds) for arm in these)
        result[kind] = {}
        for arm in these:
            taken = median(arm.seconds)
            result[kind][arm.name] = {
                "tokens_per_second": arm.tokens / taken,
                "tokens_per_pass": arm.tokens / arm.steps,
                "forced_share": arm.forced / arm.tokens,
                "times_plain": plain / taken,
                "times_auto_without": without / taken,
            }
            figures = result[kind][arm.name]
            print(
                f"{kind:5} {arm.name:24} {figures['tokens_per_second']:7.1f} tokens/s  "
                f"{figures['tokens_per_pass']:.2f} a pass  {figures['times_plain']:.2f}x plain  "
                f"{figures['times_auto_without']:.2f}x auto without"
            )
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
