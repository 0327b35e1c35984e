"""Errors of OpenAI's API."""

from typing import Any

from keras_transformer.serving.bodies import said


class ApiError(Exception):
    """An error answered in OpenAI's format."""

    def __init__(self, status: int, message: str, code: str, param: str | None = None):
        super().__init__(said(message))
        self.status, self.code, self.param = status, code, param
        self.headers = {"Retry-After": "2"} if status == 429 else {}

    @property
    def body(self) -> dict[str, Any]:
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def wrong(message: str, param: str | None = None) -> ApiError:
    """Return the error for an invalid value of the field `param`, with the status 400."""
    return ApiError(400, message, "invalid_value", param)
