"""A real HTTP server that notices are posted to: it answers, fails and hangs as it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SECRET = "Bearer s3cret-of-the-webhook"


class Receiver:
    """A real HTTP server. `answers` are the next statuses; 0 hangs until the end; afterwards it answers 204."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.over = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = receiver.answers.pop(0) if receiver.answers else 204
                receiver.requests.append((dict(self.headers), body))
                if status == 0:
                    receiver.over.wait(60)
                    return
                self.send_response(status)
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def received(*answers: int) -> Iterator[Receiver]:
    receiver = Receiver(*answers)
    try:
        yield receiver
    finally:
        receiver.close()


def webhook_file(folder: Path, url: str, authorization: str = SECRET) -> Path:
    path = folder / "webhook"
    path.write_text(f"{url}\n{authorization}\n")
    path.chmod(0o600)
    return path
