"""Apache Iceberg's own server of the REST protocol, from the test classes of iceberg-core; needs Maven and a JDK."""

import contextlib
import pathlib
import shutil
import subprocess

import pytest

HERE = pathlib.Path(__file__).with_name("iceberg_rest")


@contextlib.contextmanager
def iceberg_rest_server(directory):
    """Yield the URL of a catalogue whose SQLite file and tables are in a directory."""
    if not shutil.which("mvn") or not shutil.which("javac"):
        pytest.skip("Maven and a JDK are not installed")
    listed = pathlib.Path(directory, "classpath")
    subprocess.run(
        ["mvn", "-q", "-B", "-f", HERE / "pom.xml", "dependency:build-classpath", f"-Dmdep.outputFile={listed}"],
        check=True, timeout=600)
    warehouse = pathlib.Path(directory, "warehouse")
    warehouse.mkdir()
    with subprocess.Popen(
            ["java", "-Xmx256m", "-cp", listed.read_text(), HERE / "RestServer.java", f"{directory}/java.db",
             warehouse],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith("port "), line
            yield f"http://127.0.0.1:{line.split()[1]}"
        finally:
            process.stdin.close()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
