"""Places that a job on Spark cannot use are named before Spark starts."""

import pytest
from typer.testing import CliRunner

from tailrace.cli.app import app

pytest.importorskip("pyspark")


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Run a job in a directory with a store, an empty directory and a file; return its exit code and its error."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    monkeypatch.setattr("tailrace.spark.session.local_session", lambda *_, **__: pytest.fail("Spark starts"))

    def run(*arguments):
        done = CliRunner().invoke(app, ["pipeline", *arguments])
        return done.exit_code, done.stderr

    return run


@pytest.mark.parametrize(("arguments", "code", "complaint"), [
    (("archive", "store", "file"), 1, "file: Not a directory"),
    (("archive", "store", "file/below/it"), 1, "file: Not a directory"),
    (("archive", "store", "store", "file"), 2, "the name 'store' is not the name of one store"),
    (("archive", "store", "other", "file"), 1, "file: Not a directory"),
    (("restore", "empty", "file"), 1, "file: Not a directory"),
    (("restore", "empty", "new"), 1, "empty is not an archive"),
    *(((name, "store", "--out", place), code, complaint) for name in ("audit", "traffic", "lag", "timers", "retention")
      for place, code, complaint in (
          ("empty", 2, "empty exists already"), ("file", 2, "file exists already"), ("file/x", 1, "file: Not a"))),
    *(((name, "store", *more, "--archive", place), 1, f"{place} is not an archive: it has no _manifests")
      for name, more in (("traffic", ()), ("retention", ()), ("replay", ("--topic", "t", "--to-store", "new")))
      for place in ("empty", "file", "gone")),
])
def test_a_place_that_cannot_be_used_is_one_line_before_spark_starts(job, tmp_path, arguments, code, complaint):
    found, error = job(*arguments)
    assert (found, error.count("\n")) == (code, 1)
    assert complaint in error
    assert not (tmp_path / "new").exists()
