"""What reaches the Python of an executor, which may lack this package or have another release of it.

Spark pickles classes and functions of a package by name. An executor without the package ends with a traceback of
Spark's own code, and Spark tries three times more. So what this module sends is pickled bytes, with a function that
unpickles them. That function is nested in another one, hence cloudpickle sends its code, and it uses nothing but the
standard library before it knows that the package is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark import cloudpickle
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

import tailrace

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Portable", "portable_source", "task_function"]

_ADVICE: Final = (
    ": install the driver's release of tailrace there, name a Python that has it in PYSPARK_PYTHON or "
    "spark.pyspark.python, or send an environment that has it with spark.archives")
Load = Callable[[bytes], Any]


def _loader(release: str = tailrace.__version__, advice: str = _ADVICE) -> Load:
    """Return a function that unpickles bytes where this package is installed, and otherwise raises one clear error.

    The error is an ImportError whose name is that of ``tailrace.errors.TailraceNotInstalledError``.
    """

    def load(pickled: bytes) -> Any:
        import os  # noqa: PLC0415 - this function runs where its module is not
        import pickle  # noqa: PLC0415
        import platform  # noqa: PLC0415
        import sys  # noqa: PLC0415

        try:
            import tailrace as there  # noqa: PLC0415

            if there.__version__ == release:
                return pickle.loads(pickled)
            wrong = f"has tailrace {there.__version__}, and the driver has {release}"
        except ModuleNotFoundError as error:
            wrong = f"has no module {error.name}"
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # the error says all, and the worker ends with it
        raise type("TailraceNotInstalledError", (ImportError,), {"__module__": "tailrace.errors"})(
            f"the Python {sys.executable} of the executor on {platform.node()} {wrong}{advice}")

    return load


def task_function(
    work: Callable[[Any], Any], tasks: Sequence[Any], *, rows: bool = False
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for ``mapInArrow`` over numbers of ``tasks``.

    For each number it yields a batch with the columns number, result and missing: ``work`` of the task, pickled, or why
    the package is missing. With ``rows`` the function ``work`` yields the batches itself.
    """
    load = _loader()
    packed_work, packed = cloudpickle.dumps(work), [cloudpickle.dumps(task) for task in tasks]

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pickle  # noqa: PLC0415

        import pyarrow as pa  # noqa: PLC0415

        for batch in batches:
            for number in batch.column(0).to_pylist():
                if rows:
                    yield from load(packed_work)(load(packed[number]))
                    continue
                try:
                    result, missing = pickle.dumps(load(packed_work)(load(packed[number])), 5), ""
                except ImportError as error:
                    if type(error).__name__ != "TailraceNotInstalledError":
                        raise
                    result, missing = b"", str(error)
                yield pa.RecordBatch.from_pydict(
                    {"number": [number], "result": [result], "missing": [missing]},
                    schema=pa.schema([("number", pa.int64()), ("result", pa.binary()), ("missing", pa.string())]))

    return run


class Portable:
    """A base for readers and writers: where the package is missing, unpickling one raises the error of ``_loader``."""

    def __reduce__(self) -> tuple[Any, ...]:
        load = _loader()

        def opened(pickled: bytes) -> Any:
            kind, state = load(pickled)
            made = kind.__new__(kind)
            made.__dict__.update(state)
            return made

        return opened, (cloudpickle.dumps((type(self), self.__dict__)),)


def portable_source(source: type[DataSource]) -> type[DataSource]:
    """Return a data source that is pickled with its code, and makes a ``source`` where the package is installed."""
    load, pickled, own_name = _loader(), cloudpickle.dumps(source), source.name()

    class PortableDataSource(DataSource):
        """Makes the data source when it is used."""

        @classmethod
        def name(cls) -> str:
            return own_name

        def _opened(self) -> Any:
            return load(pickled)(self.options)

        def schema(self) -> StructType | str:
            found: StructType | str = self._opened().schema()
            return found

        def reader(self, schema: StructType) -> DataSourceReader:
            found: DataSourceReader = self._opened().reader(schema)
            return found

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            found: DataSourceWriter = self._opened().writer(schema, overwrite)
            return found

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
            found: DataSourceStreamReader = self._opened().streamReader(schema)
            return found

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
            found: DataSourceStreamWriter = self._opened().streamWriter(schema, overwrite)
            return found

    return PortableDataSource
