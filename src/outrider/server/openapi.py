"""The OpenAPI document, and a page that shows it without anything from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from outrider.server.protocol import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from outrider.server.responses.asked import ResponsesRequest

_REF = "#/components/schemas/{model}"
_BODIES: tuple[type[BaseModel], ...] = (
    *(ChatRequest, CompletionRequest, ResponsesRequest),
    *(TokenizeRequest, DetokenizeRequest),
)
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_SAY = {
    400: "Something in the request cannot be served; `param` names it",
    404: "No such model",
    413: "The body is too large",
    429: "The queue is full; `Retry-After` says when to come back",
    503: "The model is loading, stopping or has failed",
}


def body(model: type[BaseModel]) -> dict[str, Any]:
    """The request body of an operation. It is read in parse.py, so FastAPI has to be told of it."""
    schema = {"$ref": _REF.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    content = {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}}
    return {status: {"description": _SAY[status], "content": content} for status in statuses}


def describe(app: FastAPI) -> dict[str, Any]:
    """The document, made once."""
    document = FastAPI.openapi(app)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    if "Error" in schemas:
        return document
    schemas.clear()  # FastAPI's own validation errors, which this server never answers with
    schemas["Error"] = _ERROR
    for model in _BODIES:
        schema = model.model_json_schema(ref_template=_REF)
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    return document


def page(document: dict[str, Any]) -> str:
    """The document for people."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{escape(document["info"]["title"])}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
code, pre {{ font: 14px/1.4 ui-monospace, monospace }}
pre {{ background: #8881; padding: .8rem; overflow-x: auto }}
details {{ margin: .5rem 0 }} summary {{ cursor: pointer }}
:root {{ color-scheme: light dark }}
</style></head><body>
<h1>{escape(document["info"]["title"])}</h1>
<p>{escape(document["info"].get("description", ""))}
The same for programs: <a href="/openapi.json">openapi.json</a>.</p>
{"".join(_operations(document))}
<h2>What is sent</h2>
{"".join(_schemas(document))}
</body></html>"""


def _operations(document: dict[str, Any]) -> Iterator[str]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            sent = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            name = sent.get("$ref", "").rpartition("/")[2]
            link = f' Send: <a href="#{escape(name)}">{escape(name)}</a>.' if name else ""
            yield f"<h3><code>{method.upper()} {escape(path)}</code></h3>"
            yield f"<p>{escape(operation.get('description', ''))}{link}</p>"


def _schemas(document: dict[str, Any]) -> Iterator[str]:
    for name, schema in document["components"]["schemas"].items():
        text = escape(json.dumps(schema, indent=1, ensure_ascii=False))
        yield f'<details id="{escape(name)}"><summary>{escape(name)}</summary><pre>{text}</pre></details>'
