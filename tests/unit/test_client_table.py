"""The table that compares our client with Java's names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from releases import REFERENCE

ROOT = Path(__file__).resolve().parents[2]
TABLE = (ROOT / "docs" / "contributing" / "design" / "client.md").read_text()
SETTINGS = """
asyncSenderExecutor autoBatch backPressureForAsyncSendNum backPressureForAsyncSendSize callbackExecutor compressLevel
compressMsgBodyOverHowmuch compressType createTopicKey defaultTopicQueueNums enableBackpressureForAsyncMode latencyMax
maxMessageSize notAvailableDuration producerGroup retryAnotherBrokerWhenNotStoreOK retryTimesWhenSendAsyncFailed
retryTimesWhenSendFailed sendLatencyFaultEnable sendMessageWithVIPChannel sendMsgMaxTimeoutPerRequest sendMsgTimeout
startDetectorEnable topics checkRequestHoldMax checkThreadPoolMaxSize checkThreadPoolMinSize executorService
transactionCheckListener transactionListener adjustThreadPoolNumsThreshold allocateMessageQueueStrategy
awaitTerminationMillisWhenShutdown clientRebalance consumeConcurrentlyMaxSpan consumeFromWhere
consumeMessageBatchMaxSize consumeThreadMax consumeThreadMin consumeTimeout consumeTimestamp consumerGroup
maxReconsumeTimes messageListener messageModel messageQueueListener offsetStore popBatchNums popInvisibleTime
popThresholdForQueue postSubscriptionWhenPull pullBatchSize pullBatchSizeInBytes pullInterval pullThresholdForQueue
pullThresholdForTopic pullThresholdSizeForQueue pullThresholdSizeForTopic subscription suspendCurrentQueueTimeMillis
unitMode useTLS autoCommit autoCommitIntervalMillis connectBrokerByUser consumeMaxSpan consumerPullTimeoutMillis
consumerTimeoutMillisWhenSuspend customizedTraceTopic defaultBrokerId enableMsgTrace pollTimeoutMillis pullThreadNums
pullThresholdForAll subExpressionForAssign topicMetadataCheckIntervalMillis accessChannel clientIP
clientCallbackExecutorThreads concurrentHeartbeatThreadPoolSize decodeDecompressBody decodeReadBody detectInterval
detectTimeout enableConcurrentHeartbeat enableHeartbeatChannelEventListener enableStreamRequestType enableTrace
heartbeatBrokerInterval instanceName language maxPageSizeInGetMetadata mqClientApiTimeout namespace namesrvAddr
persistConsumerOffsetInterval pollNameServerInterval pullTimeDelayMillsWhenException sendLatencyEnable
socksProxyConfig traceMsgBatchNum traceTopic unitName useHeartbeatV2 vipChannelEnabled
"""
"""Setters of DefaultMQProducer, TransactionMQProducer, DefaultMQPushConsumer, DefaultLitePullConsumer, ClientConfig."""


def test_each_feature_names_a_test_that_exists_or_is_said_to_be_absent():
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in TABLE.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in row] for row in rows if row[0].strip() != "Java client"]
    assert len(rows) > 50
    known = {}
    for feature, ours, test in rows:
        if ours.startswith("-"):
            assert not test, feature
            continue
        path, name = re.fullmatch(r"`([\w/.-]+)::(\w+)`", test).groups()
        if path not in known:
            tree = ast.parse((ROOT / path).read_text())
            known[path] = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name in known[path], feature


def test_all_settings_of_the_java_clients_are_in_the_table():
    named = {name for line in TABLE.splitlines() if line.startswith("| ") for cell in [line.split("|")[1]]
             for quoted in re.findall(r"`([^`]+)`", cell) for name in re.findall(r"\w+", quoted)}
    assert sorted(set(SETTINGS.split()) - named) == []


def test_the_page_of_clients_names_the_release_of_the_reference():
    page = (ROOT / "docs" / "reference" / "clients.md").read_text()
    rows = [line.split("|") for line in page.splitlines()
            if line.startswith("| Java ") and "`rocketmq-client-java`" not in line]  # it has releases of its own
    assert len(rows) > 10
    assert {row[1].strip(): row[2].strip() for row in rows if row[2].strip().split()[-1] != REFERENCE} == {}


def test_files_that_the_page_of_clients_names_are_there():
    page = (ROOT / "docs" / "reference" / "clients.md").read_text()
    named = re.findall(r"`((?:tests|tools)/[\w/.]+)`", page)
    assert len(named) > 20
    assert [path for path in named if not (ROOT / path).exists()] == []
