"""A schema registry on a port of the system, which answers what a test tells it."""

import http.server
import json
import threading

import pytest


class FakeRegistry:
    """Answers by path; ``asked`` has the paths and the header Authorization of the requests."""

    def __init__(self):
        self.answers, self.asked = {}, []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked.append((self.path, self.headers.get("Authorization")))
                data = outer.answers.get(self.path)
                self.send_response(404 if data is None else 200)
                self.end_headers()
                self.wfile.write(data or b"{}")

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def add(self, subject, number, schema, **more):
        """Add a version of a subject."""
        path = f"/subjects/{subject}/versions"
        there = json.loads(self.answers.get(path, b"[]"))
        there.append(len(there) + 1)
        self.answers[path] = json.dumps(there).encode()
        self.answers[f"{path}/{there[-1]}"] = json.dumps(
            {"subject": subject, "id": number, "version": there[-1], "schema": schema, **more}).encode()

    def close(self):
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


@pytest.fixture
def registry():
    made = FakeRegistry()
    yield made
    made.close()
