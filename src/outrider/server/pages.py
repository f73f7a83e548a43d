"""Pages for people: the playground and the reference. Everything on them comes from this server."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse, HTMLResponse, Response
from fastapi.staticfiles import StaticFiles

from outrider.server.documents import describe, page
from outrider.server.errors import ApiError

_FOLDER = Path(__file__).parent / "playground"
_POLICY = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}


def install(app: FastAPI) -> None:
    if _FOLDER.is_dir():
        app.mount("/playground", StaticFiles(directory=_FOLDER), name="playground")

    @app.get("/", include_in_schema=False)
    async def playground() -> Response:
        index = _FOLDER / "index.html"
        if not index.is_file():
            raise ApiError(404, "this installation has no playground; /docs lists what there is")
        return FileResponse(index, headers=_POLICY)

    @app.get("/docs", include_in_schema=False)
    async def reference() -> HTMLResponse:
        return HTMLResponse(page(describe(app)), headers=_POLICY)
