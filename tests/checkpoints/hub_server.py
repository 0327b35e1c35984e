"""A server on this machine that behaves as the Hugging Face hub does, and fails on request.

It serves what `huggingface_hub` asks for: a repository's commit, the list of its files, and each
file with its checksum. Weights are in large file storage, which is another host, here `localhost`.
"""

import base64
import contextlib
import hashlib
import http.server
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER_COMMIT = "89abcdef0123456789abcdef0123456789abcdef"


class FakeHub:
    """Repositories by name, each with folders by revision and a fault of its own.

    Args:
        revisions: The folder of each commit.
        names: The commits that branches and tags are at.
        faults: For a repository, a function that may answer a request in place of the hub: it
            takes the `Request` and returns whether it has.
    """

    def __init__(
        self,
        revisions: dict[str, Path],
        names: dict[str, str],
        faults: dict[str, Callable[["Request"], bool]],
    ):
        self.revisions, self.names, self.faults = revisions, names, faults
        self.requests: list[Request] = []

    @contextlib.contextmanager
    def running(self):
        """Serves until the block ends; yields the address."""
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self):
                hub.handle(Request(self))

            do_GET = do_HEAD

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{self.server.server_port}"
        finally:
            self.server.shutdown()
            self.server.server_close()

    def stored(self, request: "Request") -> bytes:
        """The right content of the file that a request asks for."""
        commit = self.names.get(request.revision, request.revision)
        return (self.revisions[commit] / request.file).read_bytes()

    def of(self, repository: str, method: str = "GET") -> list["Request"]:
        """The requests so far for one repository."""
        return [r for r in self.requests if r.repository == repository and r.method == method]

    def handle(self, request: "Request") -> None:
        if request.kind == "mend":
            self.faults.pop(request.repository, None)
            request.json({})
            return
        self.requests.append(request)
        fault = self.faults.get(request.repository)
        request.hub = self
        if fault is None or not fault(request):
            self.answer(request)

    def answer(self, request: "Request") -> None:
        commit = self.names.get(request.revision, request.revision)
        if commit not in self.revisions:
            return request.refuse(404, "RevisionNotFound")
        folder = self.revisions[commit]
        if request.kind == "revision":
            names = [{"rfilename": path.name} for path in sorted(folder.iterdir())]
            return request.json(
                {"id": f"org/{request.repository}", "sha": commit, "siblings": names}
            )
        if request.kind == "tree":
            return request.json([entry(path) for path in sorted(folder.iterdir())])
        path = folder / request.file
        if not path.is_file():
            return request.refuse(404, "EntryNotFound", {"X-Repo-Commit": commit})
        content = path.read_bytes()
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if request.kind == "storage":
            return request.content(content, {"ETag": f'"{hashlib.md5(content).hexdigest()}"'})
        if not in_storage(path):
            return request.content(content, headers | {"ETag": f'"{git_id(content)}"'})
        place = f"http://localhost:{self.server.server_port}/storage/{request.path}"
        sha256 = hashlib.sha256(content).hexdigest()
        linked = {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(len(content))}
        return request.send(302, b"", headers | linked | {"Location": place})


class Request:
    """Request to the hub; `kind` is "revision", "tree", "resolve" or "storage".

    Or "mend", by which a test ends the fault of a repository.
    """

    def __init__(self, handler: http.server.BaseHTTPRequestHandler):
        self.handler, self.method = handler, handler.command
        self.hub: FakeHub | None = None
        self.path = handler.path.split("?")[0].removeprefix("/")
        self.range: str | None = handler.headers.get("Range")
        parts = self.path.split("/")
        self.file = self.revision = None
        if parts[0] == "mend":
            self.kind, self.repository = parts
        elif parts[0] == "api":  # api/models/org/name/revision/main
            self.repository, self.kind, self.revision = parts[3:6]
        else:  # org/name/resolve/main/config.json
            self.kind = parts.pop(0) if parts[0] == "storage" else "resolve"
            _, self.repository, _, self.revision, self.file = parts

    def content(self, content: bytes, headers: dict[str, str]) -> None:
        """Sends a file, or the rest of it if a range was asked for."""
        if self.range is None:
            return self.send(200, content, headers)
        first, _, last = self.range.removeprefix("bytes=").partition("-")
        part = content[int(first) : int(last) + 1 if last else None]
        headers["Content-Range"] = f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}"
        return self.send(206, part, headers)

    def refuse(self, status: int, code: str | None = None, headers: dict[str, str] = {}) -> None:  # noqa: B006
        self.send(status, b"", headers | ({"X-Error-Code": code} if code else {}))

    def json(self, value: object) -> None:
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def send(
        self, status: int, content: bytes, headers: dict[str, str], length: int | None = None
    ) -> None:
        """Answers; with a `length` above that of the content, the connection is cut after it."""
        self.handler.send_response(status)
        length = len(content) if length is None else length
        for key, value in {**headers, "Content-Length": str(length)}.items():
            self.handler.send_header(key, value)
        self.handler.end_headers()
        with contextlib.suppress(ConnectionError):
            self.handler.wfile.write(content if self.method == "GET" else b"")
            self.handler.wfile.flush()
        if length > len(content) and self.method == "GET":
            self.handler.close_connection = True

    def reset(self) -> None:
        """Breaks the connection off, as a machine that crashes does."""
        self.handler.wfile.flush()
        linger = struct.pack("ii", 1, 0)
        self.handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.handler.connection.close()
        self.handler.close_connection = True

    def say_nothing(self, seconds: float = 60) -> None:
        self.handler.close_connection = True
        time.sleep(seconds)


