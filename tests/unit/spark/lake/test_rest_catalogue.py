"""A catalogue of Iceberg's REST protocol: conflicts, refusals and outages are one error each, no row comes twice."""

import http.server
import json
import os
import socket
import threading
from typing import ClassVar

import pytest

from tailrace.errors import ConfigError, StoreError

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
pytest.importorskip("pyiceberg")
from iceberg_rest_server import iceberg_rest_server
from lake_tables import add, archive, assert_whole, fill, lake, rows_of
from pyiceberg.catalog.rest import RestCatalog
from rest_catalogue import SILENT, RestCatalogue

from tailrace.spark.lake import client_times
from tailrace.store.archive_store import PosixArchive
from tailrace.store.archive_tables import attached

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")]


@pytest.fixture
def rest(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("PYICEBERG_")]:
        monkeypatch.delenv(name)
    made = RestCatalogue(tmp_path, f"file://{tmp_path}/warehouse")
    monkeypatch.setenv("PYICEBERG_CATALOG__REST__URI", made.url)
    monkeypatch.setenv("PYICEBERG_CATALOG__REST__TYPE", "rest")
    yield made
    made.close()


@pytest.fixture
def places(tmp_path):
    fill(tmp_path / "s")
    archive(tmp_path / "s", tmp_path / "a")
    return tmp_path / "s", tmp_path / "a"


def test_segments_are_added_by_the_rest_protocol(rest, places):
    assert add(*places, catalogue="rest").commits == 2
    assert_whole(*places, catalogue="rest")
    assert add(*places, catalogue="rest").commits == 0
    assert ("POST", "namespaces/tailrace/tables/messages") in rest.asked
    counts = attached(PosixArchive(str(places[1])))[0].counts
    assert (counts.commits, counts.retries, counts.conflicts) == (2, 0, 0)


def test_a_commit_that_conflicts_is_made_again_and_counted(rest, places):
    rest.answers = [409, 409]
    done = add(*places, catalogue="rest")
    assert (done.commits, done.retries) == (2, 2)
    assert_whole(*places, catalogue="rest")
    counts = attached(PosixArchive(str(places[1])))[0].counts
    assert (counts.commits, counts.retries, counts.conflicts) == (2, 2, 0)


def test_a_commit_that_always_conflicts_is_one_error(rest, places):
    rest.answers = [409] * 10
    with pytest.raises(StoreError, match=r"the commit to the table .*raw_broker_a: CommitFailedException: ") as caught:
        add(*places, catalogue="rest")
    assert "\n" not in str(caught.value)
    counts = attached(PosixArchive(str(places[1])))[0].counts
    assert (counts.commits, counts.retries, counts.conflicts) == (0, 9, 1)
    add(*places, catalogue="rest")
    assert_whole(*places, catalogue="rest")


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("status", [409, 500, 503, 504])
def test_a_commit_whose_answer_is_an_error_is_made_once(rest, places, status, after):
    """It is not known whether a commit was made that has such an answer."""
    rest.answers, rest.after = [status], after
    try:
        add(*places, catalogue="rest")
    except StoreError as error:
        assert status != 409, error
        assert "the commit to the table tailrace.raw_broker_a" in str(error)
        add(*places, catalogue="rest")
    assert_whole(*places, catalogue="rest")


def test_a_catalogue_that_is_down_is_named(rest, places, monkeypatch):
    monkeypatch.setenv("PYICEBERG_CATALOG__REST__URI", "http://127.0.0.1:1")
    with pytest.raises(StoreError, match=r"the catalogue rest: ConnectionError: .*127.0.0.1") as caught:
        lake(places[1], catalogue="rest")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("token", [False, True])
def test_a_catalogue_that_is_silent_is_named_within_the_time(rest, places, monkeypatch, token):
    monkeypatch.setattr(client_times, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setenv("PYICEBERG_CATALOG__REST__URI", f"http://127.0.0.1:{port}")
        if token:  # it is asked for before the first request
            monkeypatch.setenv("PYICEBERG_CATALOG__REST__CREDENTIAL", "id:secret")
            monkeypatch.setenv("PYICEBERG_CATALOG__REST__OAUTH2_SERVER_URI", f"http://127.0.0.1:{port}/token")
        with pytest.raises(StoreError, match=rf"the catalogue rest: ReadTimeout: .*127.0.0.1.*{port}") as caught:
            lake(places[1], catalogue="rest")
    assert "\n" not in str(caught.value)


class Tokens(http.server.BaseHTTPRequestHandler):
    """Answers a request for a token as the test says."""

    answer: ClassVar = {}
    asked: ClassVar = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.asked.append((self.headers["Authorization"], body))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(self.answer).encode())

    def log_message(self, *_):
        pass


