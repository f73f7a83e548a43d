"""What the answer must look like, as a grammar for the sampler: `response_format`, or as vLLM spells it."""

from __future__ import annotations

import re
from typing import NamedTuple

from outrider.sampling.grammar import Grammar
from outrider.server.errors import ApiError
from outrider.server.protocol import Formatted, ResponseFormat
from outrider.server.schemas import closed


class Wanted(NamedTuple):
    """What an answer must look like (None: any text), and by which field the client has said so."""

    grammar: Grammar | None = None
    field: str = "response_format"


def wanted_by(asked: Formatted) -> Wanted:
    given = [Wanted(grammar, name) for name, grammar in _spellings(asked).items() if grammar is not None]
    if len(given) > 1:
        first, second = given[0].field, given[1].field
        raise ApiError(400, f"{second}: an answer has one form; give it or {first}", param=second)
    return given[0] if given else Wanted()


def _spellings(asked: Formatted) -> dict[str, Grammar | None]:
    found = {
        "response_format": _formatted(asked.response_format),
        "guided_json": None if asked.guided_json is None else Grammar.json_schema(closed(asked.guided_json)),
        "guided_regex": None if asked.guided_regex is None else Grammar.regex(asked.guided_regex),
        "guided_choice": None if asked.guided_choice is None else _one_of(asked.guided_choice),
    }
    if (wanted := asked.structured_outputs) is not None:
        found |= {
            "structured_outputs.json": None if wanted.json_ is None else Grammar.json_schema(closed(wanted.json_)),
            "structured_outputs.regex": None if wanted.regex is None else Grammar.regex(wanted.regex),
            "structured_outputs.choice": None if wanted.choice is None else _one_of(wanted.choice),
        }
    return found


def _one_of(texts: list[str]) -> Grammar:
    return Grammar.regex("|".join(map(re.escape, texts)))


def _formatted(wanted: ResponseFormat | None) -> Grammar | None:
    if wanted is None or wanted.type == "text":
        return None
    schema = None if wanted.json_schema is None else wanted.json_schema.schema_
    if wanted.type == "json_schema" and schema is None:
        raise ApiError(
            400, "response_format.json_schema.schema is required", param="response_format.json_schema.schema"
        )
    if schema is None:
        return Grammar.json_object()
    # A schema may be true (anything) or false (nothing): llguidance takes objects alone.
    return Grammar.json_schema({"not": {}} if schema is False else {} if schema is True else closed(schema))