def in_storage(path: Path) -> bool:
    """Whether the file is one that the hub keeps in large file storage."""
    return path.suffix in (".safetensors", ".bin")


def entry(path: Path) -> dict:
    """A file in the list of a repository's files."""
    content = path.read_bytes()
    values = {"type": "file", "path": path.name, "size": len(content), "oid": git_id(content)}
    if in_storage(path):
        sha256 = hashlib.sha256(content).hexdigest()
        values["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 130}
    return values


def git_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class FakeHubToWrite:
    """A hub that takes commits: repositories, branches, files in commits and in large storage.

    Args:
        token: The token that may write.
    """

    def __init__(self, token: str):
        self.token = token
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        self.storage: dict[str, bytes] = {}
        self.messages: list[str] = []

    @contextlib.contextmanager
    def running(self):
        """Serves until the block ends; yields the address."""
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                allowed = self.headers.get("Authorization") == f"Bearer {hub.token}"
                if self.command == "PUT":  # the storage's addresses are signed
                    hub.storage[self.path.rpartition("/")[2]] = content
                    return self.answer(200, {})
                if not allowed and not self.path.startswith("/api/validate-yaml"):
                    return self.answer(401, {"error": "Invalid credentials"})
                return self.answer(*hub.answer(self.path.split("?")[0], content))

            do_PUT = do_GET = do_POST

            def answer(self, status, value):
                content = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        self.address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield self.address
        finally:
            server.shutdown()
            server.server_close()

    def answer(self, path: str, content: bytes) -> tuple[int, object]:
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "validate-yaml"]:
            return 200, {"errors": [], "warnings": []}
        if parts == ["api", "repos", "create"]:
            asked = json.loads(content)
            name = f"{asked['organization']}/{asked['name']}"
            if name in self.repositories:
                return 409, {"url": f"{self.address}/{name}"}
            self.repositories[name] = {"main": {}}
            return 200, {"url": f"{self.address}/{name}"}
        if parts[-1] == "batch":  # org/name.git/info/lfs/objects/batch
            objects = json.loads(content)["objects"]
            for one in objects:
                place = f"{self.address}/storage/{one['oid']}"
                one["actions"] = {"upload": {"href": place, "header": {}}}
            return 200, {"transfer": "basic", "objects": objects}
        branches = self.repositories["/".join(parts[2:4])]
        kind, branch = parts[4:6]
        if kind == "branch":
            branches.setdefault(branch, dict(branches["main"]))
            return 200, {}
        if kind == "preupload":
            files = json.loads(content)["files"]
            modes = ("regular", "lfs")
            return 200, {
                "files": [
                    {"path": file["path"], "uploadMode": modes[in_storage(Path(file["path"]))],
                     "shouldIgnore": False}
                    for file in files
                ]
            }  # fmt: skip
        assert kind == "commit", path
        for line in map(json.loads, content.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                self.messages.append(value["summary"])
            elif line["key"] == "lfsFile":
                branches[branch][value["path"]] = self.storage[value["oid"]]
            else:
                branches[branch][value["path"]] = base64.b64decode(value["content"])
        commit = f"{self.address}/{parts[2]}/{parts[3]}/commit/{COMMIT}"
        return 200, {"success": True, "commitOid": COMMIT, "commitUrl": commit}
