"""A small Hive metastore for tests, over the Thrift protocol of the real one: databases, tables and locks in memory.

It has what PyIceberg's catalogue asks for, with the generated code of Hive's own interface. ``locked`` is how many of
the next locks another client holds. Source: hive_metastore.thrift of Apache Hive.
"""

import contextlib
import socket
import threading
from copy import deepcopy

from hive_metastore import ThriftHiveMetastore as hive
from hive_metastore import ttypes as types
from thrift.protocol.TBinaryProtocol import TBinaryProtocolFactory
from thrift.server.TServer import TThreadedServer
from thrift.transport.TSocket import TServerSocket
from thrift.transport.TTransport import TBufferedTransportFactory


class HiveMetastore(hive.Iface):
    def __init__(self, warehouse):
        self.warehouse, self.databases, self.tables = warehouse, {}, {}
        self.locked, self.asked = 0, []
        self._held = None
        self._numbers = iter(range(1, 1 << 30))
        self._socket = TServerSocket("127.0.0.1", 0)
        self._socket.listen()
        self.url = f"thrift://127.0.0.1:{self._socket.handle.getsockname()[1]}"
        server = TThreadedServer(
            hive.Processor(self), self._socket, TBufferedTransportFactory(), TBinaryProtocolFactory(), daemon=True)
        self._thread = threading.Thread(target=self._serve, args=(server,), daemon=True)
        self._thread.start()

    def _serve(self, server):
        with contextlib.suppress(OSError):  # the socket is closed
            while True:
                threading.Thread(target=server.handle, args=(self._socket.accept(),), daemon=True).start()

    def close(self):
        self._socket.handle.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def get_database(self, name):
        self.asked.append("get_database")
        if name not in self.databases:
            raise types.NoSuchObjectException(name)
        return deepcopy(self.databases[name])

    def create_database(self, database):
        database.locationUri = database.locationUri or f"{self.warehouse}/{database.name}.db"
        self.databases[database.name] = database

    def get_all_tables(self, db_name):
        return [table for name, table in self.tables if name == db_name]

    def get_table_objects_by_name(self, dbname, tbl_names):
        return [deepcopy(self.tables[dbname, one]) for one in tbl_names]

    def create_table(self, tbl):
        if (tbl.dbName, tbl.tableName) in self.tables:
            raise types.AlreadyExistsException(tbl.tableName)
        self.tables[tbl.dbName, tbl.tableName] = tbl

    def get_table(self, dbname, tbl_name):
        if (dbname, tbl_name) not in self.tables:
            raise types.NoSuchObjectException(tbl_name)
        return deepcopy(self.tables[dbname, tbl_name])

    def alter_table_with_environment_context(self, dbname, tbl_name, new_tbl, environment_context):
        assert self._held is not None, "a table is changed by who holds its lock"
        self.tables[dbname, tbl_name] = new_tbl

    def lock(self, rqst):
        self.asked.append("lock")
        if self.locked:
            self.locked -= 1
            return types.LockResponse(next(self._numbers), types.LockState.NOT_ACQUIRED)
        assert self._held is None
        self._held = next(self._numbers)
        return types.LockResponse(self._held, types.LockState.ACQUIRED)

    def unlock(self, rqst):
        if rqst.lockid == self._held:
            self._held = None
