"""Every line that Tailrace logs, declared once: level, phrase, keys, and what it tells an operator.

A logging call writes the phrase and then ``key=value`` for each key, in this order; where RocketMQ
has a phrase for it, that one. `tests/unit/test_events.py` holds every call in the package against
this table and the table against the calls, and docs/reference/events.md is generated from both.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

__all__ = ["EVENTS", "Event", "split_line"]

_KEY: Final = re.compile(r"(?:^| )([a-z_]+)=")


class Event(NamedTuple):
    """One kind of line."""

    level: str
    """Name of the logging method: debug, info, warning, error, exception, critical."""
    phrase: str
    """Its fixed beginning."""
    keys: tuple[str, ...]
    """Names of the values behind it."""
    meaning: str
    """What happened and what becomes of it, in a sentence or two."""


def split_line(text: str) -> tuple[str, tuple[str, ...]]:
    """Phrase and keys of the format of a logging call."""
    first = _KEY.search(text)
    return (text, ()) if first is None else (text[: first.start()], tuple(_KEY.findall(text)))


def _event(level: str, phrase: str, keys: str, meaning: str) -> Event:
    return Event(level, phrase, tuple(keys.split()), meaning)


_BROKER: Final = (
    _event("info", "ports taken", "broker namesrv advertised",
           "The broker listens, before its store is open; requests are told so until then."),
    _event("warning", "VIP port left out", "address reason",
           "The port two below the broker's could not be taken; only clients that ask for the VIP "
           "channel miss it."),
    _event("info", "broker started", "broker namesrv advertised",
           "Clients are served from now on, at these addresses; routes name the advertised one."),
    _event("warning", "anybody who reaches this address may read, write and delete", "address",
           "The option `--allow-remote` is given and there is no access control. Allow this address only for machines "
           "that you trust, for example by a firewall."),
    _event("info", "stop", "signal", "SIGTERM, SIGINT or SIGHUP came; the server closes its store and ends."),
    _event("warning", "cannot print", "stream cause",
           "Nobody reads stdout or stderr any more, for example because its terminal was closed. The server "
           "goes on and prints nothing more there."),
    _event("error", "connections cannot be accepted", "cause count",
           "The process or the machine has no descriptor or memory left for a connection. `count` failed "
           "since the last such line, of which there is at most one a minute; accepting goes on."),
    _event("info", "broker stopped", "broker",
           "Pending answers are sent, consumer offsets are written and connections are closed; the "
           "store is closed after this."),
    _event("error", "consumer offsets could not be written", "cause",
           "The next write takes them along. If the broker ends before, what groups consumed since the last "
           "write is delivered to them again. Check the disk."),
    _event("warning", "consumer offset corrected", "group topic queue offset to",
           "A group had come further than its queue goes, as after a power loss took messages that "
           "were not synced; its offset is set back to the end."),
    _event("warning", "event loop was held", "ms",
           "For this long no client was served, because one request or the machine held the thread "
           "that serves all; see the metric tailrace_event_loop_lag_seconds."),
    _event("warning", "statistics are full, new ones are not counted", "name key limit",
           "So many keys of request 315 are counted already; idle ones are dropped after a day."),
    _event("info", "settings changed", "values",
           "A request changed live settings (`mqadmin updateBrokerConfig`, `updateNamesrvConfig`); with `--config` the "
           "file has them, too."),
    _event("warning", "consumer did not return its offsets", "group client reason",
           "An admin tool asked for the offsets of a group's members (request 223); the answer leaves this one out."),
    _event("info", "consumer registered", "group client peer",
           "A consumer sent its first heartbeat over this connection, or one with another client id."),
    _event("info", "consumer unregistered", "group client peer",
           "A consumer said goodbye, lost its connection or sent no heartbeat for too long."),
    _event("info", "consumers unregistered", "peer groups",
           "A connection was closed whose client was in many consumer groups; it left them all."),
    _event("warning", "consumer expired", "group peer",
           "A consumer sent no heartbeat for too long; its connection is closed and its queues go "
           "to the others of the group."),
    _event("warning", "consumer group unknown", "group client",
           "A heartbeat names a group that is not there, and groups are not made by themselves "
           "(autoCreateSubscriptionGroup=false) or its name is not allowed; it is not registered."),
    _event("info", "pop offset is outside its queue", "group topic queue offset to",
           "Retention removed what a group had not popped, or its offset was beyond the end; the group goes on "
           "where the queue has messages."),
    _event("warning", "revive records are gone", "queue offset to",
           "Retention removed checkpoints of POP before they were read; their messages do not come back. "
           "Keep the CommitLog longer than the longest invisible time."),
    _event("warning", "revive record is not readable", "queue offset reason",
           "A record of the revive topic is neither a checkpoint nor an acknowledgement; it is skipped."),
    _event("warning", "popped messages do not come back, their topic or group is gone", "topic group count",
           "The topic or the group was deleted while its messages were popped."),
    _event("warning", "pop is stopped, too many messages are in flight", "group topic queue in_flight limit",
           "The group has popped more messages of the queue than popInflightMessageThreshold without an "
           "acknowledgement, and enablePopMessageThreshold is true; the queue is popped again after one."),
    _event("warning", "popped message does not come back, it is gone", "topic queue offset status",
           "Retention removed a message while it was popped and not acknowledged."),
    _event("warning", "popped message is tried later", "topic queue offset wait_ms reason",
           "A message that was not acknowledged could not be put into the retry topic of its group; it is tried "
           "again after this time."),
    _event("warning", "popped messages cannot come back now", "queue reason",
           "The store takes no writes; they come back when it does."),
    _event("warning", "orderly pop is not read", "file key queue reason",
           "An entry of consumerOrderInfo.json is not readable; the messages of that queue may come again."),
    _event("info", "subscription added", "group topic", "A group began to want a topic."),
    _event("info", "subscription removed", "group topic", "A group does not want a topic any more."),
    _event("info", "consumer filter registered", "group topic expression",
           "A group subscribed to a topic with an expression of SQL92 that it did not have before."),
    _event("info", "an older consumer filter is ignored", "group topic version ignored known",
           "A member subscribed earlier with another expression. All members get what the known one keeps."),
    _event("info", "consumer filter is not used any more", "group topic",
           "No member of the group wants the topic. The expression is kept for filterDataCleanTimeSpan."),
    _event("error", "consumer filter cannot be compiled", "group topic expression reason",
           "A group subscribed with an expression that is wrong. Its pulls are answered with code 27."),
    _event("error", "consumer filter refused", "group topic reason",
           "There are too many expressions, they are too long, or an entry of config/consumerFilter.json is wrong."),
    _event("error", "consumer filters could not be written", "cause",
           "The file config/consumerFilter.json keeps older expressions; it is written again later."),
    _event("warning", "expression cannot be compiled", "topic expression reason",
           "The expression of a pull or of a client's check is wrong. It is answered with code 23 and the reason."),
    _event("warning", "reply refused", "peer reason",
           "A reply of request-reply names no producer, or one that is not connected to this broker; its "
           "sender gets code 1, and the reply is not stored."),
    _event("warning", "reply not pushed", "client peer reason",
           "The producer that waits for a reply did not take it in 10 s, lost its connection or answered with "
           "an error. The sender of the reply gets code 1; with storeReplyMessageEnable the reply is stored."),
    _event("warning", "reply not stored", "topic status reason",
           "A reply of request-reply was pushed, or could not be, and the store took no copy of it. The "
           "answer tells only about the push."),
    _event("info", "half messages are pending", "count from operations",
           "Half messages were neither committed nor rolled back when the broker started; they are checked. "
           "`operations` were read to find that out, and the first pending one is at queue offset `from` or after it."),
    _event("warning", "half message not committed", "topic queue_offset reason",
           "The store did not take the message of a commit. The half message stays pending, and its producer "
           "is asked again."),
    _event("warning", "half message given up", "topic group unique_key checks kept_in",
           "No producer of the group settled the half message before transactionCheckMax checks or "
           "fileReservedTime. It is kept in a topic, and request 323 (`DefaultMQAdminExt.resumeCheckHalfMessage`) "
           "has it checked anew."),
    _event("error", "half message cannot be read", "queue_offset",
           "The record is damaged, was deleted because space was short, or is not a half message; nothing is "
           "delivered for it."),
    _event("error", "half message cannot be put again", "queue_offset reason",
           "The store did not take the copy that a check leaves. The half message stays pending, and the next "
           "pass tries again."),
    _event("error", "operations of half messages are not written", "count reason",
           "The store did not take the operation that says that these half messages are settled. It is tried "
           "again; if the broker ends before, they are checked again."),
    _event("error", "check of half messages failed", "reason",
           "A pass of the checks ended early; the next one begins where the progress is."),
    _event("error", "numbers of half messages could not be written", "cause",
           "The next write of config/transactionMetrics takes them along. Check the disk."),
    _event("error", "cannot wait for the disk", "sends reason",
           "These sends are in the log, and nobody can tell whether they are durable; their "
           "producers get SERVICE_NOT_AVAILABLE."),
    _event("warning", "cold pull failed", "topic queue reason",
           "Messages that were not in the page cache could not be read from the disk; the consumer gets "
           "SYSTEM_ERROR and pulls again."),
    _event("warning", "held pull failed", "topic queue reason",
           "A pull that had waited for messages ended in an error; its consumer gets SYSTEM_ERROR "
           "and asks again."),
    _event("warning", "status request failed", "target reason",
           "A request to the HTTP port could not be answered; it got status 500."),
    _event("warning", "a setting is ignored as asked", "setting reason",
           "A setting of the file is not honoured and --ignore-setting names it; the server runs without "
           "what the setting promises."),
    _event("info", "registered at a name server", "address broker",
           "A name server of namesrvAddr took the registration of this broker; clients find the broker "
           "there."),
    _event("warning", "cannot register at a name server", "address reason",
           "A name server of namesrvAddr does not know this broker, or forgets it in two minutes. The "
           "next registration is the retry; the line comes once for each reason."),
    _event("warning", "cannot unregister at a name server", "address reason",
           "A name server still names this broker after its stop, for up to two minutes."),
    _event("info", "broker registered", "name id address",
           "A broker registered with the name server of this process."),
    _event("warning", "broker unregistered", "name id address",
           "A broker left the name server, closed its connection or stopped to register; routes do "
           "not name it any more."),
)

_ENV_KERNELS: Final = (
    _event("critical", "a sync failed, the store takes no more writes", "file cause",
           "The disk did not keep what was written to this file or directory. Puts are refused, no "
           "sync is attempted again, and messages can still be read. Check the disk, then start "
           "again: the next open recovers what is durable."),
    _event("warning", "a hint cannot be synced, it is written again later", "file cause",
           "This file only makes a recovery shorter or a count exact. It counts as not written, and "
           "the next attempt writes all of it. Check the disk."),
    _event("critical", "service stopped after a failed sync", "name",
           "A background service ends for good because a sync failed; the store takes no more "
           "writes. Find out what is wrong with the disk, then start again."),
    _event("exception", "service step failed", "name failures",
           "A background service met an error that it does not know; the traceback follows, and its "
           "next step is made in time."),
    _event("warning", "service waits for descriptors or memory", "name cause",
           "A step of a background service was not possible because the process or the machine has no "
           "descriptor or memory left. The step is repeated; this line is logged once until it succeeds."),
    _event("warning", "service waits for room on the disk", "name cause",
           "A step of a background service could not write because the disk or a quota is full. The step "
           "is repeated; this line is logged once until it succeeds. Make room."),
    _event("warning", "sync of a directory is put off", "directory cause",
           "A file was removed and its directory could not be opened for want of descriptors. The "
           "directory is synced before the next file of it is removed."),
    _event("info", "kernel is not compiled", "name reason",
           "This loop over bytes runs in the interpreter: right, and many times slower."),
    _event("warning", "compiled kernel refused, its source has changed", "name",
           "The compiled form is of another source; the interpreted one is used. Build again."),
    _event("info", "checksums are computed by a table", "reason",
           "ISA-L's checksum cannot be called directly; another one is used, with the same result "
           "and more slowly."),
    _event("warning", "checksums are computed by a table", "reason",
           "ISA-L's checksum gave another value than zlib's, so it is not used."),
)

_FILES: Final = (
    _event("warning", "hint cannot be read, it counts as damaged", "file cause",
           "A file that the store can do without is not a regular file, is too large, or may not be "
           "read. The store works as if the file were missing; recovery may take longer."),
    _event("warning", "odd file replaced", "file cause",
           "A name that the store writes a hint to was a FIFO, a socket, a device or a symbolic link to "
           "nothing. The name was removed and a regular file is written there."),
)
_NODE: Final = (
    _event("error", "the lock file was deleted while the store is open, it is made again", "file",
           "Without this file another process could open the same directory and overwrite messages. It was "
           "made again in time; find out what deletes it."),
    _event("critical", "the lock file was replaced, the store takes no more writes", "file",
           "The lock file was deleted and another process made a new one, so that process may have written "
           "to the directory. The command `tailrace serve` ends with exit code 1. End every process that has "
           "the directory open, then start one; its recovery looks at the end of the log."),
    _event("warning", "cannot look at the lock file", "file cause",
           "The lock file or its directory could not be looked at or made again; it is tried again every "
           "second."),
    _event("error", "refused change may return with a restart", "file reason",
           "A change of a state file was refused after the file was replaced, and the previous file "
           "could not be put back. Until the next change the file shows the refused one."),
    _event("error", "config file unreadable", "file reason",
           "A file of config/ is no JSON object, so its backup (.bak) is read in its stead, and is "
           "not replaced by it."),
    _event("warning", "a Java broker left what is not served", "kind count path consequence",
           "The directory has something that a Java broker would act on and this broker does not: the "
           "consequence says what will not happen. Nothing of it is changed, so a Java broker that opens "
           "the directory goes on with it."),
    _event("warning", "cannot look at what a Java broker left", "path cause",
           "Reading failed while the store looked for things that it does not serve, so some may not be "
           "named; the open goes on."),
    _event("warning", "a topic has queues and no config, it gets one", "topic queues",
           "config/topics.json does not name a topic that has messages; it is made again with at "
           "least as many queues as there are."),
    _event("warning", "LMQ queues are kept and get no new messages", "lmq_queues setting",
           "The store has light message queues (%LMQ%...) and the named settings are off: their messages "
           "stay and are rebuilt from the log when files are lost, but new messages get no place in "
           "them, and without enableLmq clients cannot pull from them."),
    _event("warning", "enableMultiDispatch does nothing without enableLmq", "lmq_queues",
           "Without enableLmq no message gets a place in an LMQ queue; set both, or neither."),
    _event("warning", "consumer offsets are taken over from the other file, enableLmq has changed",
           "file count",
           "With enableLmq all consumer offsets are kept in config/lmqConsumerOffset.json, without it in "
           "config/consumerOffset.json. The file of the present setting was not there."),
    _event("warning", "newer consumer offsets are not read, enableLmq has changed", "file",
           "Both files of consumer offsets are there, and the one of the other setting was written "
           "later. Groups go on where the file of the present setting says; to use the other one, "
           "stop the broker and delete the older file."),
    _event("warning", "offsets of LMQ groups are not read, enableLmq is false", "file count",
           "Consumer groups named %LMQ%... have offsets that only a broker with enableLmq reads. The "
           "file is left as it is."),
    _event("warning", "there is no room for the config of a topic", "topic",
           "The disk is full, so the config that a topic with messages lacks could not be written."),
    _event("error", "the store opens read-only, nothing is written or cut", "path cause",
           "Nothing can be written there: recovery happens in memory, messages can be read and puts "
           "are refused. Mend the cause and open it again."),
    _event("error", "cannot open the store", "path cause",
           "The open failed and everything was closed again; the cause says what to mend."),
    _event("warning", "cannot remove the abort file", "path cause",
           "The store was closed cleanly but the mark of a running one stays."),
    _event("warning", "the abort file stays, the next open recovers", "path",
           "The close was not a clean one, so the next open looks at the end of the log first."),
    _event("warning", "a pending timer cannot be written again", "phy_offset cause",
           "A file that must go for want of space holds a timer or a message of a delay level that is "
           "not due, and its copy was refused; this one and those behind it are counted as lost."),
    _event("error", "the timers could not be closed cleanly", "cause",
           "State of the timers was not written at the close; the next open recovers it."),
    _event("warning", "queues of deleted topics are removed", "topics",
           "Queues that were built anew belong to topics that had been deleted; they go again."),
    _event("warning", "attribute ignored", "topic cause",
           "A retention attribute of a topic has a value that means nothing; the topic keeps its "
           "messages as the broker's settings say."),
    _event("info", "purged a topic", "topic queues",
           "Messages were let go of by request; for each queue its least offset before and now."),
    _event("warning", "a queue is not the one that was purged", "topic queue_id logical_min now",
           "A queue was begun again or lost its end since it was purged, so its younger messages "
           "are shown."),
    _event("warning", "cannot write logical minimum offsets", "file cause",
           "How far topics let go of messages is not on disk yet; it is tried again, and a crash "
           "before that shows some of them again until the next pass."),
)

_CLIENT: Final = (
    _event("warning", "transaction not ended, the broker will ask", "message reason",
           "Our producer could not tell the broker to commit or roll back; its half message stays pending."),
    _event("error", "check of a transaction failed", "message reason",
           "The function `check` of a producer raised; the broker asks again."),
    _event("warning", "check of a transaction cannot be read", "broker reason",
           "A broker asked about a half message with fields or a record that cannot be read."),
    _event("warning", "heartbeat failed", "broker reason",
           "A broker may forget the groups of this client; tried again every second. Logged once until it works."),
    _event("warning", "request of a broker left for later", "group under_way",
           "Too many requests of brokers are under way in this client, such as check-backs; the broker asks again."),
    _event("warning", "request of a broker failed", "broker code reason",
           "A client could not serve a request of a broker, or its answer could not be sent."),
    _event("info", "consumer started", "group client",
           "A push consumer has joined its group and has its first queues."),
    _event("info", "consumer closed", "group",
           "A push consumer has committed its offsets and left its group."),
    _event("warning", "consumer closed before its listeners ended", "group listeners",
           "Listeners ran longer than close_timeout_s; their messages are not committed and are delivered again."),
    _event("info", "queue assigned", "group topic broker queue offset",
           "The rebalance gave this member a queue, which it consumes from this offset."),
    _event("info", "queue given up", "group topic broker queue offset",
           "The rebalance gave a queue of this member to another one; this offset was committed before."),
    _event("warning", "rebalance failed, it is tried again", "group reason",
           "A rebalance pass raised, for example a strategy of the program; queues stay as they are. Tried again "
           "every second, logged once until it works."),
    _event("warning", "queues of a topic are not known, asked again", "group topic reason",
           "The topic has no route yet, or no broker of it can be reached. Queues stay as they are. Tried again every "
           "second, logged once until it works. Check the name of the topic."),
    _event("warning", "offset of a queue is not known, asked again", "group reason",
           "A queue that this member gets is not consumed until its committed offset can be read; tried again every "
           "second."),
    _event("warning", "queue lock lost, another member may have it", "group topic broker queue",
           "A queue that is consumed in order waits until it is locked again."),
    _event("warning", "offsets not committed, tried again", "group queues topic queue reason",
           "Tried again with the next commit; logged once until it works. If the consumer ends before, what it has "
           "consumed since the last commit is delivered again."),
    _event("info", "offset reset by the broker", "group topic broker queue offset",
           "An administrator has reset the offset of this group; the queue is consumed from there."),
    _event("warning", "offset of a queue is corrected", "topic broker queue offset to",
           "The offset to pull lies outside of the queue, because messages have expired or an administrator has "
           "reset it. The queue is consumed from the offset that the broker names."),
    _event("warning", "pull failed, it is tried again", "topic broker queue offset reason",
           "Tried again after 1 s, later 30 s; logged once until it works."),
    _event("info", "pull works again", "topic broker queue", "A queue is pulled again after failures."),
    _event("error", "listener failed, the message is delivered again", "group topic queue offset key reason",
           "The listener raised; a traceback follows. The message comes again at the next delay level, or in order "
           "after suspend_s; after max_reconsume_times it is a dead letter in %DLQ%group."),
    _event("error", "listener takes too long, the message is delivered again",
           "group topic queue offset key seconds",
           "The listener ran longer than consume_timeout_s. A coroutine is cancelled; a thread goes on and is not "
           "available for other messages."),
    _event("error", "message not consumed, tried again", "group topic queue offset reason",
           "A fault of the client; the message is delivered again after 5 s. Please report it."),
    _event("warning", "message not sent back, consumed again here", "group topic queue offset key reason",
           "The broker did not take back a message whose listener failed; it is delivered to this member again after "
           "5 s, and the offset of its queue stays before it."),
    _event("warning", "message of a broadcasting consumer is dropped after a failure",
           "group topic queue offset key",
           "The listener failed. Broadcasting consumers have no retries, as in RocketMQ."),
)

_REMOTING: Final = (
    _event("warning", "close a connection after a bad frame", "peer cause",
           "A server answered our client with bytes that are no frame; what waits gets an error."),
    _event("warning", "connection closed for bad frame", "peer reason",
           "A client sent bytes that are no frame of the protocol; only its connection is closed."),
    _event("warning", "request failed", "code peer reason",
           "A request could not be served and got SYSTEM_ERROR; a traceback follows when the reason "
           "is not one of a bad request or of the store."),
    _event("info", "connection closed for idleness", "peer",
           "Nothing came or went over a connection for two minutes."),
    _event("warning", "connection closed for a limit", "peer reason count connections bytes",
           "A connection was closed so that others can be served: `connections`, there were more than "
           "serverSocketMaxConnections and this one was used least recently; `bytes`, all connections took "
           "more than serverBufferMaxBytes and this one took the most; `incomplete request`, its client "
           "stopped in the middle of a request; `answers are not read`, its client read nothing for "
           "serverChannelStallTimeoutSeconds; `slow http`, too many HTTP clients had not sent their request. "
           "`count` connections were closed for this reason since the last such line, of which there is at "
           "most one a minute for each reason."),
    _event("warning", "requests wait for memory", "bytes limit connections count",
           "Incomplete requests and unread answers of all connections take more than "
           "serverBufferMaxBytes; nothing more is read until the largest connections are closed. `count` is how "
           "often that was so since the start; it is logged at most once a minute."),
    _event("warning", "connection aborted", "peer reason",
           "A client does not read its answers; what was written for it is thrown away."),
)

_SEGMENTS: Final = (
    _event("warning", "cannot make the next segment file ahead", "file cause",
           "The file that the log needs next could not be made in advance, mostly because the disk "
           "is full; the put that needs it tries again and fails if that is still so."),
    _event("info", "blocks are kept", "file cause",
           "The file system cannot give back room behind the end of a finished file; it is used "
           "until the file goes."),
    _event("info", "remove segment file behind the end", "file",
           "A file lies behind the end that was found, so it goes; what a CommitLog file held is in "
           "quarantine."),
    _event("info", "a segment is read without a mapping", "file cause",
           "A CommitLog file that was there before cannot be mapped (no right to write it, no address "
           "space left); each of its messages is read with a system call of its own."),
    _event("warning", "remove empty segment file", "file",
           "A file of no length was left by a crash while it was made."),
    _event("warning", "not a segment file, it is left alone", "file",
           "Somebody put another file among the segments; it is neither read nor removed."),
    _event("warning", "a file is made in another directory", "cause",
           "One of several log directories is full; the next one takes the new file."),
    _event("info", "read by the settings of the directory", "file settings",
           "No setting was given, so the directory is read by those it was written with; they are in this "
           "file. Give a file of settings with any other value, or delete this one, to read it otherwise."),
    _event("warning", "settings of the directory cannot be read", "file cause",
           "The file of settings that the store keeps is damaged; defaults are used until the next open "
           "writes it. Give the file of settings that the store was written with."),
    _event("warning", "cannot keep the settings of the directory", "file cause",
           "Commands that are not given the same file of settings will read the directory by defaults."),
    _event("warning", "files are synced early to close them, raise maxOpenFiles", "limit files",
           "More segment files have unsynced bytes than may be open together. No message is at risk; "
           "dispatch is slower because each such file costs a sync. Logged once."),
)

_SPARK: Final = (
    _event("info", "offsets of an older topic of the same name are left out", "topic queue_id until",
           "A topic was deleted and made again since it was archived; only the newer one is read."),
    _event("info", "a stream is behind", "query batch messages bytes",
           "A query has this much of the stores still to read, after a batch."),
    _event("warning", "cannot tell how far a stream is behind", "query cause",
           "The query's source is another one than the listener's options name, or the store cannot "
           "be read; the query goes on."),
    _event("info", "archived a segment", "segment messages files verified",
           "A CommitLog file is in the archive, and was read back when verified says so."),
    _event("info", "a segment was compared with the archive", "segment archive",
           "Before retention deletes a CommitLog file it reads the file and the archived files of it "
           "and compares checksums; all of them were right."),
    _event("warning", "a segment is not archived as its manifest says", "segment archive cause",
           "The archive is of another store, or a file of it is damaged: the CommitLog file stays. Run "
           "`tailrace pipeline archive STORE ARCHIVE --verify`."),
    _event("warning", "a segment is archived again", "segment cause",
           "A file of an archived segment is missing or has another size, and the log still has the "
           "segment."),
    _event("warning", "a segment of the archive is damaged", "segment cause",
           "A run of `tailrace pipeline archive --verify` found it. It is archived again if the log "
           "still has it; otherwise the report names it and a copy is needed."),
    _event("warning", "a manifest of the archive is missing", "archive topic queue_id cause",
           "A manifest names another one that is not there, and failOnDataLoss is false: messages of "
           "that segment are left out."),
    _event("warning", "an archive has manifests without a checksum", "archive manifests first",
           "Manifests of an older version: a changed or missing manifest is not noticed, its files "
           "are. `tailrace pipeline archive --verify` writes them again with checksums and links."),
    _event("warning", "a segment was deleted before it was archived", "segment",
           "Retention was faster than the archive job; the messages of this file are not in the "
           "archive."),
    _event("warning", "data lost", "store topic queue_id from until skipped",
           "Offsets that a query asked for are not there any more; with failOnDataLoss=false it goes "
           "on behind them."),
    _event("warning", "data lost", "store phy_offset until skipped",
           "Records were deleted while a task read them; with failOnDataLoss=false it goes on "
           "without them."),
    _event("warning", "LMQ queues are left out, their messages are read by their own topics",
           "store lmq_queues",
           "Spark does not read light message queues (%LMQ%...). Each message that they name is read by its "
           "own topic, and its property INNER_MULTI_DISPATCH names the LMQ queues. Messages that were sent "
           "to an LMQ queue itself are not read. Logged once for each store."),
    _event("warning", "damaged record", "store phy_offset reason",
           "A record that was to be read is damaged; mode says what becomes of it."),
    _event("warning", "damaged records dropped", "store dropped",
           "mode=DROPMALFORMED left so many damaged records out of a task's result."),
    _event("warning", "queue went back", "store topic queue_id known end",
           "A queue ends before the offset that a checkpoint knows: the topic was made anew or the "
           "store replaced; with failOnDataLoss=false the query goes on."),
    _event("warning", "staged rows are not what the task wrote", "file",
           "What a Spark task staged cannot be read back, so the driver scans its segment itself; "
           "check that driver and executors see one staging directory."),
    _event("info", "goes on with a batch", "txn first",
           "An earlier try of this piece of a batch had sent a part; the rest follows."),
    _event("warning", "sends a request again", "txn first cause",
           "A send failed and the broker has none of its messages, so they are sent once more."),
)

_RETENTION: Final = (
    _event("debug", "look for files to delete", "trigger", "A pass of retention begins."),
    _event("info", "deleted an expired file", "file min_phy_offset",
           "A CommitLog file was old enough, and nothing kept it."),
    _event("warning", "deleted before its time", "file expires_ms reason pins lost timers_rewritten "
           "timers_lost",
           "The disk was so full that a CommitLog file went before its time, with what it held and "
           "what had kept it; give the store more room or shorter times."),
    _event("warning", "space is short and nothing was deleted", "reason cause",
           "A disk is over its limit and the oldest file must stay, which the cause explains; said "
           "once for each cause."),
    _event("warning", "a file to delete is being read", "file",
           "A reader still has a lease on the oldest file; it goes when the reader is done or after "
           "destroyMapedFileIntervalForcibly."),
    _event("warning", "cannot delete a file", "file cause",
           "A CommitLog file that should go could not be moved to the trash; the next pass tries "
           "again."),
    _event("info", "ended a file by its age", "file",
           "The last file was begun long ago (commitLogRollTime), so that it can expire."),
    _event("warning", "cannot end a file by its age", "file cause",
           "The file after it could not be made; the next pass tries again."),
    _event("info", "expired files are deleted by hand", "passes",
           "Somebody asked for deletion now: so many passes heed no hour of the day."),
    _event("info", "deleted queue files", "topic queue_id files min_offset",
           "Files of a queue held nothing but units of deleted messages."),
    _event("warning", "cannot delete a queue file", "topic queue_id cause",
           "A file of a queue stays for now; it is tried again."),
    _event("info", "deleted an expired index file", "file",
           "A file of the key index held nothing but entries of deleted messages."),
    _event("warning", "cannot delete an index file", "cause",
           "A file of the key index stays for now; it is tried again."),
    _event("warning", "a deleted file is still read, its room comes back later", "file",
           "The name of a file is gone; the disk gets its room when the last reader closes it."),
    _event("warning", "cannot delete a file in the trash", "file cause",
           "A deleted file still takes room; it is tried again."),
    _event("warning", "a forced deletion is not on record", "file cause",
           "A file went before its time and the list of such deletions could not be written; this "
           "log is the record."),
    _event("error", "puts are refused", "reason",
           "A disk is too full: producers get an error until files were deleted or room was made."),
    _event("info", "puts are taken again", "usage", "The disks have room again."),
    _event("error", "disk cannot be measured", "cause",
           "The use of a disk is not known; look at its mount."),
)

_STORE: Final = (
    _event("error", "the store could not be closed cleanly", "cause",
           "Something was not flushed at the close; the next open recovers."),
    _event("debug", "cannot write how far the log is flushed", "cause",
           "Other processes that read the directory show messages a little later."),
    _event("critical", "flush failed, waiting puts are not acknowledged", "cause",
           "A sync of the log failed. What waited for it is told that it may be lost, and nothing is "
           "tried again: find out what is wrong with the disk, then start again."),
    _event("warning", "the checkpoint cannot be written, the old one stays", "cause",
           "The disk is full or fails, or descriptors or memory are short. A recovery would start further "
           "back, and no message is at stake; the next pass writes the checkpoint."),
    _event("warning", "flush waits for descriptors or memory", "cause",
           "The CommitLog could not be opened for its sync. No sync was tried, so nothing failed; the next "
           "step tries it. Puts under SYNC_FLUSH wait for that, at most syncFlushTimeout."),
    _event("warning", "a size of the directory is ignored", "cause",
           "The files of a store directory have a size, or its hint says one, that no store can have; "
           "the setting counts instead."),
    _event("warning", "cannot write the geometry hint", "file cause",
           "File sizes are recognised from the files at the next open, as in a directory of a Java "
           "broker."),
    _event("info", "[STORETPS]", "put_tps get_found_tps get_miss_tps put_failed put_max_ms",
           "Once a minute: puts, gets that found messages and gets that did not, a second, each over "
           "10, 60 and 600 seconds; failed puts since the start and the slowest put."),
    _event("error", "no queue for a topic that cannot be a directory", "topic count phy_offset",
           "Records have a topic with a slash or the like, which no broker makes; they stay in the "
           "log without a queue."),
    _event("warning", "the last messages of a queue are lost, its offsets go on",
           "topic queue_id from to",
           "A segment file of the log is missing, and with it the last messages of this queue. New "
           "messages come after their places, so that no consumer takes one for a message it had."),
    _event("error", "maybe logic queue order wrong", "topic queue_id expected actual",
           "The next record of a queue is not the expected one: those between are damaged or "
           "missing. Their offsets become holes, or the record is passed over when its offset cannot "
           "be right."),
    _event("warning", "the first files of a queue are gone, it is rebuilt", "topic queue_id",
           "The log has records of a queue from before its first file; its files are removed and "
           "built anew from the log."),
    _event("error", "records have no place in their queue", "topic queue_id queue_offset count "
           "phy_offset",
           "Records have queue offsets that others have, or that are out of the queue; they stay in "
           "the log and are not shown by queue."),
    _event("warning", "queue begins anew", "topic queue_id queue_offset phy_offset",
           "A topic was deleted and made again; from here on the queue holds the newer messages."),
    _event("warning", "configuration of a Java broker is in RocksDB and is not read", "kind path export",
           "A broker with storeType=defaultRocksDB kept topics, groups or consumer offsets there. Messages "
           "are all shown; topics get defaults, groups begin anew. Export it with the command in "
           "`export` while nothing is open on the directory, then open again."),
    _event("warning", "index file is not whole, later ones are built anew", "file",
           "A file of the key index in the middle has less entries than it must; recovery builds the "
           "later ones from the log."),
    _event("error", "a message is damaged, it is not served", "topic queue_id queue_offset phy_offset",
           "The bytes of a message are not what was stored, so consumers do not get it; `tailrace "
           "verify` tells what else is damaged."),
    _event("warning", "multi-dispatch is off, messages get no place in the LMQ queues that they name",
           "topic names",
           "A message has the property INNER_MULTI_DISPATCH and is stored in its own queue only, because "
           "enableLmq and enableMultiDispatch are not both on. Logged for the first such message."),
    _event("error", "dispatch stopped at a bad record", "file phy_offset reason",
           "Bytes in the middle of a running store are no record: later messages cannot be read "
           "until the store is opened again, which recovers."),
    _event("warning", "reput jumps to the first file", "from to",
           "The records that were to be dispatched next have been deleted; it goes on with the first "
           "that is there."),
)

_RECOVERY: Final = (
    _event("info", "recover", "mode from why",
           "An open begins to look at the log there, for this reason."),
    _event("info", "recovering", "at of percent scanned",
           "A recovery is under way; logged about once a second."),
    _event("info", "recovery progress saved", "at",
           "A recovery that is cut off begins here the next time."),
    _event("info", "recover over", "mode to scanned ms",
           "The log ends at `to`; `scanned` records were read in `ms` milliseconds."),
    _event("error", "segment file of a wrong length is mended", "file expected actual",
           "A CommitLog file was too short or too long; its length is right again, and the bytes after "
           "its end are in quarantine."),
    _event("error", "stepped over damage, a Java broker would end the log there",
           "file phy_offset length reason",
           "Bytes in the middle of the log are no record; they are copied to quarantine and the "
           "records behind them are kept."),
    _event("warning", "damage is sealed", "phy_offset length",
           "A placeholder record was written over damage, so that a Java broker reads on after it."),
    _event("warning", "damage is too small to be sealed", "phy_offset length",
           "No placeholder record fits there; a Java broker ends the log at this place."),
    _event("warning", "queue files are removed, to be rebuilt", "topic queue_id cause",
           "Files of a queue cannot be used; they are built anew from the log."),
    _event("warning", "the log is empty, its messages are gone", "topic queue_id max",
           "A queue is there and the log has no file; the queue goes on at `max`, so that no "
           "consumer reads twice or misses later messages."),
    _event("warning", "the record before the end is torn", "phy_offset",
           "The last record has zeroes where its topic or properties are, as a power loss leaves it; "
           "it counts as the end."),
    _event("warning", "a record behind a gap is stale", "phy_offset topic queue_id queue_offset "
           "store_timestamp",
           "A record behind damage is a left-over of an older life of the file, so it is no reason "
           "to step over the damage."),
    _event("warning", "quarantine is full, the oldest evidence goes", "file bytes",
           "The limit of tailrace/quarantine/ is reached; copy away what you want to keep."),
)

_TIMER: Final = (
    _event("info", "timer recovery", "mode reason units cut_at queue_offset read_time_ms",
           "Timers are loaded: by replay of their log behind the checkpoint, or rebuilt from the "
           "CommitLog, and from where delivery and enqueueing go on."),
    _event("warning", "timers are rebuilt from the CommitLog", "reason",
           "The files of the timers cannot be used; all pending timers are found in the log again."),
    _event("warning", "timer log is cut at its first bad unit", "pos",
           "What followed in the timer log was not written whole; the messages are enqueued again "
           "from the log."),
    _event("info", "timer log file is delivered and removed", "file",
           "Every timer of this file is delivered."),
    _event("info", "remove timer log file", "file",
           "The timer log is begun anew, with a rebuild of the timers."),
    _event("error", "timer log append failed, enqueue waits", "queue_offset cause",
           "New timers cannot be written, mostly because the disk is full; they wait in their queue "
           "and are tried again."),
    _event("warning", "timer queue offset is below the least one", "offset min_offset",
           "Timer messages were deleted by retention before they were enqueued; it goes on behind "
           "them."),
    _event("error", "timer message unreadable", "phy_offset size cause",
           "The message of a timer is gone or damaged, so it cannot be delivered; counted as "
           "timerUnreadable."),
    _event("error", "list of a timer slot is broken", "time_ms pos units",
           "The list of timers of one time ends at a unit that does not belong to it; those found "
           "before are delivered."),
    _event("warning", "wall clock stepped back", "by_ms",
           "Timers of this stretch may have been delivered, so the log is asked before each is "
           "delivered again."),
    _event("warning", "timer put-back failed, it is tried again", "phy_offset status cause",
           "A due timer could not be put under its topic; it stays due."),
    _event("error", "message parked", "phy_offset topic reason",
           "A due message that its topic will never take is in %DLQ%TAILRACE_TIMER, with the "
           "reason in its properties."),
    _event("warning", "far timers cost a record in each round", "max_delay_s rounds window_s",
           "A timerMaxDelaySec as large as this allows timers that are sent round more than once: each "
           "round writes the message to the CommitLog again. So many records the longest of them costs."),
    _event("info", "timer progress",
           "read_behind_ms offset_behind to_look_at waiting put_back congestion",
           "At the interval of timerProgressLogIntervalMs: how late delivery is, timers that are not "
           "enqueued yet, those of begun slots that are kept as units and those that wait one by one, "
           "timers delivered since the start, and timers of slots to come."),
    _event("warning", "delay offset corrected", "level offset to min_offset max_offset",
           "config/delayOffset.json names an offset that the queue of a delay level does not have."),
    _event("warning", "delay offset without a queue", "level offset to",
           "config/delayOffset.json knows a delay level that has no messages; it begins at 0."),
    _event("warning", "deliver times are too far ahead", "level offset",
           "Deliver times in a delay level lie behind now and the delay: the wall clock was stepped "
           "back. Nothing that is there waits longer than the delay from now on."),
    _event("warning", "delayed message held up, it is tried again", "level offset phy_offset cause",
           "A due message of a delay level could not be put under its topic; its level waits for it."),
    _event("error", "delayed message unreadable", "phy_offset size cause",
           "A message of a delay level is gone or damaged, so it cannot be delivered; counted as "
           "scheduleUnreadable."),
)

EVENTS: Final = (
    *_BROKER, *_CLIENT, *_ENV_KERNELS, *_FILES, *_NODE, *_REMOTING, *_SEGMENTS, *_SPARK, *_RETENTION,
    *_STORE, *_RECOVERY, *_TIMER,
)
"""All of them."""
