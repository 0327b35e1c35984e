"""Access and monitoring of a server: API key, a line of JSON for each request, and metrics."""

import datetime
import json
import logging
import secrets
import time
from typing import Any

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keras_transformer.serving.limits import WATCHED
from keras_transformer.serving.openai_fields import ApiError
from keras_transformer.serving.worker import Worker

LOGGER = logging.getLogger("keras_transformer.serving")
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)


class Metrics:
    """Metrics of one server, in Prometheus's format."""

    def __init__(self):
        self.registry = CollectorRegistry()
        about = {"namespace": "keras_transformer", "registry": self.registry}
        seconds = {"buckets": _SECONDS, **about}
        self.requests = Counter(
            "requests", "Requests answered", ["path", "model", "status"], **about
        )
        self.tokens = Counter("tokens", "Tokens read and written", ["model", "kind"], **about)
        self.seconds = Histogram(
            "request_seconds", "Time of a request", ["path", "model"], **seconds
        )
        self.first = Histogram("first_token_seconds", "Time to first token", ["model"], **seconds)
        self.running = Gauge("running_texts", "Texts being generated", ["model"], **about)
        self.waiting = Gauge("waiting_texts", "Texts that wait", ["model"], **about)
        self.failures = Gauge("model_failures", "Steps that failed", ["model"], **about)
        self.is_open = Gauge("open_requests", "Requests being answered", **about)

    def watch(self, name: str, worker: Worker) -> None:
        """Read the state of a worker whenever metrics are requested."""
        self.running.labels(name).set_function(lambda: worker.running)
        self.waiting.labels(name).set_function(lambda: worker.waiting)
        self.failures.labels(name).set_function(lambda: worker.failures)

    def count(self, path: str, status: int, seconds: float, facts: dict[str, Any]) -> None:
        """Count one answered request."""
        model = facts.get("model") or ""
        self.requests.labels(path, model, str(status)).inc()
        self.seconds.labels(path, model).observe(seconds)
        for kind in ("prompt", "completion"):
            if tokens := facts.get(f"{kind}_tokens"):
                self.tokens.labels(model, kind).inc(tokens)
        if "first_token_seconds" in facts:
            self.first.labels(model).observe(facts["first_token_seconds"])

    async def answer(self, request: Request) -> Response:
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)


class Observed:
    """Middleware that checks the API key, and counts and logs each request.

    Handlers put facts about a request into `scope["facts"]`: `model`, `prompt_tokens`,
    `completion_tokens`, and the time of the first token, `began`.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, key: str | None = None):
        self.app, self.metrics = app, metrics
        self._expected = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, facts = time.perf_counter(), scope.setdefault("facts", {})
        answered: dict[str, Any] = {"status": 499}  # for a client that leaves early
        request_id = secrets.token_hex(8)

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered["status"] = message["status"]
                message["headers"] = [
                    *message["headers"],
                    (b"x-request-id", request_id.encode()),
                ]
            await send(message)

        self.metrics.is_open.inc()
        try:
            if self._may(scope):
                await self.app(scope, receive, told)
            else:
                error = ApiError(
                    401, "The API key is missing or wrong: send it as `Authorization: Bearer KEY`.",
                    "invalid_api_key",
                )  # fmt: skip
                await JSONResponse(error.body, 401, {"WWW-Authenticate": "Bearer"})(
                    scope, receive, told
                )
        except Exception:
            answered["status"] = 500  # answered by Starlette's outermost error handler
            raise
        finally:
            self.metrics.is_open.dec()
            self._tell(scope, answered["status"], started, request_id, facts)

    def _may(self, scope: Scope) -> bool:
        if self._expected is None or scope["path"] in WATCHED:
            return True
        # The scheme's name is case-insensitive, RFC 9110, section 11.1.
        scheme, _, given = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        return scheme.lower() == b"bearer" and secrets.compare_digest(
            given.strip(b" "), self._expected
        )

    def _tell(
        self, scope: Scope, status: int, started: float, request_id: str, facts: dict
    ) -> None:
        seconds = time.perf_counter() - started
        if (began := facts.pop("began", None)) is not None:
            facts["first_token_seconds"] = began - started
        # Only known paths: otherwise metrics would keep every path that somebody tries.
        route = scope.get("route")
        path = route.path if route is not None else "unknown"
        self.metrics.count(path, status, seconds, facts)
        client = scope.get("client")
        told = {
            "request": request_id,
            "method": scope["method"],
            "path": scope["path"][:200],
            "status": status,
            "seconds": round(seconds, 4),
            "client": client[0] if client else None,
            **{k: round(v, 4) if isinstance(v, float) else v for k, v in facts.items()},
        }
        LOGGER.info("request", extra={"facts": told})


class JsonLines(logging.Formatter):
    """Formats each record as a line of JSON, without any text of users or models."""

    def format(self, record: logging.LogRecord) -> str:
        time_ = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        told = {
            "time": time_.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return json.dumps(told)


def log_config(level: str = "INFO") -> dict[str, Any]:
    """Return a config for `logging.config.dictConfig`: lines of JSON on standard error."""
    handler = {"class": "logging.StreamHandler", "formatter": "json", "stream": "ext://sys.stderr"}
    loggers = ("keras_transformer.serving", "uvicorn")
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": JsonLines}},
        "handlers": {"stderr": handler},
        "loggers": {
            name: {"handlers": ["stderr"], "level": level, "propagate": False} for name in loggers
        },
    }
