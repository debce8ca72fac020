"""Requests about engines of RocketMQ: Tailrace has the file store only, and no controller.

| request | answer |
|---|---|
| 354 CHECK_ROCKSDB_CQ_WRITE_PROGRESS | nothing to compare, because all queues are files |
| 355 EXPORT_ROCKSDB_CONFIG_TO_JSON | success, because topics, groups and offsets are JSON files already |
| 1007 GET_BROKER_EPOCH_CACHE | refused, because there is no controller |
| 2001, 2002, 2003: cold data flow control | thresholds of groups, see `tailrace.broker.core.cold_data` |
| 2004 SET_COMMITLOG_READ_MODE | success for normal read-ahead, which the log has; random is refused |
| 5001 SWITCH_TIMER_ENGINE | success for the timer wheel if it takes timers; RocksDB is refused |
| 200056 POP_ROLLBACK | success, because the records of POP are in the CommitLog, not in RocksDB |
"""

from __future__ import annotations

from typing import Any, Final, final

from tailrace.broker.core.cold_data import ColdDataFlowControl
from tailrace.broker.core.settings import properties_in
from tailrace.config import BrokerConfig
from tailrace.errors import RefusalError
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.broker_headers import (
    CheckRocksdbCqWriteProgressRequestHeader,
    ExportRocksDBConfigToJsonRequestHeader,
    SetCommitLogReadModeRequestHeader,
    SwitchTimerEngineRequestHeader,
)
from tailrace.node.message_store import MessageStore
from tailrace.remoting import Channel
from tailrace.requests.processor import RequestProcessor, answers, serves

__all__ = ["EnginesProcessor"]

CHECK_OK: Final = 0
READ_NORMAL, READ_RANDOM = 0, 1
"""Read modes, with the numbers of madvise(2)."""
FILE_TIME_WHEEL, ROCKSDB_TIMELINE = "F", "R"
EXPORTED: Final = ("topics", "subscriptionGroups", "consumerOffsets")


@final
class EnginesProcessor(RequestProcessor):
    """Serves requests that the file store can serve, and refuses the others with a reason."""

    def __init__(self, store: MessageStore, config: BrokerConfig, cold_data: ColdDataFlowControl) -> None:
        self._store, self._config, self._cold = store, config, cold_data

    @answers(RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS)
    def check_queues(self, header: CheckRocksdbCqWriteProgressRequestHeader) -> dict[str, Any]:
        """Answer that there are no queues in RocksDB to compare with files: request 354.

        RocketMQ answers that the check is running, and logs its result.
        """
        return {"checkResult": "It is not CombineConsumeQueueStore, no need check", "checkStatus": CHECK_OK}

    @answers(RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON)
    def export_config(self, header: ExportRocksDBConfigToJsonRequestHeader) -> str:
        """Answer success if the named configurations exist, which are JSON files already: request 355."""
        named = header.config_type.split(";")
        known = {name.lower() for name in EXPORTED}
        for name in filter(None, named):
            if name.strip().lower() not in known:
                raise RefusalError(
                    ResponseCode.SYSTEM_ERROR,
                    f"Unknown config type: {name[:40]}; known are {', '.join(EXPORTED)}")
        return "export done."

    @answers(RequestCode.GET_BROKER_EPOCH_CACHE)
    def epochs(self) -> None:
        """Refuse a request for the epochs of masters, because there is no controller: request 1007."""
        raise RefusalError(ResponseCode.SYSTEM_ERROR, "this request only for controllerMode ")

    @serves(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG)
    def set_cold_threshold(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Set what groups may read from the disk in a period, in bytes: request 2001."""
        self._cold.set_thresholds(properties_in(request.body))
        if self._config.cold_data_flow_control_enable:
            return request.answer()
        return request.answer(remark="coldDataFlowControlEnable is false: nothing is limited until it is true")

    @serves(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG)
    def remove_cold_threshold(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Remove the threshold of a group: request 2002; success even if the group has no threshold."""
        self._cold.thresholds.pop(request.body.decode(errors="replace"), None)
        return request.answer()

    @answers(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
    def cold_data(self) -> dict[str, Any]:
        """Return the thresholds of cold reads and the bytes read: request 2003."""
        return self._cold.to_json()

    @answers(RequestCode.SET_COMMITLOG_READ_MODE)
    def set_read_mode(self, header: SetCommitLogReadModeRequestHeader) -> str:
        """Set the read-ahead of the CommitLog, of which only the normal one exists: request 2004."""
        mode = header.mode
        if mode == READ_NORMAL:
            return f"set commitlog readahead mode success, mode: {mode}"
        raise RefusalError(
            ResponseCode.INVALID_PARAMETER,
            "set commitlog readahead mode param value error: READ_AHEAD_MODE="
            + ("1 (random) is not supported" if mode == READ_RANDOM else f"{mode} is neither 0 nor 1"))

    @answers(RequestCode.SWITCH_TIMER_ENGINE)
    def switch_timer_engine(self, header: SwitchTimerEngineRequestHeader) -> str:
        """Choose the timer engine, of which only the timer wheel exists: request 5001."""
        engine, config = header.engine, self._store.config
        if not config.timer_wheel_enable:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, "broker timerWheelEnable is false")
        if engine == ROCKSDB_TIMELINE:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER,
                "timerRocksDBEnable must be configured true when broker start, and it is not supported")
        if engine != FILE_TIME_WHEEL:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER,
                f"param error: E_T={(engine or '')[:40]!r} is neither {FILE_TIME_WHEEL} nor {ROCKSDB_TIMELINE}")
        if config.timer_stop_enqueue:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR,
                "switch timer engine error: timerStopEnqueue is true, set it to false with updateBrokerConfig")
        return "switch timer engine success"

    @answers(RequestCode.POP_ROLLBACK)
    def export_pop_records(self) -> None:
        """Answer success: there are no POP records in RocksDB to move to files: request 200056."""
