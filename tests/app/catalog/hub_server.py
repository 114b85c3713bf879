"""A hub on this machine: a real HTTP server that speaks the endpoints which huggingface_hub needs for a download."""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import threading
from dataclasses import dataclass, field
from typing import Any

from tests.engine.weights.gguf_writer import Parts, entry, tiny_llama, typed

SHA = "0123456789012345678901234567890123456789"
TOKEN = "hf_abcdefghijklmnop"


def model_parts(**options: Any) -> Parts:
    """A llama of one layer with a tokenizer."""
    parts = tiny_llama(**options)
    parts.entries += [
        entry("tokenizer.ggml.model", typed("str", "llama")),
        entry("tokenizer.ggml.token_type", typed("[i32]", [3, 1, 1, 1])),
    ]
    return parts


def model_file(**options: Any) -> bytes:
    return model_parts(**options).bytes()


@dataclass
class Repo:
    """Files of a repository, and what goes wrong with them."""

    files: dict[str, bytes]
    gated: bool = False
    private: bool = False
    sizes: dict[str, int] = field(default_factory=dict)
    """What the hub says, where it is not the truth."""
    sent: dict[str, bytes] = field(default_factory=dict)
    """What it sends in the place of a file."""


class HubServer(http.server.ThreadingHTTPServer):
    def __init__(self, **repos: Repo) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.repos = {name.replace("__", "/"): repo for name, repo in repos.items()}
        self.asked: list[str] = []
        """Method, path and range of each request."""
        self.tokens: set[str] = set()
        """Tokens that were sent."""
        self.cut_after: dict[str, int] = {}
        """Break the connection once after so many bytes of a file, in an answer that has more."""
        self.knows_ranges = True
        self.is_silent = ""
        """Part of the paths to which it gives no answer: "/api/", "/resolve/"."""
        self.silent_after: dict[str, int] = {}
        """Send no more after so many bytes of each request for a file."""
        self.status: dict[str, list[int]] = {}
        """Answer requests for a file with these, one after the other, then as ever."""
        self.n_bytes_sent = 0
        """Of files."""
        self.closed = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def server_close(self) -> None:
        self.closed.set()  # who is silent stops waiting, before its thread is waited for
        super().server_close()

    def ranges_of(self, name: str) -> list[str]:
        """Of the requests for a file's content."""
        return [line.split()[-1].removeprefix("bytes=") for line in self.asked if f"/resolve/{SHA}/{name}" in line]

    def n_sent(self, name: str) -> int:
        """Whole requests for a file's content."""
        return sum(line.startswith("GET") and f"/{name}" in line and "/api/" not in line for line in self.asked)


class _Answer(http.server.BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Tests print nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        self.server.asked.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
        if token:
            self.server.tokens.add(token)
        if self.server.is_silent and self.server.is_silent in path:
            self.server.closed.wait()
            self.close_connection = True
            return None
        if path == "/api/whoami-v2":
            known = token == TOKEN
            return self._send(200 if known else 401, json.dumps({"name": "ada", "type": "user"} if known else {}).encode())
        if match := re.fullmatch(r"/api/models/([\w.-]+/[\w.-]+)", path):
            return self._describe(match[1], token)
        if match := re.fullmatch(rf"/([\w.-]+/[\w.-]+)/resolve/{SHA}/(.+)", path):
            repo = self.server.repos.get(match[1])
            if repo is not None and repo.gated and token != TOKEN:
                return self._send(403, b"{}", ("X-Error-Code", "GatedRepo"))
            if repo is not None and match[2] in repo.files:
                return self._send_file(repo, match[2])
        return self._send(404, b"{}", ("X-Error-Code", "EntryNotFound"))

    def _describe(self, name: str, token: str) -> None:
        repo = self.server.repos.get(name)
        if repo is None or (repo.private and token != TOKEN):
            return self._send(404, b"{}", ("X-Error-Code", "RepoNotFound"))
        siblings = []
        for file, data in repo.files.items():
            sibling: dict[str, Any] = {"rfilename": file, "size": repo.sizes.get(file, len(data))}
            sibling["blobId"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            if file.endswith((".gguf", ".safetensors")):
                sibling["lfs"] = {"size": sibling["size"], "sha256": hashlib.sha256(data).hexdigest(), "pointerSize": 134}
            siblings.append(sibling)
        return self._send(200, json.dumps({"id": name, "sha": SHA, "siblings": siblings}).encode())

    def _send_file(self, repo: Repo, name: str) -> None:
        data = repo.sent.get(name, repo.files[name])
        etag = hashlib.sha256(repo.files[name]).hexdigest()
        headers = [("ETag", f'"{etag}"'), ("X-Repo-Commit", SHA), ("Accept-Ranges", "bytes")]
        if codes := self.server.status.get(name):
            return self._send(codes.pop(0), b"{}")
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and self.server.knows_ranges:
            start, end = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
            headers.append(("Content-Range", f"bytes {start}-{end}/{len(data)}"))
            return self._send(206, data[start : end + 1], *headers, of=name)
        return self._send(200, data, *headers, of=name)

    def _send(self, status: int, body: bytes, *headers: tuple[str, str], of: str = "") -> None:
        """of: the file whose content it is."""
        self.send_response(status)
        for name, value in (*headers, ("Content-Length", str(len(body))), ("Content-Type", "application/json")):
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        cut, quiet = self.server.cut_after.get(of, len(body)), self.server.silent_after.get(of, len(body))
        if cut < len(body):
            del self.server.cut_after[of]
        try:
            for at in range(0, n := min(cut, quiet, len(body)), 1 << 16):
                piece = body[at : min(n, at + (1 << 16))]
                self.wfile.write(piece)
                self.server.n_bytes_sent += len(piece) if of else 0
        except OSError:  # the client has left
            self.close_connection = True
        if quiet < len(body):
            self.server.closed.wait()
        if n < len(body):
            self.close_connection = True