def test_tokens_of_a_server_of_their_own_are_asked_for_in_a_bounded_time(rest, places, monkeypatch, tmp_path):
    monkeypatch.setattr(client_times, "ANSWER_S", 0.2)
    rest.token = "right"
    monkeypatch.setattr(Tokens, "asked", [])

    def configured(port):
        """Only a file has nested options."""
        (tmp_path / ".pyiceberg.yaml").write_text(f"""
catalog:
  rest:
    type: rest
    uri: {rest.url}
    auth:
      type: oauth2
      oauth2:
        client_id: id
        client_secret: secret
        scope: lake
        token_url: http://127.0.0.1:{port}/token
""")
        return lake(places[1], catalogue="rest")

    for name in ("URI", "TYPE"):
        monkeypatch.delenv(f"PYICEBERG_CATALOG__REST__{name}")
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(StoreError, match=rf"the catalogue rest: ReadTimeout: .*127.0.0.1.*{port}") as caught:
            configured(port)
    assert "secret" not in str(caught.value)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Tokens)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        for answer, missing in (({"expires_in": 3600}, "access_token"), ({"access_token": "right"}, "expires_in")):
            Tokens.answer = answer
            with pytest.raises(StoreError, match=rf"the catalogue rest: ValueError: .*/token has no {missing}"):
                configured(server.server_port)
        Tokens.answer = {"access_token": "right", "expires_in": 3600}
        configured(server.server_port).close()
        assert Tokens.asked[-1] == ("Basic aWQ6c2VjcmV0", "grant_type=client_credentials&scope=lake")
        assert len(Tokens.asked) == 4, "PyIceberg makes two sessions, and each uses its token until that ends"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("after", [False, True])
def test_a_commit_that_is_not_answered_is_one_error_and_made_once(rest, places, monkeypatch, after):
    monkeypatch.setattr(client_times, "ANSWER_S", 1)
    rest.answers, rest.after = [SILENT], after
    with pytest.raises(StoreError, match=r"the commit to the table tailrace.raw_broker_a: ReadTimeout: .*127.0.0.1"):
        add(*places, catalogue="rest")
    monkeypatch.setattr(client_times, "ANSWER_S", 60)
    add(*places, catalogue="rest")
    assert_whole(*places, catalogue="rest")


def test_a_token_that_is_refused_is_named(rest, places, monkeypatch):
    rest.token = "right"
    for token in ("", "wrong"):
        monkeypatch.setenv("PYICEBERG_CATALOG__REST__TOKEN", token)
        with pytest.raises(StoreError, match=r"the catalogue rest: UnauthorizedError: .*the token of the test"):
            lake(places[1], catalogue="rest")
    monkeypatch.setenv("PYICEBERG_CATALOG__REST__TOKEN", "right")
    add(*places, catalogue="rest")
    rest.token = "changed"
    with pytest.raises(StoreError, match=r"UnauthorizedError"):
        rows_of(places[1], catalogue="rest")


def test_what_the_server_hands_out_and_has_no_effect_is_refused_by_name(rest, places):
    rest.overrides = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
    with pytest.raises(ConfigError, match=r"the catalogue of tailrace.raw_broker_a sets py-io-impl"):
        add(*places, catalogue="rest")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_apaches_own_server_takes_our_commits_and_refuses_one_that_conflicts(monkeypatch, tmp_path, places):
    with iceberg_rest_server(tmp_path) as url:
        monkeypatch.setenv("PYICEBERG_CATALOG__REST__URI", url)
        monkeypatch.setenv("PYICEBERG_CATALOG__REST__TYPE", "rest")
        assert add(*places, catalogue="rest").commits == 2
        assert_whole(*places, catalogue="rest")
        fill(places[0], 160, 320)
        archive(*places)
        original, seen = RestCatalog.commit_table, []

        def late(self, table, requirements, updates):
            if not seen:
                seen.append(1)
                with lake(places[1], catalogue="rest") as other:
                    other.raw.table.transaction().set_properties({"of-another": "program"}).commit_transaction()
                    other.raw.table.refresh().append(other.raw.table.scan().to_arrow().slice(0, 0))
            return original(self, table, requirements, updates)

        monkeypatch.setattr(RestCatalog, "commit_table", late)
        done = add(*places, catalogue="rest")
        assert (done.commits, done.retries) == (2, 1)
        assert_whole(*places, catalogue="rest")
        with lake(places[1], catalogue="rest") as tables:
            assert tables.raw.table.properties["of-another"] == "program"
