"""A small HTTP server for endpoints whose requests and answers are JSON objects."""

import json
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_NO_CONTENT = 204
"""The status of an answer without a body."""


@dataclass(frozen=True)
class JsonRequest:
    """A request, whose body is decoded; an empty one is an empty object."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """By their names in small letters."""
    body: dict[str, Any]


@dataclass(frozen=True)
class JsonAnswer:
    """The answer to a request."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    answer: Callable[[JsonRequest], JsonAnswer]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        text = self.rfile.read(length)
        path, _, query = self.path.partition("?")
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            if text and "form-urlencoded" in headers.get("content-type", ""):
                body = dict(urllib.parse.parse_qsl(text.decode()))
            else:
                body = json.loads(text) if text else {}
        except ValueError as error:
            answer = JsonAnswer({"message": f"the body is not JSON: {error}"}, 400)
        else:
            fields = dict(urllib.parse.parse_qsl(query))
            answer = self.server.answer(
                JsonRequest(self.command, urllib.parse.unquote(path), fields, headers, body or {})
            )
        data = b"" if answer.status == _NO_CONTENT else json.dumps(answer.body).encode()
        self.send_response(answer.status)
        if answer.status != _NO_CONTENT:
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815  # names that the base class looks for

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@contextmanager
def json_server(answer: Callable[[JsonRequest], JsonAnswer]) -> Iterator[str]:
    """Answer requests on this machine while the block runs; yields the URL. `answer` is called by several threads."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.answer = answer
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
