"""A small server of Iceberg's REST protocol for tests, ours, over PyIceberg's SQLite catalogue.

It has what the jobs on tables ask for: configuration, namespaces, tables, commits. ``token`` is the bearer token that
a request needs, "" for none; ``answers`` are statuses that the next commits get instead of their own answers, and
``after`` says that such a commit is made all the same; to a commit with the answer ``SILENT`` nothing is answered.
``overrides`` is part of the configuration, ``config`` of each table's.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from pyiceberg import exceptions
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableRequest

from tailrace.spark.lake.table_io import TABLE_IO

_STATUS = {
    exceptions.NoSuchNamespaceError: 404, exceptions.NoSuchTableError: 404,
    exceptions.NamespaceAlreadyExistsError: 409, exceptions.TableAlreadyExistsError: 409,
    exceptions.CommitFailedException: 409}


SILENT = -1


class RestCatalogue:
    def __init__(self, directory, warehouse, **options):
        self.catalogue = SqlCatalog("served", **{
            "uri": f"sqlite:///{directory}/served.db", "warehouse": warehouse, "py-io-impl": TABLE_IO, **options})
        self.token, self.answers, self.after, self.asked = "", [], False, []
        self.overrides, self.config = {}, {}
        self.lock, self.closed = threading.Lock(), threading.Event()
        owner = self

        class Handler(_Handler):
            world = owner

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self):
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self.catalogue.close()


class _Handler(BaseHTTPRequestHandler):
    wbufsize = -1
    world: RestCatalogue
    is_silent = False

    def log_message(self, *_):
        pass

    def _answer(self, status, text="{}"):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _error(self, status, kind, text):
        self._answer(status, json.dumps({"error": {"message": text, "type": kind, "code": status}}))

    def _serve(self):
        world = self.world
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = [unquote(one) for one in urlsplit(self.path).path.strip("/").split("/")[1:]]
        with world.lock:
            world.asked.append((self.command, "/".join(parts)))
            if world.token and self.headers.get("Authorization") != f"Bearer {world.token}":
                self._error(401, "NotAuthorizedException", "the token of the test is another one")
                return
            try:
                self._route(parts, body)
            except tuple(_STATUS) as error:
                self._error(_STATUS[type(error)], type(error).__name__, str(error))
        if self.is_silent:
            world.closed.wait(60)

    do_GET = do_HEAD = do_POST = _serve

    def _route(self, parts, body):
        world, catalogue = self.world, self.world.catalogue
        match self.command, *parts:
            case _, "config":
                self._answer(200, json.dumps({"defaults": {}, "overrides": world.overrides}))
            case "POST", "namespaces":
                name = json.loads(body)["namespace"]
                catalogue.create_namespace(tuple(name))
                self._answer(200, json.dumps({"namespace": name, "properties": {}}))
            case _, "namespaces", name:
                self._answer(200, json.dumps({"namespace": [name], "properties": dict(
                    catalogue.load_namespace_properties(name))}))
            case "GET", "namespaces", name, "tables":
                self._answer(200, json.dumps({"identifiers": [
                    {"namespace": list(one[:-1]), "name": one[-1]} for one in catalogue.list_tables(name)]}))
            case "POST", "namespaces", name, "tables":
                asked = CreateTableRequest.model_validate({"location": None, **json.loads(body)})
                self._table(catalogue.create_table(
                    (name, asked.name), asked.table_schema, partition_spec=asked.partition_spec,
                    properties=asked.properties))
            case "POST", "namespaces", name, "tables", table:
                self._commit(catalogue.load_table((name, table)), CommitTableRequest.model_validate_json(body))
            case _, "namespaces", name, "tables", table:
                self._table(catalogue.load_table((name, table)))
            case _:
                self._error(404, "NoSuchPath", "/".join(parts))

    def _table(self, table):
        self._answer(200, (
            f'{{"metadata-location": {json.dumps(table.metadata_location)}, "config": {json.dumps(self.world.config)}, '
            f'"metadata": {table.metadata.model_dump_json()}}}'))

    def _commit(self, table, asked):
        status = self.world.answers.pop(0) if self.world.answers else 0
        if not status or self.world.after:
            table.catalog.commit_table(table, asked.requirements, asked.updates)
        if status == SILENT:
            self.is_silent = True
        elif status:
            self._error(status, "OfTheTest", f"the answer {status} of the test")
        else:
            self._table(table.refresh())
