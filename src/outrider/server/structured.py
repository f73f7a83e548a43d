"""`response_format`: what the answer must look like, as a grammar for the sampler."""

from __future__ import annotations

from outrider.sampling.grammar import Grammar
from outrider.server.errors import ApiError
from outrider.server.protocol import ResponseFormat
from outrider.server.schemas import closed


def grammar_of(wanted: ResponseFormat | None) -> Grammar | None:
    """The grammar asked for; None: any text."""
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
