"""Pages for people: the playground and the reference. Everything on them comes from this server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import FileResponse, HTMLResponse, Response
from fastapi.staticfiles import StaticFiles

from outrider.server.errors import ApiError
from outrider.server.openapi import describe, page

_FOLDER = Path(__file__).parent / "playground"
_NOTHING_ELSE = "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_PLAYGROUND = {
    "content-security-policy": f"default-src 'none'; script-src 'self'; style-src 'self'; {_NOTHING_ELSE}",
    "cache-control": "no-cache",  # or a browser mixes modules of two versions
}
_REFERENCE = {"content-security-policy": f"default-src 'none'; style-src 'unsafe-inline'; {_NOTHING_ELSE}"}


def install(app: FastAPI) -> None:
    if _FOLDER.is_dir():
        app.mount("/playground", _Fresh(directory=_FOLDER), name="playground")

    @app.get("/", include_in_schema=False)
    async def playground() -> Response:
        index = _FOLDER / "index.html"
        if not index.is_file():
            raise ApiError(404, "this installation has no playground; /docs lists what there is")
        return FileResponse(index, headers=_PLAYGROUND)

    @app.get("/docs", include_in_schema=False)
    async def reference() -> HTMLResponse:
        return HTMLResponse(page(describe(app)), headers=_REFERENCE)


class _Fresh(StaticFiles):
    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        answer = super().file_response(*args, **kwargs)
        answer.headers["cache-control"] = "no-cache"
        return answer
