"""An S3 server in this process, with what an archive needs of S3; the contract suite holds it to real servers.

Keys are kept in memory. ``allowed`` and ``readers`` are access keys; signatures are not checked.
"""

import base64
import datetime as dt
import hashlib
import re
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

_PAGE = 4
"""Keys in one answer to a list, few so that tests see several pages."""


def _iso(seconds):
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


class _Object:
    def __init__(self, data, now):
        self.data, self.now = data, now
        self.tag = f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


class FakeS3:
    def __init__(self, *buckets):
        self.buckets = {name: {} for name in buckets}
        self.allowed, self.readers = {"key"}, {"reader"}
        self.now = 1_700_000_000  # seconds since 1970 by the clock of the server
        self.full = False
        self.ignores_conditions = False
        self.requests = []
        self.lock = threading.Lock()
        owner = self

        class Handler(_Handler):
            world = owner

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer in one packet, or the client waits 40 ms for the second one
    disable_nagle_algorithm = True
    world: FakeS3

    def log_message(self, *_):
        pass

    def _answer(self, status, data=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", headers.get("length", str(len(data))))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _error(self, status, code):
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code} of the test</Message></Error>"
        self._answer(status, text.encode(), Content_Type="application/xml")

    def _serve(self):
        world, parts = self.world, urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        user = self.headers.get("Authorization", "").partition("Credential=")[2].partition("/")[0]
        with world.lock:
            world.requests.append((self.command, key, dict(self.headers)))
            if user not in world.allowed and not (user in world.readers and self.command in {"GET", "HEAD"}):
                self._error(403, "AccessDenied")
            elif bucket not in world.buckets:
                self._error(404, "NoSuchBucket")
            elif self.command == "GET" and not key:
                self._list(world.buckets[bucket], parse_qs(parts.query))
            elif self.command == "PUT":
                self._put(world.buckets[bucket], key, body)
            elif self.command == "POST" and parts.query == "delete":
                keys = re.findall(r"<Key>(.*?)</Key>", body.decode())
                for one in keys:
                    world.buckets[bucket].pop(unescape(one), None)
                done = "".join(f"<Deleted><Key>{one}</Key></Deleted>" for one in keys)
                self._answer(200, f"<?xml version='1.0'?><DeleteResult>{done}</DeleteResult>".encode(),
                             Content_Type="application/xml")
            elif key not in world.buckets[bucket]:
                self._error(404, "NoSuchKey")
            else:
                self._get(world.buckets[bucket][key])

    do_GET = do_HEAD = do_PUT = do_POST = _serve

    def _put(self, objects, key, body):
        sha256 = hashlib.sha256(body)
        named, signed = self.headers.get("x-amz-checksum-sha256"), self.headers.get("x-amz-content-sha256", "")
        there = objects.get(key)
        if named is not None and base64.b64decode(named) != sha256.digest():
            return self._error(400, "BadDigest")
        if len(signed) == 64 and signed != sha256.hexdigest():
            return self._error(400, "XAmzContentSHA256Mismatch")
        if not self.world.ignores_conditions:
            if self.headers.get("If-None-Match") == "*" and there is not None:
                return self._error(412, "PreconditionFailed")
            if (wanted := self.headers.get("If-Match")) is not None:
                if there is None:
                    return self._error(404, "NoSuchKey")
                if wanted.strip('"') != there.tag.strip('"'):
                    return self._error(412, "PreconditionFailed")
        if self.world.full:
            return self._error(507, "InsufficientStorage")
        objects[key] = _Object(body, self.world.now)
        return self._answer(200, ETag=objects[key].tag)

    def _get(self, found):
        headers = {"ETag": found.tag, "Last_Modified": formatdate(found.now, usegmt=True), "Accept_Ranges": "bytes"}
        data, asked = found.data, self.headers.get("Range")
        if asked is None:
            if self.command == "HEAD":
                headers["length"] = str(len(data))
            return self._answer(200, data, **headers)
        first, _, last = asked.removeprefix("bytes=").partition("-")
        first, last = int(first), min(int(last or len(data) - 1), len(data) - 1)
        if first >= len(data):
            return self._error(416, "InvalidRange")
        return self._answer(
            206, data[first : last + 1], Content_Range=f"bytes {first}-{last}/{len(data)}", **headers)

    def _list(self, objects, query):
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        after = query.get("continuation-token", query.get("start-after", [""]))[0]
        found = {}
        for key in sorted(objects):
            if key.startswith(prefix):
                rest, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
                found[prefix + rest + cut if cut else key] = bool(cut)
        names = [name for name in sorted(found) if name > after]
        page = names[:_PAGE]
        parts = [f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in page if found[one]]
        parts += [
            f"<Contents><Key>{escape(one)}</Key><LastModified>{_iso(objects[one].now)}</LastModified>"
            f"<ETag>{escape(objects[one].tag)}</ETag><Size>{len(objects[one].data)}</Size></Contents>"
            for one in page if not found[one]]
        more = len(names) > len(page)
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        self._answer(200, (
            f"<?xml version='1.0'?><ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}"
            f"<KeyCount>{len(page)}</KeyCount>{''.join(parts)}</ListBucketResult>").encode(),
            Content_Type="application/xml")
