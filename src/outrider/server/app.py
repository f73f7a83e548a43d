"""The application, put together."""

from __future__ import annotations

from collections.abc import Collection

from fastapi import FastAPI

from outrider import __version__
from outrider.server import documents, errors, faults, pages
from outrider.server.auth import Auth
from outrider.server.backend import Backend
from outrider.server.head import Head
from outrider.server.hosts import Hosts
from outrider.server.metrics import Metrics
from outrider.server.reading import Reader
from outrider.server.routes import describing, generating, watching
from outrider.server.tracking import Tracking


def make_app(backend: Backend, *, api_key: str | None = None, hosts: Collection[str] | None = None) -> FastAPI:
    """OpenAI's protocol over one model, for requests to `hosts` (None: any). Other sites' pages may not read answers:
    there is no CORS."""
    app = FastAPI(
        title="Outrider",
        version=__version__,
        description="OpenAI's protocol, with exact speculative decoding behind it.",
        docs_url=None,
        redoc_url=None,
    )
    app.state.reader = Reader()
    metrics = Metrics(backend.name, lambda: backend.load)
    for router in (generating(backend, metrics), describing(backend), watching(backend, metrics)):
        app.include_router(router)
    pages.install(app)
    errors.install(app, faults.note)
    app.openapi = lambda: documents.describe(app)  # type: ignore[method-assign]
    # The last is the outermost.
    if api_key:
        app.add_middleware(Auth, key=api_key)
    app.add_middleware(Head)
    if hosts is not None:
        app.add_middleware(Hosts, names=hosts)
    app.add_middleware(Tracking)
    return app
