"""The application, put together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Scope

from outrider import __version__
from outrider.server import errors, faults, openapi, pages
from outrider.server.auth import Auth
from outrider.server.head import Head
from outrider.server.hosts import Hosts
from outrider.server.keys import Keys
from outrider.server.metrics import Metrics
from outrider.server.metrics_port import MetricsPort
from outrider.server.models import Models
from outrider.server.parse import BodyReader
from outrider.server.records import Record
from outrider.server.request_log import Tracking
from outrider.server.routes import describing, generating, watching


class _Api(FastAPI):
    def openapi(self) -> dict[str, Any]:
        return openapi.describe(self)


def make_app(
    models: Models,
    *,
    keys: Keys | None = None,
    hosts: Collection[str] | None = None,
    origins: Collection[str] = (),
    metrics_port: int | None = None,
    restarts: int = 0,
    watchers: Sequence[Callable[[Scope, Record, int], None]] = (),
) -> FastAPI:
    """OpenAI's protocol over these models, for requests to `hosts` (None: any). Pages of other sites may read answers
    if they are of one of `origins`. On `metrics_port` there is what watches the server, and nothing else.
    `restarts`: how often it has begun anew. `watchers` are told of every request when it has ended."""
    app = _Api(
        title="Outrider",
        version=__version__,
        description="OpenAI's protocol, with exact speculative decoding behind it.",
        docs_url=None,
        redoc_url=None,
    )
    app.state.reader = BodyReader()
    metrics = Metrics(lambda: models.loads, restarts)
    for name in models.names:
        metrics.of(name)  # from now on there is a zero to count from
    for router in (generating(models, metrics), describing(models), watching(models, metrics)):
        app.include_router(router)
    pages.install(app)
    errors.install(app, faults.note)
    # The last is the outermost.
    app.add_middleware(Auth, keys=keys)
    app.add_middleware(Head)
    if metrics_port is not None:
        app.add_middleware(MetricsPort, port=metrics_port)
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-request-id"],
            expose_headers=["x-request-id", "retry-after"],
        )
    if hosts is not None:
        app.add_middleware(Hosts, names=hosts)
    app.add_middleware(Tracking, watchers=(metrics.ended, *watchers))
    return app
