"""Everything that goes wrong, in OpenAI's form: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as AnyHTTPException

from outrider.errors import Busy, InvalidRequest, OutriderError, Unavailable

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


class ApiError(Exception):
    """An answer that is an error. `param` names the field at fault, `code` is for programs.

    `reason` is for the log, which holds nothing a client has said: a few words of our own, never made from values. The
    message may quote them."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.reason = reason or code or "refused"

    @property
    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        headers = {} if self.retry_after is None else {"Retry-After": str(math.ceil(self.retry_after))}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body, self.status, headers)


INTERNAL = "the server has made a mistake; its log says more under this request's id (x-request-id)"


def as_api_error(error: BaseException, fields: Collection[str] = ()) -> ApiError:
    """Any error as the client is told of it. `fields`: names a message may be about. Only errors that are made for
    people are quoted."""
    match error:
        case ApiError():
            return error
        case InvalidRequest():
            code = "context_length_exceeded" if "no room in a context" in str(error) else None
            return ApiError(400, str(error), param=_param(str(error), fields), code=code)
        case Busy():
            return ApiError(429, str(error), code="queue_full", retry_after=error.retry_after)
        case Unavailable():
            return ApiError(503, str(error), code="unavailable", retry_after=5)
        case OutriderError():
            return ApiError(500, str(error))
        case AnyHTTPException():
            return ApiError(error.status_code, str(error.detail))
    return ApiError(500, INTERNAL)


def _param(message: str, fields: Collection[str]) -> str | None:
    """The first field the message names."""
    return next((word for word in re.findall(r"\w+", message) if word in fields), None)


def install(app: FastAPI, note: Callable[[Request, ApiError], None]) -> None:
    """Have every error leave in this form, and be told to `note`. What nobody foresaw is `request_log`'s to answer."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        told = as_api_error(error)
        note(request, told)
        if isinstance(error, AnyHTTPException) and error.status_code in (404, 405):
            phrase = HTTPStatus(error.status_code).phrase
            message = f"{request.method} {request.url.path}: {phrase.lower()}; /docs lists what there is"
            response = ApiError(error.status_code, message).response()
            response.headers.update(error.headers or {})
            return response
        return told.response()

    for kind in (ApiError, OutriderError, HTTPException, AnyHTTPException):
        app.add_exception_handler(kind, answer)
