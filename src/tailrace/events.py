"""Every line that Tailrace logs, declared once: level, phrase, keys, and its meaning for an operator.

A module logs an event through its declaration: ``events.BROKER_STOPPED.log(_log, broker=name)``. The line is the
phrase and then ``key=value`` for each key. If RocketMQ has a phrase for an event, that phrase is used.
`tests/unit/test_events.py` compares the keys of every call with the declaration. docs/reference/events.md is generated
from the declarations and the calls.
"""

from __future__ import annotations

import logging
import re
from typing import Final, NamedTuple

__all__ = ["EVENTS", "Event", "split_line"]

_KEY: Final = re.compile(r"(?:^| )([a-z_]+)=")


class Event(NamedTuple):
    """One kind of line."""

    level: str
    """Name of the level: debug, info, warning, error, critical."""
    phrase: str
    """Fixed text at the start of the line."""
    keys: tuple[str, ...]
    """Names of the values that follow it."""
    meaning: str
    """What happened and what follows, in a sentence or two."""

    def log(self, logger: logging.Logger, *, exc_info: bool | BaseException = False, **values: object) -> None:
        """Write the line. There is a value for each key, in their order; ``from_`` stands for the key ``from``.

        ``exc_info`` adds the traceback of that exception, or of the one that is being handled.
        """
        text = " ".join([self.phrase, *(f"{key}=%s" for key in self.keys)])
        logger.log(_LEVELS[self.level], text, *values.values(), exc_info=exc_info, stacklevel=2)


_LEVELS: Final = {name.lower(): number for name, number in logging.getLevelNamesMapping().items()}


def split_line(text: str) -> tuple[str, tuple[str, ...]]:
    """Return phrase and keys of a line."""
    first = _KEY.search(text)
    return (text, ()) if first is None else (text[: first.start()], tuple(_KEY.findall(text)))


def _event(level: str, phrase: str, keys: str, meaning: str) -> Event:
    return Event(level, phrase, tuple(keys.split()), meaning)


# the broker

PORTS_TAKEN: Final = _event(
    "info", "ports taken", "broker namesrv advertised",
    "The broker listens, but its store is not open yet; until then it refuses requests with that reason.")
VIP_PORT_LEFT_OUT: Final = _event(
    "warning", "VIP port left out", "address reason",
    "The broker could not listen on the port two below its own. Only clients that use the VIP channel need it.")
BROKER_STARTED: Final = _event(
    "info", "broker started", "broker namesrv advertised",
    "Clients are served at these addresses; routes have the advertised one.")
ADVERTISED_ADDRESS_IS_OF_THIS_MACHINE_ONLY: Final = _event(
    "warning", "the advertised address is reached from this machine only, set brokerIP1", "advertised listens",
    "The broker listens for other machines, but routes have a loopback address: brokerIP1 says so, or no interface has "
    "another address. Set brokerIP1 to the address that clients use.")
ANYBODY_WHO_REACHES_THIS_ADDRESS_MAY_READ: Final = _event(
    "warning", "anybody who reaches this address may read, write and delete", "address",
    "The option `--allow-remote` is given and there is no access control. Allow this address only for machines that "
    "you trust, for example by a firewall, or switch access control on.")
EVERY_USER_MAY_READ: Final = _event(
    "warning", "every user may read, write and delete", "address",
    "Other machines reach this address and authorizationEnabled is false: a client must prove its user, and every "
    "user may do everything.")
ANYBODY_WHO_REACHES_THIS_ADDRESS_MAY_READ_METRICS: Final = _event(
    "warning", "anybody who reaches this address may read metrics", "address",
    "Other machines reach `/ready` and `/metrics`, which ask for no user. Metrics name topics and groups. Allow this "
    "address only for machines that you trust, for example by a firewall.")
CONNECTIONS_WITH_USERS_ARE_NOT_ENCRYPTED: Final = _event(
    "warning", "connections with users are not encrypted", "address",
    "The option `--allow-plain` is given: other machines reach this address without TLS. Whoever records a connection "
    "can send requests as its user; on the address of `--http` the password itself is sent. Set tls.server.mode to "
    "enforcing, or listen on 127.0.0.1.")
SIGNED_REQUESTS_ARE_NOT_ENCRYPTED: Final = _event(
    "warning", "signed requests are not encrypted", "address",
    "The option `--allow-plain` is given: the broker sends requests that it signs as the user of "
    "innerClientAuthenticationCredentials to this name server without TLS. Whoever records one can send requests as "
    "that user. Set tls.enable=true, and tls.client.trustCertPath.")
ANYBODY_WHO_REACHES_THIS_ADDRESS_MAY_READ_METRICS_AND_MESSAGES: Final = _event(
    "warning", "anybody who reaches this address may read metrics and messages", "address",
    "The broker knows no users, so the pages of `--http` ask for none, and other machines reach them. Switch access "
    "control on, or listen on 127.0.0.1.")
ACCESS_DENIED: Final = _event(
    "warning", "access denied", "user address code action resource reason more others",
    "A request was refused because its user is unknown or disabled, its signature or password is wrong, or no "
    "permission allows it. `code` is the name of the request for a call of gRPC, and `console` for a page. One line "
    "in 10 s for each kind, and at most ten lines a second; `more` denied requests of the kind came since its line "
    "before, and `others` of kinds that the limit kept out of the log. Clients without a proven user are of one kind "
    "for each address and reason: `user` and `reason` are those of the first of them. Nothing but the log says whether "
    "the user exists.")
REQUEST_IS_BOUND_TO_ANOTHER_ADDRESS: Final = _event(
    "warning", "request is bound to another address", "user address count",
    "A client of Tailrace has bound its request to an address that this server does not know as its own, such as that "
    "of a port forwarding. It was served, because it needs no binding. Add the address to "
    "`authenticationBindingAddresses` before you set `authenticationBinding=required`. One line a minute.")
ADMINISTRATION: Final = _event(
    "info", "administration", "user address code name resource result",
    "A request of administration was answered. `result` is ok, refused or failed; `user` is empty without access "
    "control. With `serve --audit-log` the file has more of it.")
AUDIT_LOG_CANNOT_BE_WRITTEN: Final = _event(
    "error", "audit log cannot be written", "file cause lost",
    "Lines of `--audit-log` are kept in memory, up to 10,000, and tried again each second; `lost` were dropped. "
    "Administration continues, so that space can be freed, and each request of it is in this log.")
AUDIT_LOG_IS_WRITTEN_AGAIN: Final = _event(
    "info", "audit log is written again", "file lost",
    "The lines that waited are in the file; `lost` were dropped.")
AUDIT_LINES_LOST: Final = _event(
    "error", "audit lines lost", "file lines",
    "The server has ended while the file of `--audit-log` could not be written.")
USER_OVER_QUOTA: Final = _event(
    "warning", "user over quota", "user quota limit count",
    "Requests of a user were refused because of userRequestsPerSecond, userRequestBytesPerSecond or "
    "userConnectionsMax. `count` is their number since the last such line, of which there is at most one a minute for "
    "each user and quota.")
SUPER_USER_CREATED: Final = _event(
    "info", "super user created", "user",
    "The directory had no user yet, so the user of initAuthenticationUser, innerClientAuthenticationCredentials or "
    "`serve --user` was created.")
USER_OF_A_SETTING_NOT_CREATED: Final = _event(
    "warning", "user of a setting not created", "user setting",
    "The setting (`serve --user` sets initAuthenticationUser) names a user that does not exist. Users are created from "
    "settings only at the first start, because a missing user may have been deleted on purpose. Remove the setting, or "
    "create the user with `tailrace acl user add NAME --super`.")
SHORT_PASSWORDS: Final = _event(
    "warning", "short passwords", "users count",
    "These users, of `count` in all, have a password of less than 16 characters. Their signatures can be tried against "
    "a recorded request without the server. Give them new ones: `tailrace acl user update NAME --generate "
    "--keep-old 24h`.")
USER_HAS_LEFT: Final = _event(
    "info", "user has left", "user connections",
    "The user was deleted or disabled, or has a new password, so its connections were closed, with the requests that "
    "waited on them, its places in groups and its locks of queues.")
CREDENTIALS_CAN_BE_READ_BY_OTHER_USERS_OF_THIS_MACHINE: Final = _event(
    "warning", "credentials can be read by other users of this machine", "file",
    "The file holds a password, a token, a private key, or the users of the broker. Only its owner should read it: "
    "give it the mode 0600. The group may read a file that belongs to root.")
THE_STORE_CAN_BE_READ_BY_OTHERS: Final = _event(
    "warning", "the store can be read by other users of this machine", "directory who command",
    "The directory was made by an earlier release, by another program or by hand, and is left as it is: `who` may read "
    "its name list, and files in it that have such a mode as well. New files can be read by the owner only. `command` "
    "closes the directory and all that is in it.")
THE_GROUP_CANNOT_READ_NEW_FILES: Final = _event(
    "warning", "the group cannot read new files", "directory command",
    "The setting storeGroupReadable is on, but the directory exists already and is not shared with its group, or a "
    "rule of the system forbade it, so new files are private. `command` shares the directory and all that is in it.")
STOP: Final = _event(
    "info", "stop", "signal",
    "SIGTERM, SIGINT or SIGHUP was received; the server closes its store and ends.")
THE_SERVICE_MANAGER_WAS_NOT_NOTIFIED: Final = _event(
    "warning", "the service manager was not notified", "socket cause",
    "The start or the stop could not be reported to NOTIFY_SOCKET. systemd may assume that the server does not "
    "start.")
CANNOT_PRINT: Final = _event(
    "warning", "cannot print", "stream cause",
    "No process reads stdout or stderr any more, for example because the terminal was closed. The server continues "
    "and prints nothing more there.")
CONNECTIONS_CANNOT_BE_ACCEPTED: Final = _event(
    "error", "connections cannot be accepted", "cause count",
    "The process or the machine has no descriptor or memory left for a connection. `count` connections failed since "
    "the last line of this kind, which is logged at most once a minute. The server continues to accept.")
BROKER_STOPPED: Final = _event(
    "info", "broker stopped", "broker",
    "Pending answers were sent, consumer offsets written and connections closed. The store is closed next.")
CONSUMER_OFFSETS_COULD_NOT_BE_WRITTEN: Final = _event(
    "error", "consumer offsets could not be written", "cause",
    "The next write includes them. If the broker ends before that, messages that groups have consumed since the last "
    "write are delivered again. Check the disk.")
CONSUMER_OFFSET_CORRECTED: Final = _event(
    "warning", "consumer offset corrected", "group topic queue offset to",
    "The offset of a group was after the end of its queue, for example because a power loss removed messages that "
    "were not synced. The offset is set to the end of the queue.")
EVENT_LOOP_WAS_HELD: Final = _event(
    "warning", "event loop was held", "ms",
    "No client was served for this time, because a request or the machine blocked the thread that serves all "
    "clients; see the metric tailrace_event_loop_lag_seconds.")
STATISTICS_ARE_FULL: Final = _event(
    "warning", "statistics are full, new ones are not counted", "name key limit",
    "The table of request 315 has reached this number of keys; idle keys are dropped after a day.")
GROUP_READS_LESS_FROM_THE_DISK: Final = _event(
    "info", "group reads less from the disk", "group bytes threshold all_bytes",
    "With coldDataFlowControlEnable: the group has read its threshold in this period of 5 s, or all groups together "
    "have read globalColdReadThreshold.")
STATIC_TOPIC_SET: Final = _event(
    "info", "static topic set", "topic epoch queues led",
    "A request (`mqadmin updateStaticTopic`, `remappingStaticTopic`) created or changed a topic with logical queues; "
    "this broker takes the messages of `led` of them.")
STATIC_TOPIC_CLEANED: Final = _event(
    "info", "static topic cleaned", "topic queues",
    "Parts of these logical queues without messages, or lists that the leader of the queue has newer, were removed "
    "from topicQueueMapping.json.")
STATIC_TOPIC_NOT_CLEANED: Final = _event(
    "warning", "static topic not cleaned", "topic reason",
    "A broker that has parts of the topic's logical queues could not be asked, or topicQueueMapping.json could not "
    "be written. The next pass tries again, up to the end of the hour of deleteWhen.")
SETTINGS_CHANGED: Final = _event(
    "info", "settings changed", "user values",
    "A request changed live settings (`mqadmin updateBrokerConfig`, `updateNamesrvConfig`); with `--config` the file "
    "has them, too.")
CONSUMER_DID_NOT_RETURN_ITS_OFFSETS: Final = _event(
    "warning", "consumer did not return its offsets", "group client reason",
    "An admin tool requested the offsets of a group's members (request 223); the answer does not include this one.")
CONSUMER_REGISTERED: Final = _event(
    "info", "consumer registered", "group client peer",
    "A consumer sent its first heartbeat over this connection, or one with another client id.")
CONSUMER_UNREGISTERED: Final = _event(
    "info", "consumer unregistered", "group client peer",
    "A consumer left its group, lost its connection or sent no heartbeat for too long.")
CONSUMERS_UNREGISTERED: Final = _event(
    "info", "consumers unregistered", "peer groups",
    "A connection was closed. Its client was in many consumer groups and has left all of them.")
CONSUMER_EXPIRED: Final = _event(
    "warning", "consumer expired", "group peer",
    "A consumer sent no heartbeat for too long. Its connection is closed, and the other members of the group get its "
    "queues.")
CONSUMER_GROUP_UNKNOWN: Final = _event(
    "warning", "consumer group unknown", "group client",
    "A heartbeat names a group that does not exist, and the group cannot be created: autoCreateSubscriptionGroup is "
    "false, or its name is not valid. The consumer is not registered.")
POP_OFFSET_IS_OUTSIDE_ITS_QUEUE: Final = _event(
    "info", "pop offset is outside its queue", "group topic queue offset to",
    "Retention deleted messages that a group had not popped, or its offset was after the end of the queue. The group "
    "continues at the offset `to`.")
REVIVE_RECORDS_ARE_GONE: Final = _event(
    "warning", "revive records are gone", "queue offset to",
    "Retention deleted checkpoints of POP before they were read; their messages are not delivered again. Keep the "
    "CommitLog longer than the longest invisible time.")
REVIVE_RECORD_IS_NOT_READABLE: Final = _event(
    "warning", "revive record is not readable", "queue offset reason",
    "A record of the revive topic is neither a checkpoint nor an acknowledgement; it is skipped.")
POPPED_MESSAGES_DO_NOT_COME_BACK: Final = _event(
    "warning", "popped messages do not come back, their topic or group is gone", "topic group count",
    "The topic or the group was deleted while its messages were popped.")
POP_IS_STOPPED: Final = _event(
    "warning", "pop is stopped, too many messages are in flight", "group topic queue in_flight limit",
    "The group has popped more messages of the queue than popInflightMessageThreshold without an acknowledgement, "
    "and enablePopMessageThreshold is true; the queue is popped again after one.")
LITE_SUBSCRIPTIONS_EXPIRED: Final = _event(
    "info", "lite subscriptions expired", "client group topic count",
    "A client has not renewed its subscriptions to Lite topics for liteSubscriptionCheckTimeoutMills. Their messages "
    "go to other clients.")
LITE_EVENTS_GO_TO_ANOTHER_CLIENT: Final = _event(
    "info", "lite events go to another client", "client group count",
    "A client has not fetched the messages of Lite topics that were noted for it.")
LITE_OFFSET_RESET: Final = _event(
    "info", "lite offset reset", "group topic offset client",
    "A client has subscribed to a Lite topic from an offset, or the group has an attribute lite.sub.reset.offset.")
LITE_TOPICS_DELETED_AFTER_THEIR_EXPIRATION: Final = _event(
    "info", "lite topics deleted after their expiration", "count first",
    "These Lite topics had no message for lite.topic.expiration. Their messages are still in the parent topic.")
LITE_TOPICS_COULD_NOT_BE_DELETED: Final = _event(
    "warning", "lite topics could not be deleted", "count cause",
    "A file could not be written; the deletion is tried again after liteTtlCheckInterval.")
POPPED_MESSAGE_DOES_NOT_COME_BACK: Final = _event(
    "warning", "popped message does not come back, it is gone", "topic queue offset status",
    "Retention removed a message while it was popped and not acknowledged.")
POPPED_MESSAGE_BECOMES_A_DEAD_LETTER: Final = _event(
    "warning", "popped message becomes a dead letter", "group topic offset tries reason",
    "A message that was not acknowledged can never be put into the retry topic of its group, and its tries are over. "
    "It is in %DLQ%group.")
RETRIES_OF_A_DELETED_TOPIC_ARE_PASSED_OVER: Final = _event(
    "info", "retries of a deleted topic are passed over", "topic group retry_topic queue from to",
    "A topic was deleted and created again, and its POP retry topic was kept because another group uses it. The group "
    "does not get the retries of the deleted topic.")
A_MESSAGE_OF_A_DELETED_TOPIC_IS_NOT_RETRIED: Final = _event(
    "info", "a message of a deleted topic is not retried", "group topic phy_offset",
    "A consumer sent back a message whose topic was deleted in the meantime. It is not stored again.")
POPPED_MESSAGE_IS_OF_ANOTHER_GROUP: Final = _event(
    "warning", "popped message is of another group, it is not put into its retry topic again",
    "topic group queue offset",
    "A group has popped a message that another group has popped before, from a retry topic whose name both have. "
    "A broker that does not look whose such messages are has handed it out, or a client has named an offset that it "
    "was not given. The other group gets the message.")
POPPED_MESSAGE_IS_TRIED_LATER: Final = _event(
    "warning", "popped message is tried later", "topic queue offset wait_ms reason",
    "A message that was not acknowledged could not be put into the retry topic of its group; it is tried again after "
    "this time.")
POPPED_MESSAGES_CANNOT_COME_BACK_NOW: Final = _event(
    "warning", "popped messages cannot come back now", "queue reason",
    "The store takes no writes. The messages are delivered again when it does.")
ORDERLY_POP_IS_NOT_READ: Final = _event(
    "warning", "orderly pop is not read", "file key queue reason",
    "An entry of consumerOrderInfo.json is not readable; the messages of that queue may come again.")
SUBSCRIPTION_ADDED: Final = _event(
    "info", "subscription added", "group topic",
    "A group has subscribed to a topic.")
SUBSCRIPTION_REMOVED: Final = _event(
    "info", "subscription removed", "group topic",
    "A group has ended its subscription to a topic.")
MEMBERS_HAVE_DIFFERENT_SUBSCRIPTIONS: Final = _event(
    "warning", "members of a group have different subscriptions",
    "group topic client subscription other_client other_subscription counts",
    "All members of a group must subscribe to the same topics with the same expressions, because one subscription "
    "counts for all of them: `counts`, that of the higher version. The others get messages that they did not ask for, "
    "or miss some. Logged once for each pair of subscriptions, also while members are replaced one by one.")
SUBSCRIPTION_CHANGED: Final = _event(
    "info", "subscription changed", "group topic subscription before",
    "A group subscribes to a topic with another expression than before.")
CONSUMER_FILTER_REGISTERED: Final = _event(
    "info", "consumer filter registered", "group topic expression",
    "A group subscribed to a topic with an expression of SQL92 that it did not have before.")
CONSUMER_FILTER_IS_NOT_USED_ANY_MORE: Final = _event(
    "info", "consumer filter is not used any more", "group topic",
    "No member of the group subscribes to the topic. The expression is kept for filterDataCleanTimeSpan.")
CONSUMER_FILTER_CANNOT_BE_COMPILED: Final = _event(
    "error", "consumer filter cannot be compiled", "group topic expression reason",
    "A group subscribed with an expression that is wrong. Its pulls are answered with code 27.")
CONSUMER_FILTER_REFUSED: Final = _event(
    "error", "consumer filter refused", "group topic reason",
    "There are too many expressions, they are too long, or an entry of config/consumerFilter.json is wrong.")
CONSUMER_FILTERS_COULD_NOT_BE_WRITTEN: Final = _event(
    "error", "consumer filters could not be written", "cause",
    "The file config/consumerFilter.json keeps older expressions; it is written again later.")
EXPRESSION_CANNOT_BE_COMPILED: Final = _event(
    "warning", "expression cannot be compiled", "topic expression reason",
    "The expression of a pull or of a client's check is wrong. It is answered with code 23 and the reason.")
REPLY_REFUSED: Final = _event(
    "warning", "reply refused", "peer reason",
    "A reply of request-reply names no producer, or one that is not connected to this broker; its sender gets code "
    "1, and the reply is not stored.")
REPLY_NOT_PUSHED: Final = _event(
    "warning", "reply not pushed", "client peer reason",
    "The producer that waits for a reply did not take it in 10 s, lost its connection or answered with an error. The "
    "sender of the reply gets code 1; with storeReplyMessageEnable the reply is stored.")
REPLY_NOT_STORED: Final = _event(
    "warning", "reply not stored", "topic status reason",
    "A reply of request-reply was not stored in its topic. The answer to its sender only says whether the reply was "
    "pushed.")
HALF_MESSAGES_ARE_PENDING: Final = _event(
    "info", "half messages are pending", "count from operations",
    "Half messages were neither committed nor rolled back when the broker started; they are checked. `operations` "
    "were read to find that out, and the first pending one is at queue offset `from` or after it.")
HALF_MESSAGE_NOT_COMMITTED: Final = _event(
    "warning", "half message not committed", "topic queue_offset reason",
    "The store did not take the message of a commit. The half message stays pending, and its producer is checked "
    "again.")
HALF_MESSAGE_OF_A_DELETED_TOPIC: Final = _event(
    "warning", "half message of a deleted topic is dropped", "topic queue_offset",
    "The topic was deleted after the half message was sent. It is not committed, also not into a new topic of this "
    "name.")
HALF_MESSAGE_GIVEN_UP: Final = _event(
    "warning", "half message given up", "topic group unique_key checks kept_in",
    "No producer of the group settled the half message before transactionCheckMax checks or fileReservedTime. It is "
    "kept in a topic, and request 323 (`DefaultMQAdminExt.resumeCheckHalfMessage`) has it checked again.")
HALF_MESSAGE_CANNOT_BE_READ: Final = _event(
    "error", "half message cannot be read", "queue_offset",
    "The record is damaged, was deleted because space was short, or is not a half message; nothing is delivered for "
    "it.")
HALF_MESSAGE_CANNOT_BE_PUT_AGAIN: Final = _event(
    "error", "half message cannot be put again", "queue_offset reason",
    "The store did not take the copy that a check leaves. The half message stays pending, and the next pass tries "
    "again.")
OPERATIONS_OF_HALF_MESSAGES_ARE_NOT_WRITTEN: Final = _event(
    "error", "operations of half messages are not written", "count reason",
    "The store did not take the operation that says that these half messages are settled. It is tried again; if the "
    "broker ends before, they are checked again.")
CHECK_OF_HALF_MESSAGES_FAILED: Final = _event(
    "error", "check of half messages failed", "reason",
    "A pass of the checks ended early; the next one begins where the progress is.")
NUMBERS_OF_HALF_MESSAGES_COULD_NOT_BE_WRITTEN: Final = _event(
    "error", "numbers of half messages could not be written", "cause",
    "The next write of config/transactionMetrics includes them. Check the disk.")
CANNOT_WAIT_FOR_THE_DISK: Final = _event(
    "error", "cannot wait for the disk", "sends reason",
    "These sends are in the log, and it is unknown whether they are durable; their producers get "
    "SERVICE_NOT_AVAILABLE.")
COLD_PULL_FAILED: Final = _event(
    "warning", "cold pull failed", "topic queue reason",
    "Messages that were not in the page cache could not be read from the disk; the consumer gets SYSTEM_ERROR and "
    "pulls again.")
HELD_PULL_FAILED: Final = _event(
    "warning", "held pull failed", "topic queue reason",
    "A pull that had waited for messages ended with an error; its consumer gets SYSTEM_ERROR and pulls again.")
STATUS_REQUEST_FAILED: Final = _event(
    "warning", "status request failed", "target reason",
    "A request to the HTTP port could not be answered; it got status 500.")
A_SETTING_IS_IGNORED_AS_ASKED: Final = _event(
    "warning", "a setting is ignored as asked", "setting reason",
    "A setting of the file is not supported, and the option --ignore-setting names it. The server runs without the "
    "effect of the setting.")
REGISTERED_AT_A_NAME_SERVER: Final = _event(
    "info", "registered at a name server", "address broker",
    "A name server of namesrvAddr has accepted the registration of this broker, so clients can find it there.")
CANNOT_REGISTER_AT_A_NAME_SERVER: Final = _event(
    "warning", "cannot register at a name server", "address reason",
    "A name server of namesrvAddr does not have this broker, or drops it after two minutes. The next registration is "
    "the retry. Logged once for each reason.")
CANNOT_UNREGISTER_AT_A_NAME_SERVER: Final = _event(
    "warning", "cannot unregister at a name server", "address reason",
    "A name server still names this broker after its stop, for up to two minutes.")
BROKER_REGISTERED: Final = _event(
    "info", "broker registered", "name id address",
    "A broker registered with the name server of this process.")
BROKER_UNREGISTERED: Final = _event(
    "warning", "broker unregistered", "name id address",
    "A broker unregistered, closed its connection or stopped registering. Routes do not have it any more.")

# the client

TRANSACTION_NOT_ENDED: Final = _event(
    "warning", "transaction not ended, the broker will ask", "message reason",
    "Our producer could not tell the broker to commit or roll back; its half message stays pending.")
CHECK_OF_A_TRANSACTION_FAILED: Final = _event(
    "error", "check of a transaction failed", "message reason",
    "The function `check` of a producer raised; the broker asks again.")
CHECK_OF_A_TRANSACTION_CANNOT_BE_READ: Final = _event(
    "warning", "check of a transaction cannot be read", "broker reason",
    "A broker asked about a half message with fields or a record that cannot be read.")
REPLY_CANNOT_BE_READ: Final = _event(
    "warning", "reply cannot be read", "broker reason",
    "A broker pushed a reply (request 326) with fields or a body that cannot be read; its request times out.")
REPLY_CAME_AFTER_ITS_REQUEST_HAD_ENDED: Final = _event(
    "warning", "reply came after its request had ended", "broker correlation",
    "A consumer replied later than the timeout of `Producer.request`, or twice; the reply is dropped.")
TRACE_NOT_SENT: Final = _event(
    "warning", "trace not sent", "group entries reason",
    "Entries of the message trace (trace=True) are lost; the messages themselves are not affected.")
TRACE_ENTRIES_DROPPED: Final = _event(
    "warning", "trace entries dropped", "group limit",
    "Entries of the message trace come faster than the broker takes them; logged once until it works.")
HEARTBEAT_FAILED: Final = _event(
    "warning", "heartbeat failed", "broker reason",
    "A broker may forget the groups of this client; tried again every second. Logged once until it works.")
REQUEST_OF_A_BROKER_LEFT_FOR_LATER: Final = _event(
    "warning", "request of a broker left for later", "group under_way",
    "Too many requests of brokers are under way in this client, such as check-backs; the broker asks again.")
REQUEST_OF_A_BROKER_FAILED: Final = _event(
    "warning", "request of a broker failed", "broker code reason",
    "A client could not serve a request of a broker, or its answer could not be sent.")
CONSUMER_STARTED: Final = _event(
    "info", "consumer started", "group client",
    "A push consumer has joined its group and has its first queues.")
CONSUMER_CLOSED: Final = _event(
    "info", "consumer closed", "group",
    "A push consumer has committed its offsets and left its group.")
CONSUMER_CLOSED_BEFORE_ITS_LISTENERS_ENDED: Final = _event(
    "warning", "consumer closed before its listeners ended", "group listeners",
    "Listeners ran longer than close_timeout_s; their messages are not committed and are delivered again.")
MESSAGE_IS_NOT_ONE_OF_DRAMATIQ: Final = _event(
    "error", "message is not one of Dramatiq, it becomes a dead letter", "topic queue offset reason",
    "The topic of a Dramatiq queue has a message that another program has sent; it is moved to the dead letters of "
    "the group.")
QUEUE_ASSIGNED: Final = _event(
    "info", "queue assigned", "group topic broker queue offset",
    "The rebalance gave this member a queue, which it consumes from this offset.")
BROKER_NOT_READ_FROM_FOR_A_WHILE: Final = _event(
    "info", "broker not read from for a while, another one of its name is", "topic broker queue address reason",
    "A master or slave did not answer a pull, or a slave refused it. Its queues are read from another broker of the "
    "same name for ten seconds; commits go to the master.")
QUEUE_GIVEN_UP: Final = _event(
    "info", "queue given up", "group topic broker queue offset",
    "The rebalance gave a queue of this member to another one; this offset was committed before.")
REBALANCE_FAILED: Final = _event(
    "warning", "rebalance failed, it is tried again", "group reason",
    "A rebalance pass raised, for example a strategy of the program; queues stay as they are. Tried again every "
    "second, logged once until it works.")
QUEUES_OF_A_TOPIC_ARE_NOT_KNOWN: Final = _event(
    "warning", "queues of a topic are not known, asked again", "group topic reason",
    "The topic has no route yet, or no broker of it can be reached. Queues stay as they are. Tried again every "
    "second, logged once until it works. Check the name of the topic.")
OFFSET_OF_A_QUEUE_IS_NOT_KNOWN: Final = _event(
    "warning", "offset of a queue is not known, asked again", "group reason",
    "A queue that this member gets is not consumed until its committed offset can be read; tried again every second.")
QUEUE_LOCK_LOST: Final = _event(
    "warning", "queue lock lost, another member may have it", "group topic broker queue",
    "A queue that is consumed in order waits until it is locked again.")
OFFSETS_NOT_COMMITTED: Final = _event(
    "warning", "offsets not committed, tried again", "group queues topic queue reason",
    "Tried again with the next commit; logged once until it works. If the consumer ends before, what it has consumed "
    "since the last commit is delivered again.")
OFFSET_RESET_BY_THE_BROKER: Final = _event(
    "info", "offset reset by the broker", "group topic broker queue offset",
    "An administrator has reset the offset of this group; the queue is consumed from there.")
OFFSET_OF_A_QUEUE_IS_CORRECTED: Final = _event(
    "warning", "offset of a queue is corrected", "topic broker queue offset to reason",
    "The offset to pull lies outside of the queue. If the queue begins later, its topic was deleted and made again, or "
    "messages have expired before they were consumed; the queue is consumed from its first message. If it ends before, "
    "a power loss took its last messages, or an administrator has reset the offset; it is consumed from there.")
PULL_FAILED: Final = _event(
    "warning", "pull failed, it is tried again", "topic broker queue offset reason",
    "Tried again after 1 s, later 30 s; every second if the topic does not exist (code 17), so that a topic that is "
    "made again is read from its first message. Logged once until it works.")
POP_FAILED: Final = _event(
    "warning", "pop failed, it is tried again", "topic broker queue reason",
    "A queue in mode POP; tried again after 1 s, later 30 s; logged once until it works.")
ACKNOWLEDGEMENT_FAILED: Final = _event(
    "warning", "acknowledgement failed, messages may be delivered again", "group topic broker count reason",
    "The broker did not take the acknowledgement of popped messages; they come back after their invisible time.")
POPPED_MESSAGE_WAITED_TOO_LONG: Final = _event(
    "info", "popped message waited too long, it comes again", "group topic queue offset",
    "No listener was free before the invisible time of a popped message ended. If this is frequent, raise "
    "pop_invisible_s or concurrency, or lower pull_batch.")
MESSAGE_NOT_KEPT_INVISIBLE: Final = _event(
    "warning", "message not kept invisible, another member may get it", "group topic queue offset reason",
    "A listener takes long, and the broker did not extend the invisible time of its popped message.")
DELAY_OF_A_RETRY_NOT_SET: Final = _event(
    "warning", "delay of a retry not set, the message comes after its time", "group topic queue offset key reason",
    "A listener failed, and the broker did not change the invisible time of the popped message.")
PULL_WORKS_AGAIN: Final = _event(
    "info", "pull works again", "topic broker queue",
    "A queue is pulled again after failures.")
LISTENER_FAILED: Final = _event(
    "error", "listener failed, the message is delivered again", "group topic queue offset key reason",
    "The listener raised; a traceback follows. The message comes again at the next delay level, or in order after "
    "suspend_s; after max_reconsume_times it is a dead letter in %DLQ%group.")
LISTENER_TAKES_TOO_LONG: Final = _event(
    "error", "listener takes too long, the message is delivered again", "group topic queue offset key seconds",
    "The listener ran longer than consume_timeout_s. A coroutine is cancelled; a thread goes on and is not available "
    "for other messages.")
MESSAGE_NOT_CONSUMED: Final = _event(
    "error", "message not consumed, tried again", "group topic queue offset reason",
    "A fault of the client; the message is delivered again after 5 s. Please report it.")
MESSAGE_NOT_SENT_BACK_SENT_AS_A_NEW_ONE: Final = _event(
    "info", "message not sent back, sent as a new one", "group topic queue offset key reason",
    "The broker did not take back a message whose listener failed, for example because its file has expired. The "
    "member has put a copy into the retry topic of the group, which is delivered at the same time.")
MESSAGE_NOT_SENT_BACK_CONSUMED_AGAIN_HERE: Final = _event(
    "warning", "message not sent back, consumed again here", "group topic queue offset key reason then",
    "The broker took back neither a message whose listener failed nor a copy of it. The message is delivered to this "
    "member again after 5 s, twice as long after each try, up to 5 min. The offset of its queue stays before it.")
MESSAGE_CAN_BE_NEITHER_CONSUMED_NOR_SENT_BACK: Final = _event(
    "error", "message can be neither consumed nor sent back, its queue stops",
    "group topic broker queue offset key tries",
    "The listener has failed and the broker has refused the message too often. The listener is not called for it any "
    "more; the broker is asked again every 5 min. The offset stays before it, and its queue stops 2,000 messages "
    "later. Allow the group to write %RETRY%group, or move the group past the offset.")
MESSAGE_OF_A_BROADCASTING_CONSUMER_IS_DROPPED_AFTER_A_FAILURE: Final = _event(
    "warning", "message of a broadcasting consumer is dropped after a failure", "group topic queue offset key",
    "The listener failed. Broadcasting consumers have no retries, as in RocketMQ.")

# _COMPACTION

A_TOPIC_WITH_COMPACTION_IS_LEFT_OUT: Final = _event(
    "warning", "a topic with compaction is left out", "store topic",
    "Spark reads the CommitLog, which may not have the last message of each key any more. Read the topic with a "
    "consumer.")
COMPACTED_A_QUEUE: Final = _event(
    "info", "compacted a queue", "topic queue_id files kept dropped position elapsed_ms",
    "Of all files of a compaction log but the last one, the last message of each key was kept. Keys are compacted up "
    "to the queue offset `position`.")
REMOVED_A_COMPACTION_LOG: Final = _event(
    "info", "removed a compaction log", "topic queue_id",
    "The topic was deleted, and so were its compacted files.")
AN_INTERRUPTED_COMPACTION_IS_SETTLED: Final = _event(
    "warning", "an interrupted compaction is settled", "path decision",
    "The last process stopped while compacted files replaced the old ones. `finish` and `forward` complete that, "
    "`undo` and `drop` return to the old files. No message is lost.")
UNITS_OF_A_COMPACTION_LOG_ARE_BUILT_AGAIN: Final = _event(
    "warning", "units of a compaction log are built again", "file",
    "The units of a file of a compaction log were missing, damaged or too few, so they were made from its records.")
A_QUEUE_ENDS_BEFORE_ITS_COMPACTION_LOG: Final = _event(
    "warning", "a queue ends before its compaction log", "topic queue_id queue_offset next_offset",
    "The ConsumeQueue or the end of the log was lost. The next message of the queue gets the offset after the "
    "compaction log, so no offset is given twice.")
POSITIONS_OF_COMPACTION_ARE_DAMAGED: Final = _event(
    "warning", "positions of compaction are damaged, all keys are compacted again", "file",
    "The file cannot be read. The next compaction takes longer.")
A_MESSAGE_WITHOUT_KEYS_IS_NOT_SERVED: Final = _event(
    "warning", "a message without keys is not served", "topic queue_id queue_offset",
    "A message without KEYS came into a topic with compaction, for example before the topic had this policy in a "
    "copy of topics.json. It has no place there.")
A_MESSAGE_OF_A_COMPACTION_LOG_IS_DAMAGED: Final = _event(
    "error", "a message of a compaction log is damaged, it is not served", "file phy_offset queue_offset",
    "The bytes of a message in a compaction log are not those that were written. A compaction leaves the message out "
    "after a copy of the bytes is in quarantine; the rest of the queue is compacted. `queue_offset` is -1 if it is "
    "not known. Each message is logged once, and 1,000 messages at most.")
MESSAGES_CANNOT_BE_COPIED_TO_A_COMPACTION_LOG: Final = _event(
    "error", "messages cannot be copied to a compaction log", "topic queue_id cause",
    "Messages stay in the CommitLog only, which is kept until they can be copied. They are served from there.")
A_QUEUE_CANNOT_BE_COMPACTED: Final = _event(
    "error", "a queue cannot be compacted", "topic queue_id cause",
    "The files stay as they are and are served. The next period tries again.")

# environment and kernels

A_SYNC_FAILED: Final = _event(
    "critical", "a sync failed, the store takes no more writes", "file cause",
    "The disk may have lost bytes that were written to this file or directory. Puts are refused, no sync is tried "
    "again, and messages can still be read. Check the disk, then restart: the next open recovers all durable "
    "messages.")
A_HINT_CANNOT_BE_SYNCED: Final = _event(
    "warning", "a hint cannot be synced, it is written again later", "file cause",
    "This file only makes a recovery shorter or a number exact. It counts as not written, and the next attempt "
    "writes all of it. Check the disk.")
SERVICE_STOPPED_AFTER_A_FAILED_SYNC: Final = _event(
    "critical", "service stopped after a failed sync", "name",
    "A background service ended because a sync failed; the store takes no more writes. Check the disk, then restart.")
SERVICE_STEP_FAILED: Final = _event(
    "error", "service step failed", "name failures",
    "A step of a background service failed with an unexpected error. The traceback follows, and the next step runs "
    "at its usual time.")
SERVICE_WAITS_FOR_DESCRIPTORS_OR_MEMORY: Final = _event(
    "warning", "service waits for descriptors or memory", "name cause",
    "A step of a background service was not possible because the process or the machine has no descriptor or memory "
    "left. The step is repeated; this line is logged once until it succeeds.")
SERVICE_WAITS_FOR_ROOM_ON_THE_DISK: Final = _event(
    "warning", "service waits for room on the disk", "name cause",
    "A step of a background service could not write because the disk or a quota is full. The step is repeated; this "
    "line is logged once until it succeeds. Make room.")
SYNC_OF_A_DIRECTORY_IS_PUT_OFF: Final = _event(
    "warning", "sync of a directory is put off", "directory cause",
    "A file was removed, and its directory could not be opened because descriptors were short. The directory is "
    "synced before the next file of it is removed.")
KERNEL_IS_NOT_COMPILED: Final = _event(
    "info", "kernel is not compiled", "name reason",
    "This loop over bytes runs in the interpreter, with the same results and many times slower.")
COMPILED_KERNEL_REFUSED: Final = _event(
    "warning", "compiled kernel refused, its source has changed", "name",
    "The compiled kernel was built from another source, so the interpreted one is used. Build again.")
CHECKSUMS_ARE_COMPUTED_BY_A_TABLE: Final = _event(
    "info", "checksums are computed by a table", "reason",
    "The checksum function of ISA-L cannot be called directly. A slower one with the same result is used.")
SIGNATURES_ARE_COMPUTED_BY_HASHLIB: Final = _event(
    "info", "signatures are computed by hashlib", "reason",
    "The SHA-1 of OpenSSL cannot be called directly, or returned another value. The result is the same, and the check "
    "of a request takes longer.")
CHECKSUMS_ARE_COMPUTED_BY_A_SLOW_TABLE: Final = _event(
    "warning", "checksums are computed by a table", "reason",
    "The checksum function of ISA-L returned another value than zlib, so it is not used.")

# files

HINT_CANNOT_BE_READ: Final = _event(
    "warning", "hint cannot be read, it counts as damaged", "file cause",
    "A file that the store can do without is not a regular file, is too large, or may not be read. The store works "
    "as if the file were missing; recovery may take longer.")
ODD_FILE_REPLACED: Final = _event(
    "warning", "odd file replaced", "file cause",
    "A name that the store writes a hint to was a FIFO, a socket, a device or a symbolic link to nothing. The name "
    "was removed and a regular file is written there.")

# the node

THE_LOCK_FILE_WAS_DELETED_WHILE_THE_STORE_IS_OPEN: Final = _event(
    "error", "the lock file was deleted while the store is open, it is made again", "file",
    "Without this file another process could open the same directory and overwrite messages. It was created again in "
    "time. Find out which program deletes it.")
THE_LOCK_FILE_WAS_REPLACED: Final = _event(
    "critical", "the lock file was replaced, the store takes no more writes", "file",
    "The lock file was deleted and another process made a new one, so that process may have written to the "
    "directory. The command `tailrace serve` ends with exit code 1. End every process that has the directory open, "
    "then start one; its recovery looks at the end of the log.")
CANNOT_LOOK_AT_THE_LOCK_FILE: Final = _event(
    "warning", "cannot look at the lock file", "file cause",
    "The lock file or its directory could not be checked or created again. Retried every second.")
REFUSED_CHANGE_MAY_RETURN_WITH_A_RESTART: Final = _event(
    "error", "refused change may return with a restart", "file reason",
    "A change of a state file was refused after the file was replaced, and the previous file could not get its name "
    "back. Until the next change the file has the refused change.")
CONFIG_FILE_UNREADABLE: Final = _event(
    "error", "config file unreadable", "file reason",
    "A file of config/ is not a JSON object. Its backup (.bak) is read instead, and the damaged file does not "
    "replace the backup.")
A_JAVA_BROKER_LEFT_WHAT_IS_NOT_SERVED: Final = _event(
    "warning", "a Java broker left what is not served", "kind count path consequence",
    "The directory has data that a Java broker would use and this broker does not; the consequence says what does "
    "not happen. The data is not changed, so a Java broker that opens the directory can use it.")
CANNOT_LOOK_AT_WHAT_A_JAVA_BROKER_LEFT: Final = _event(
    "warning", "cannot look at what a Java broker left", "path cause",
    "The search for data that is not served failed, so some of it may not be logged. The open continues.")
A_TOPIC_HAS_QUEUES_AND_NO_CONFIG: Final = _event(
    "warning", "a topic has queues and no config, it gets one", "topic queues",
    "config/topics.json does not have a topic that has messages. The topic gets a configuration with at least as "
    "many queues as it has.")
A_TOPIC_HAS_WAITING_MESSAGES_AND_NO_CONFIG: Final = _event(
    "warning", "a topic has waiting messages and no config, it gets one", "topic queues",
    "There was no config/topics.json at the open, and timers or messages of delay levels wait for this topic. Without "
    "a configuration a later open would take it for deleted.")
LMQ_QUEUES_ARE_KEPT_AND_GET_NO_NEW_MESSAGES: Final = _event(
    "warning", "LMQ queues are kept and get no new messages", "lmq_queues setting",
    "The store has light message queues (%LMQ%...), and the named settings are off. The queues stay, and lost files "
    "are rebuilt from the log, but new messages get no unit in them, and without enableLmq clients cannot pull from "
    "them.")
MESSAGES_ARE_IN_QUEUES_THAT_ARE_NOT_READ: Final = _event(
    "warning", "messages are in queues that are not read any more",
    "topic read_queues queues messages not_consumed",
    "A topic was given fewer queues to read (readQueueNums), and `queues` of the others hold `messages`, of which the "
    "group with the largest lag has not consumed `not_consumed`. No consumer reads them until the topic has as many "
    "queues to read as before; they expire as others do. Lags and statistics count them.")
SENDS_TO_A_LITE_TOPIC_ARE_REFUSED: Final = _event(
    "warning", "sends to a LITE topic are refused, enableLmq and enableMultiDispatch are not both true", "topic",
    "The topic was created or changed, and its messages need a place in LMQ queues. Set both settings and start the "
    "broker again.")
ENABLEMULTIDISPATCH_DOES_NOTHING_WITHOUT_ENABLELMQ: Final = _event(
    "warning", "enableMultiDispatch does nothing without enableLmq", "lmq_queues",
    "Without enableLmq no message gets a unit in an LMQ queue. Set both settings, or neither.")
CONSUMER_OFFSETS_ARE_TAKEN_OVER_FROM_THE_OTHER_FILE: Final = _event(
    "warning", "consumer offsets are taken over from the other file, enableLmq has changed", "file count",
    "With enableLmq all consumer offsets are in config/lmqConsumerOffset.json, without it in "
    "config/consumerOffset.json. The file of the present setting did not exist.")
NEWER_CONSUMER_OFFSETS_ARE_NOT_READ: Final = _event(
    "warning", "newer consumer offsets are not read, enableLmq has changed", "file",
    "Both files of consumer offsets exist, and the one of the other setting was written later. Groups continue at "
    "the offsets in the file of the present setting. To use the other one, stop the broker and delete the older "
    "file.")
OFFSETS_OF_LMQ_GROUPS_ARE_NOT_READ: Final = _event(
    "warning", "offsets of LMQ groups are not read, enableLmq is false", "file count",
    "Consumer groups named %LMQ%... have offsets that only a broker with enableLmq reads. The file is left as it is.")
THERE_IS_NO_ROOM_FOR_THE_CONFIG_OF_A_TOPIC: Final = _event(
    "warning", "there is no room for the config of a topic", "topic",
    "The disk is full, so the config that a topic with messages lacks could not be written.")
THE_STORE_OPENS_READ_ONLY: Final = _event(
    "error", "the store opens read-only, nothing is written or cut", "path cause",
    "The directory cannot be written. Recovery runs in memory, messages can be read, and puts are refused. Repair "
    "the cause and open the store again.")
CANNOT_OPEN_THE_STORE: Final = _event(
    "error", "cannot open the store", "path cause",
    "The open failed, and everything was closed again. The cause says what to repair.")
CANNOT_REMOVE_THE_ABORT_FILE: Final = _event(
    "warning", "cannot remove the abort file", "path cause",
    "The store was closed cleanly, but the abort file stays, so the next open recovers.")
THE_ABORT_FILE_STAYS: Final = _event(
    "warning", "the abort file stays, the next open recovers", "path",
    "The stop was not clean, so the next open checks the end of the log.")
A_PENDING_TIMER_CANNOT_BE_WRITTEN_AGAIN: Final = _event(
    "warning", "a pending timer cannot be written again", "phy_offset cause",
    "A file that must be deleted for lack of space holds a timer or a message of a delay level that is not due, and "
    "its copy was refused; this message and later ones are counted as lost.")
THE_TIMERS_COULD_NOT_BE_CLOSED_CLEANLY: Final = _event(
    "error", "the timers could not be closed cleanly", "cause",
    "State of the timers was not written at the close; the next open recovers it.")
QUEUES_OF_DELETED_TOPICS_ARE_REMOVED: Final = _event(
    "warning", "queues of deleted topics are removed", "topics",
    "Queues that have only messages of deleted topics are removed: a crash left them, or another program has built "
    "them from the log.")
FILES_OF_A_DELETED_TOPIC_STAY: Final = _event(
    "warning", "files of a deleted topic stay", "file cause",
    "The topic is deleted, but some files of its queues could not be removed. They are not used any more. The next "
    "open removes those of queues; remove a foreign file by hand.")
ATTRIBUTE_IGNORED: Final = _event(
    "warning", "attribute ignored", "topic cause",
    "A retention attribute of a topic has an invalid value. The settings of the broker decide how long the topic "
    "keeps its messages.")
DELETED_TOPICS: Final = _event(
    "info", "deleted topics", "topics kept",
    "Topics were deleted with everything that belongs to them. `kept` has retry topics that stay because another "
    "topic and group have the same retry topic.")
DELETION_IS_COMPLETED: Final = _event(
    "warning", "deletion is completed", "topics",
    "A crash has interrupted the deletion of topics. The open removes the rest of what belongs to them.")
PURGED_A_TOPIC: Final = _event(
    "info", "purged a topic", "topic queues",
    "Messages were released by a request. `queues` has the least offset of each queue before and now.")
A_QUEUE_IS_NOT_THE_ONE_THAT_WAS_PURGED: Final = _event(
    "warning", "a queue is not the one that was purged", "topic queue_id logical_min now",
    "A queue was created again, or lost its end, after it was purged, so its newer messages are shown.")
CANNOT_WRITE_LOGICAL_MINIMUM_OFFSETS: Final = _event(
    "warning", "cannot write logical minimum offsets", "file cause",
    "The offsets up to which topics have released messages are not on disk. The write is retried; after a crash "
    "before that, some of these messages are shown until the next pass.")

# the gRPC endpoint

GRPC_ENDPOINT_STARTED: Final = _event(
    "info", "gRPC endpoint started", "address tls",
    "Clients of RocketMQ 5 are served from now on, at this address.")
GRPC_CLIENT_FORGOTTEN: Final = _event(
    "info", "gRPC client forgotten", "client peer renewed",
    "A client of gRPC said goodbye, or sent no heartbeat for `channelExpiredTimeout`. `renewed` messages that it "
    "worked on are delivered again.")
GRPC_STREAM_ENDED: Final = _event(
    "info", "gRPC stream ended", "peer reason",
    "The connection of a client of gRPC broke while something was read from its stream or written to it.")
GRPC_CALLS_REFUSED: Final = _event(
    "warning", "gRPC calls refused", "reason address user count",
    "Calls of gRPC were refused so that others can be served: `no user in time`, the metadata of the call proves no "
    "user; `calls without user`, too many of them waited for their answers, and their connection was closed; `no "
    "message in time` and `no settings in time`, the request of a call or the settings of a stream did not arrive "
    "within grpcFirstMessageTimeoutSeconds; `calls of WHOM`, `clients of WHOM` and `bytes of settings of WHOM`, a "
    "share of grpcCallsMax, grpcClientsMax or grpcSettingsMaxBytes is used up. `address` and `user` are those of the "
    "last call, `count` is the number of calls since the last such line, of which there is at most one a minute for "
    "each reason.")
GRPC_CALL_FAILED: Final = _event(
    "warning", "gRPC call failed", "method peer reason",
    "A call failed for a reason that is not one of its own; the client got INTERNAL_SERVER_ERROR.")
GRPC_COMMAND_DROPPED: Final = _event(
    "warning", "gRPC command dropped, the client does not read", "peer",
    "A command for a client, such as the check of a transaction, was dropped because too many wait. The broker "
    "checks the transaction again later.")
REQUEST_OF_THE_BROKER_NOT_PASSED_ON: Final = _event(
    "warning", "request of the broker not passed on", "client code reason",
    "A request of the broker to a client of gRPC has a message that cannot be read.")
RECEIPT_NOT_RENEWED: Final = _event(
    "warning", "receipt not renewed", "group topic queue offset reason",
    "The invisible time of a message that a push consumer works on could not be extended. It is delivered again "
    "after its invisible time if that goes on.")
MESSAGE_NOT_GIVEN_BACK: Final = _event(
    "warning", "message not given back, it comes after its invisible time", "group topic reason",
    "A client of gRPC has gone, and a message that it worked on could not be made visible immediately.")
RECEIVED_MESSAGE_NOT_SETTLED: Final = _event(
    "warning", "received message not settled, it comes again", "reason",
    "A message that the client does not get, because of its tag or the number of its deliveries, could not be "
    "acknowledged or made a dead letter.")
BODY_SENT_AS_IT_IS_STORED: Final = _event(
    "warning", "body sent as it is stored", "topic queue offset reason",
    "A body was compressed in a way that clients of gRPC cannot read, and could not be decompressed here. The client "
    "decides what becomes of it.")

# remoting

CLOSE_A_CONNECTION_AFTER_A_BAD_FRAME: Final = _event(
    "warning", "close a connection after a bad frame", "peer cause",
    "A server sent bytes that are not a frame to a client of Tailrace. Its waiting requests get an error.")
CONNECTION_GIVEN_UP: Final = _event(
    "info", "connection given up, its peer is silent", "peer seconds",
    "Requests of a client of Tailrace timed out, and nothing has come from the server since. The next request opens "
    "a new connection. The server hangs, its machine is down, or a network device has dropped the connection.")
CONNECTION_CLOSED_FOR_BAD_FRAME: Final = _event(
    "warning", "connection closed for bad frame", "peer reason",
    "A client sent bytes that are not a frame of the protocol. Only its connection is closed.")
REQUEST_FAILED: Final = _event(
    "warning", "request failed", "code peer reason",
    "A request could not be served and got SYSTEM_ERROR. A traceback follows unless the cause is an invalid request "
    "or an error of the store.")
CONNECTION_CLOSED_FOR_IDLENESS: Final = _event(
    "info", "connection closed for idleness", "peer",
    "No bytes were sent or received over a connection for two minutes.")
CONNECTION_CLOSED_FOR_A_LIMIT: Final = _event(
    "warning", "connection closed for a limit", "peer reason count connections bytes",
    "A connection was closed so that others can be served: `connections`, there were more than "
    "serverSocketMaxConnections and this one was used least recently; `bytes`, all connections took more than "
    "serverBufferMaxBytes and this one took the most; `incomplete request`, its client stopped in the middle of a "
    "request; `answers are not read`, its client read nothing for serverChannelStallTimeoutSeconds; `slow http`, too "
    "many HTTP clients had not sent their request; `no user in time`, `connections without user` and `bytes without "
    "user`, unauthenticatedTimeoutSeconds, unauthenticatedConnectionsMax or unauthenticatedBufferMaxBytes, which are "
    "for connections on which no user is authenticated yet; `long request without user`, its request or header was "
    "too long for such a connection; `no call in time`, no call was served on a connection of gRPC within "
    "grpcFirstCallTimeoutSeconds; `calls without user`, too many calls without a user waited on a connection of gRPC. "
    "`count` connections were closed for this reason since the last such line, of which there is at most one a minute "
    "for each reason.")
REQUESTS_WAIT_FOR_MEMORY: Final = _event(
    "warning", "requests wait for memory", "bytes limit connections count",
    "Incomplete requests and unread answers of all connections take more than serverBufferMaxBytes. No request is "
    "read until the largest connections are closed. `count` is the number of times since the start. Logged at most "
    "once a minute.")
CONNECTION_CLOSED_BEFORE_A_REQUEST: Final = _event(
    "warning", "connection closed before a request", "peer reason detail count",
    "A connection was closed because of TLS: `not encrypted`, tls.server.mode is enforcing; `tls is disabled`; `no "
    "certificate of the server`, tls.server.certPath is not set; `timeout` and `too many`, its handshake was not "
    "completed, see tlsHandshakeTimeoutSeconds and tlsHandshakesMax; `closed by the client`; `refused by the "
    "client`, mostly because it does not trust the server's certificate; `certificate of the client`, it is missing "
    "or not valid; `handshake error`, these were no valid bytes of TLS. `detail` is OpenSSL's word for it. `count` "
    "connections were closed for this reason since the last such line, of which there is at most one a minute for "
    "each reason.")
TLS_IS_SET_UP: Final = _event(
    "info", "tls is set up", "mode certificate client_auth",
    "Connections with TLS are accepted. `certificate` is its file, or `made` by tls.test.mode.enable.")
THE_CERTIFICATE_IS_MADE_BY_THE_SERVER: Final = _event(
    "warning", "the certificate is made by the server", "reason",
    "The setting tls.test.mode.enable is on, or `--grpc-tls self-signed` is given: connections are encrypted, but no "
    "client can verify the server, so someone between them can read everything. Set tls.server.certPath and "
    "tls.server.keyPath.")
CERTIFICATE_LOADED_AGAIN: Final = _event(
    "info", "certificate loaded again", "certificate",
    "A file of the certificate has changed; new connections use it, open ones keep the old one.")
CERTIFICATE_CANNOT_BE_LOADED_AGAIN: Final = _event(
    "error", "certificate cannot be loaded again", "certificate reason",
    "A file of the certificate has changed and cannot be used: the old certificate is kept. The files are read again "
    "when they change.")
CERTIFICATE_EXPIRES_SOON: Final = _event(
    "warning", "certificate expires soon", "setting file hours",
    "The certificate, or the list of revoked ones, in the file of this setting expires in this many hours. Then "
    "clients refuse the server, or the server refuses clients. Replace the file; a restart is not needed. Logged once "
    "a day in the last 14 days, or in the last third of a shorter life.")
CERTIFICATE_HAS_EXPIRED: Final = _event(
    "error", "certificate has expired", "setting file hours",
    "It expired this many hours ago. With an expired certificate of the server, clients that verify it cannot connect. "
    "With an expired list of revoked certificates, no client with a certificate can connect. Replace the file.")
TLS_CONFIG_FILE_IS_LEFT_OUT: Final = _event(
    "warning", "tls config file is left out", "file reason",
    "The default file of TLS settings exists and cannot be read by this user.")
CONNECTION_ABORTED: Final = _event(
    "warning", "connection aborted", "peer reason",
    "A client does not read its answers. Unsent answers are dropped.")

# segments

CANNOT_MAKE_THE_NEXT_SEGMENT_FILE_AHEAD: Final = _event(
    "warning", "cannot make the next segment file ahead", "file cause",
    "The next file of the log could not be created in advance, usually because the disk is full. The put that needs "
    "the file retries, and fails if the disk is still full.")
BLOCKS_ARE_KEPT: Final = _event(
    "info", "blocks are kept", "file cause",
    "The file system cannot free the disk blocks after the end of a full file; they are used until the file is "
    "deleted.")
REMOVE_SEGMENT_FILE_AFTER_THE_END: Final = _event(
    "info", "remove segment file after the end", "file",
    "A file is after the end that was found, so it is removed. If it is a file of the CommitLog, its bytes are in "
    "quarantine.")
A_SEGMENT_IS_READ_WITHOUT_A_MAPPING: Final = _event(
    "info", "a segment is read without a mapping", "file cause",
    "A CommitLog file cannot be mapped (no permission to write it, or no address space). Each of its messages is "
    "read with a system call.")
REMOVE_EMPTY_SEGMENT_FILE: Final = _event(
    "warning", "remove empty segment file", "file",
    "A crash has left an empty file that was being created.")
NOT_A_SEGMENT_FILE: Final = _event(
    "warning", "not a segment file, it is left alone", "file",
    "A file in a directory of segments or of the index has another name than these files. It is neither read nor "
    "removed.")
A_LEFT_OVER_FILE_IS_MOVED_ASIDE: Final = _event(
    "warning", "a left-over file is moved aside", "file to",
    "A new file was to be made, and a file of that name existed: a removal had failed, or another program made it. It "
    "is not used and not deleted. Look at it, then move it away.")
A_FILE_IS_MADE_IN_ANOTHER_DIRECTORY: Final = _event(
    "warning", "a file is made in another directory", "cause",
    "One of several log directories is full, so the file is created in the next one.")
READ_BY_THE_SETTINGS_OF_THE_DIRECTORY: Final = _event(
    "info", "read by the settings of the directory", "file settings",
    "These settings were not given, so those in this file are used, with which the directory was written. To use "
    "others, give them, with their default values if need be, or delete this file.")
SETTINGS_OF_THE_DIRECTORY_CANNOT_BE_READ: Final = _event(
    "warning", "settings of the directory cannot be read", "file cause",
    "The file of settings in the store is damaged. Defaults are used until the next open writes it. Pass the "
    "settings file that the store was written with.")
CANNOT_KEEP_THE_SETTINGS_OF_THE_DIRECTORY: Final = _event(
    "warning", "cannot keep the settings of the directory", "file cause",
    "Commands without the same settings file will use the defaults for this directory.")
FILES_ARE_SYNCED_EARLY_TO_CLOSE_THEM: Final = _event(
    "warning", "files are synced early to close them, raise maxOpenFiles", "limit files",
    "More segment files have unsynced bytes than may be open together. No message is at risk; dispatch is slower "
    "because each such file costs a sync. Logged once.")

# Spark

OFFSETS_OF_AN_OLDER_TOPIC_OF_THE_SAME_NAME_ARE_LEFT_OUT: Final = _event(
    "info", "offsets of an older topic of the same name are left out", "topic queue_id until",
    "A topic was deleted and made again since it was archived; only the newer one is read.")
LAG_OF_A_STREAM: Final = _event(
    "info", "lag of a stream", "query batch messages bytes",
    "Messages and bytes that a query still has to read after a batch.")
CANNOT_COMPUTE_THE_LAG_OF_A_STREAM: Final = _event(
    "warning", "cannot compute the lag of a stream", "query cause",
    "The query's source is another one than the listener's options name, or the store cannot be read; the query goes "
    "on.")
ARCHIVED_A_SEGMENT: Final = _event(
    "info", "archived a segment", "segment messages files verified",
    "A CommitLog file is in the archive, and was read back when verified says so.")
A_SEGMENT_WAS_COMPARED_WITH_THE_ARCHIVE: Final = _event(
    "info", "a segment was compared with the archive", "segment archive",
    "Before retention deletes a CommitLog file it reads the file and the archived files of it and compares "
    "checksums; all of them were right.")
A_SEGMENT_IS_NOT_ARCHIVED_AS_ITS_MANIFEST_SAYS: Final = _event(
    "warning", "a segment is not archived as its manifest says", "segment archive cause",
    "The archive is of another store, or a file of it is damaged: the CommitLog file stays. Run `tailrace pipeline "
    "archive STORE ARCHIVE --verify`.")
A_SEGMENT_IS_ARCHIVED_AGAIN: Final = _event(
    "warning", "a segment is archived again", "segment cause",
    "A file of an archived segment is missing or has another size, and the log still has the segment.")
A_SEGMENT_OF_THE_ARCHIVE_IS_DAMAGED: Final = _event(
    "warning", "a segment of the archive is damaged", "segment cause",
    "A run of `tailrace pipeline archive --verify` found it. It is archived again if the log still has it; otherwise "
    "the report names it and a copy is needed.")
A_MANIFEST_OF_THE_ARCHIVE_IS_MISSING: Final = _event(
    "warning", "a manifest of the archive is missing", "archive topic queue_id cause",
    "A manifest names another one that is not there, and failOnDataLoss is false: messages of that segment are left "
    "out.")
AN_ARCHIVE_HAS_MANIFESTS_WITHOUT_A_CHECKSUM: Final = _event(
    "warning", "an archive has manifests without a checksum", "archive manifests first",
    "Manifests of an older version: a changed or missing manifest is not noticed, its files are. `tailrace pipeline "
    "archive --verify` writes them again with checksums and links.")
A_SEGMENT_WAS_DELETED_BEFORE_IT_WAS_ARCHIVED: Final = _event(
    "warning", "a segment was deleted before it was archived", "segment",
    "Retention was faster than the archive job; the messages of this file are not in the archive.")
DATA_LOST: Final = _event(
    "warning", "data lost", "store topic queue_id from until skipped",
    "Offsets that a query needs do not exist any more; with failOnDataLoss=false it continues after them.")
DATA_LOST_IN_THE_LOG: Final = _event(
    "warning", "data lost", "store phy_offset until skipped",
    "Records were deleted while a task read them; with failOnDataLoss=false it goes on without them.")
LMQ_QUEUES_ARE_LEFT_OUT: Final = _event(
    "warning", "LMQ queues are left out, their messages are read by their own topics", "store lmq_queues",
    "Spark does not read light message queues (%LMQ%...). Each message that they name is read by its own topic, and "
    "its property INNER_MULTI_DISPATCH names the LMQ queues. Messages that were sent to an LMQ queue itself are not "
    "read. Logged once for each store.")
DAMAGED_RECORD: Final = _event(
    "warning", "damaged record", "store phy_offset reason",
    "A record that was to be read is damaged; mode says what becomes of it.")
DAMAGED_RECORDS_DROPPED: Final = _event(
    "warning", "damaged records dropped", "store dropped",
    "With mode=DROPMALFORMED a task has left this number of damaged records out.")
QUEUE_WENT_BACK: Final = _event(
    "warning", "queue went back", "store topic queue_id known end",
    "A queue of a checkpoint ends before its offset, or does not exist: the topic was deleted, or the store was "
    "replaced; with failOnDataLoss=false the query continues.")
QUEUE_IS_ANOTHER_ONE: Final = _event(
    "warning", "queue is another one than the checkpoint names", "store topic queue_id known first reason",
    "The topic was deleted and created again, or the store was replaced or restored from a copy. Messages of the queue "
    "before, from the offset `known` onwards, are not read. With failOnDataLoss=false the queue is read from its first "
    "message, `first`.")
STAGED_ROWS_ARE_NOT_WHAT_THE_TASK_WROTE: Final = _event(
    "warning", "staged rows are not what the task wrote", "file",
    "What a Spark task staged cannot be read back, so the driver scans its segment itself; check that driver and "
    "executors see one staging directory.")
GOES_ON_WITH_A_BATCH: Final = _event(
    "info", "goes on with a batch", "txn first",
    "An earlier try of this piece of a batch had sent a part; the rest follows.")
SENDS_A_REQUEST_AGAIN: Final = _event(
    "warning", "sends a request again", "txn first cause",
    "A send failed and the broker has none of its messages, so they are sent once more.")

# retention

LOOK_FOR_FILES_TO_DELETE: Final = _event(
    "debug", "look for files to delete", "trigger",
    "A pass of retention begins.")
DELETED_AN_EXPIRED_FILE: Final = _event(
    "info", "deleted an expired file", "file min_phy_offset",
    "A CommitLog file was old enough, and nothing kept it.")
DELETED_BEFORE_ITS_TIME: Final = _event(
    "warning", "deleted before its time", "file expires_ms reason pins lost timers_rewritten timers_lost",
    "The disk was so full that a CommitLog file was deleted before it expired. The line has its messages by topic "
    "and the pins that it had. Give the store more room or a shorter retention time.")
SPACE_IS_SHORT_AND_NOTHING_WAS_DELETED: Final = _event(
    "warning", "space is short and nothing was deleted", "reason cause",
    "A disk is over its limit, and the oldest file must stay for the reason in `cause`. Logged once for each cause.")
A_FILE_TO_DELETE_IS_BEING_READ: Final = _event(
    "warning", "a file to delete is being read", "file",
    "A reader still has a lease on the oldest file. The file is deleted when the reader ends, or after "
    "destroyMapedFileIntervalForcibly.")
CANNOT_DELETE_A_FILE: Final = _event(
    "warning", "cannot delete a file", "file cause",
    "An expired CommitLog file could not be moved to the trash. The next pass retries.")
ENDED_A_FILE_BY_ITS_AGE: Final = _event(
    "info", "ended a file by its age", "file",
    "The first message of the last file is older than commitLogRollTime, so a new file was started and this one can "
    "expire.")
CANNOT_END_A_FILE_BY_ITS_AGE: Final = _event(
    "warning", "cannot end a file by its age", "file cause",
    "The file after it could not be created. The next pass retries.")
EXPIRED_FILES_ARE_DELETED_BY_HAND: Final = _event(
    "info", "expired files are deleted by hand", "passes",
    "Deletion was requested by hand: this number of passes ignores deleteWhen.")
FILES_ARE_DELETED_TO_FREE_REQUESTED_BYTES: Final = _event(
    "info", "files are deleted to free requested bytes", "bytes",
    "A call of `tailrace retention --free`: the oldest CommitLog files without a pin are deleted.")
THE_REQUEST_TO_FREE_BYTES_HAS_ENDED: Final = _event(
    "info", "the request to free bytes has ended", "bytes freed files cause",
    "This many bytes of this number of files are freed. The cause names the file that stays, if there is one.")
DELETED_QUEUE_FILES: Final = _event(
    "info", "deleted queue files", "topic queue_id files min_offset",
    "These files of a queue had only units of deleted messages.")
CANNOT_DELETE_A_QUEUE_FILE: Final = _event(
    "warning", "cannot delete a queue file", "topic queue_id cause",
    "A file of a queue could not be deleted. The next pass retries.")
DELETED_AN_EXPIRED_INDEX_FILE: Final = _event(
    "info", "deleted an expired index file", "file",
    "This file of the key index had only entries of deleted messages.")
CANNOT_DELETE_AN_INDEX_FILE: Final = _event(
    "warning", "cannot delete an index file", "cause",
    "A file of the key index could not be deleted. The next pass retries.")
A_DELETED_FILE_IS_STILL_READ: Final = _event(
    "warning", "a deleted file is still read, its room comes back later", "file",
    "The name of the file is removed. Its space is freed when the last reader closes it.")
CANNOT_DELETE_A_FILE_IN_THE_TRASH: Final = _event(
    "warning", "cannot delete a file in the trash", "file cause",
    "A deleted file still takes space. Retried after 10 s.")
A_FORCED_DELETION_IS_NOT_ON_RECORD: Final = _event(
    "warning", "a forced deletion is not on record", "file cause",
    "A file was deleted before it expired, and the list of such deletions could not be written. This log has the "
    "only record.")
PUTS_ARE_REFUSED: Final = _event(
    "error", "puts are refused", "reason",
    "A disk is too full. Producers get an error until files are deleted or there is more room.")
PUTS_ARE_TAKEN_AGAIN: Final = _event(
    "info", "puts are taken again", "usage",
    "The disks have room again.")
SENDS_ARE_REFUSED: Final = _event(
    "warning", "sends are refused", "reason count cause",
    "Producers get an error. count is the number since the last such line, of which there is at most one a minute for "
    "each reason: disk_full, no_room (no blocks or no file for the next bytes of the log; /ready says so, too), "
    "not_writeable, no_topic (the topic does not exist and cannot be created now), flow_control (more sends wait for "
    "the disk than the broker holds), timer_flow_control, lmq_quota.")
SENDS_FIND_ROOM_AGAIN: Final = _event(
    "info", "sends find room again", "refused",
    "A send found no room for the next bytes of the log before. Now there is room.")
A_FILE_SYSTEM_IS_TOO_SMALL_FOR_THE_LOG: Final = _event(
    "warning", "a file system is too small for the log", "path bytes needed settings",
    "The log needs room for two of its files, because the last one is never deleted, and for one step in which blocks "
    "are reserved. Sends fail when the file system is full, or always. Use a larger file system, or set smaller sizes, "
    "such as those in settings; mappedFileSizeCommitLog takes effect only in a new directory.")
DISK_CANNOT_BE_MEASURED: Final = _event(
    "error", "disk cannot be measured", "cause",
    "The use of a disk is not known. Check its mount.")

# the store

THE_STORE_COULD_NOT_BE_CLOSED_CLEANLY: Final = _event(
    "error", "the store could not be closed cleanly", "cause",
    "Not everything was flushed at the close. The next open recovers.")
CANNOT_WRITE_HOW_FAR_THE_LOG_IS_FLUSHED: Final = _event(
    "debug", "cannot write how far the log is flushed", "cause",
    "Other processes that read the directory show new messages a little later.")
FLUSH_FAILED: Final = _event(
    "critical", "flush failed, waiting puts are not acknowledged", "cause",
    "A sync of the log failed. Waiting puts are answered as not durable, and no sync is retried. Check the disk, "
    "then restart.")
AN_ANSWER_TO_A_PUT_FAILED: Final = _event(
    "error", "an answer to a put failed", "status",
    "The program that put a message raised an error when it was called with the result of the sync. Other puts get "
    "their answers. The traceback follows.")
THE_CHECKPOINT_CANNOT_BE_WRITTEN: Final = _event(
    "warning", "the checkpoint cannot be written, the old one stays", "cause",
    "The disk is full or fails, or descriptors or memory are short. A recovery would start further back, and no "
    "message is at stake; the next pass writes the checkpoint.")
FLUSH_WAITS_FOR_DESCRIPTORS_OR_MEMORY: Final = _event(
    "warning", "flush waits for descriptors or memory", "cause",
    "The CommitLog could not be opened for its sync. No sync was tried, so nothing failed; the next step tries it. "
    "Puts under SYNC_FLUSH wait for that, at most syncFlushTimeout.")
A_SIZE_OF_THE_DIRECTORY_IS_IGNORED: Final = _event(
    "warning", "a size of the directory is ignored", "cause",
    "The length of the files of a directory, or in its hint, is not valid. The setting is used instead.")
CANNOT_WRITE_THE_GEOMETRY_HINT: Final = _event(
    "warning", "cannot write the geometry hint", "file cause",
    "The next open recognises the file sizes from the files, as in a directory of a Java broker.")
STORETPS: Final = _event(
    "info", "[STORETPS]", "put_tps get_found_tps get_miss_tps put_failed put_max_ms",
    "Once a minute in which there was a put or a read message: puts, gets that found messages and gets that did not, "
    "a second, each over 10, 60 and 600 seconds; failed puts since the start and the slowest put.")
NO_QUEUE_FOR_A_TOPIC_THAT_CANNOT_BE_A_DIRECTORY: Final = _event(
    "error", "no queue for a topic that cannot be a directory", "topic count phy_offset",
    "Records have a topic that cannot be the name of a directory, for example with a slash. They stay in the log "
    "without a queue.")
THE_LAST_MESSAGES_OF_A_QUEUE_ARE_LOST: Final = _event(
    "warning", "the last messages of a queue are lost, its offsets go on", "topic queue_id from to",
    "A segment file of the log is missing, and with it the last messages of this queue. New messages come after "
    "their places, so that no consumer takes one for a message it had.")
MAYBE_LOGIC_QUEUE_ORDER_WRONG: Final = _event(
    "error", "maybe logic queue order wrong", "topic queue_id expected actual",
    "The next record of a queue has a later queue offset than expected: the records between are damaged or missing. "
    "Their offsets get pre-blank units; if the offset itself is damaged, the record is skipped.")
THE_FIRST_FILES_OF_A_QUEUE_ARE_GONE: Final = _event(
    "warning", "the first files of a queue are gone, it is rebuilt", "topic queue_id",
    "The log has records of a queue that are older than its first file. Its files are removed and rebuilt from the "
    "log.")
RECORDS_HAVE_NO_PLACE_IN_THEIR_QUEUE: Final = _event(
    "error", "records have no place in their queue", "topic queue_id queue_offset count phy_offset",
    "The queue offsets of these records belong to other records, or are outside of the queue. The records stay in "
    "the log and cannot be read by queue.")
QUEUE_STARTS_AGAIN: Final = _event(
    "warning", "queue starts again", "topic queue_id queue_offset phy_offset",
    "A topic was deleted and created again. From this offset onwards the queue has the newer messages.")
CONFIGURATION_OF_A_JAVA_BROKER_IS_IN_ROCKSDB_AND_IS_NOT_READ: Final = _event(
    "warning", "configuration of a Java broker is in RocksDB and is not read", "kind path export",
    "A broker with storeType=defaultRocksDB kept topics, groups or consumer offsets there. All messages are shown; "
    "topics get defaults, and groups have no offsets. Export the configuration with the command in `export` while no "
    "process has the directory open, then open the store again.")
INDEX_FILE_IS_NOT_WHOLE: Final = _event(
    "warning", "index file is not whole, later ones are rebuilt", "file",
    "An index file that is not the last one is damaged or lacks entries. Recovery rebuilds it, as far as the progress "
    "does not cover it, and the later files from the log.")
A_MESSAGE_IS_DAMAGED: Final = _event(
    "error", "a message is damaged, it is not served", "topic queue_id queue_offset phy_offset",
    "The bytes of a message have changed since it was stored, so consumers do not get it. `tailrace verify` lists "
    "all damage.")
A_RECORD_CANNOT_BE_READ: Final = _event(
    "error", "a record cannot be read, it counts as damaged", "phy_offset tries cause",
    "The disk could not read a record of the log several times in ten seconds or more. Consumers, timers and other "
    "services leave the record out from now on. Other records are not affected. Check the disk.")
MULTI_DISPATCH_IS_OFF: Final = _event(
    "warning", "multi-dispatch is off, messages get no place in the LMQ queues that they name", "topic names",
    "A message has the property INNER_MULTI_DISPATCH and is stored in its own queue only, because enableLmq and "
    "enableMultiDispatch are not both on. Logged for the first such message.")
DISPATCH_STOPPED_AT_A_BAD_RECORD: Final = _event(
    "error", "dispatch stopped at a bad record", "file phy_offset reason",
    "Bytes in the log of a running store are not a valid record. Later messages cannot be read until the store is "
    "opened again and recovers.")
REPUT_JUMPS_TO_THE_FIRST_FILE: Final = _event(
    "warning", "reput jumps to the first file", "from to",
    "The next records to dispatch have been deleted. Dispatch continues with the first record of the log.")

# recovery

RECOVER: Final = _event(
    "info", "recover", "mode from why",
    "Recovery starts to check the log at position `from`, for the reason in `why`.")
RECOVERING: Final = _event(
    "info", "recovering", "at of percent scanned",
    "A recovery is running. Logged about once a second.")
RECOVERY_PROGRESS_SAVED: Final = _event(
    "info", "recovery progress saved", "at",
    "If this recovery is interrupted, the next one starts here.")
RECOVER_OVER: Final = _event(
    "info", "recover over", "mode to scanned ms",
    "The log ends at `to`; `scanned` records were read in `ms` milliseconds.")
SEGMENT_FILE_OF_A_WRONG_LENGTH_IS_MENDED: Final = _event(
    "error", "segment file of a wrong length is mended", "file expected actual",
    "A CommitLog file was too short or too long. Its length is corrected, and bytes after its end are in quarantine.")
STEPPED_OVER_DAMAGE: Final = _event(
    "error", "stepped over damage, a Java broker would end the log there", "file phy_offset length reason",
    "Bytes in the middle of the log are not a valid record; they are copied to quarantine and the records after them "
    "are kept.")
DAMAGE_IS_SEALED: Final = _event(
    "warning", "damage is sealed", "phy_offset length",
    "A placeholder record was written over damage, so that a Java broker reads on after it.")
DAMAGE_IS_TOO_SMALL_TO_BE_SEALED: Final = _event(
    "warning", "damage is too small to be sealed", "phy_offset length",
    "A placeholder record does not fit there. A Java broker ends the log at this position.")
QUEUE_FILES_ARE_REMOVED: Final = _event(
    "warning", "queue files are removed, to be rebuilt", "topic queue_id cause",
    "Files of a queue cannot be used; they are rebuilt from the log.")
THE_LOG_IS_EMPTY: Final = _event(
    "warning", "the log is empty, its messages are gone", "topic queue_id max",
    "The log has no file, and a queue exists. The queue continues at `max`, so that consumers neither miss nor "
    "repeat messages.")
THE_RECORD_BEFORE_THE_END_IS_TORN: Final = _event(
    "warning", "the record before the end is torn", "phy_offset",
    "The last record has zeros in its topic or properties, as after a power loss. The log ends before it.")
A_RECORD_AFTER_A_GAP_IS_STALE: Final = _event(
    "warning", "a record after a gap is stale", "phy_offset topic queue_id queue_offset store_timestamp",
    "A record after damage was left after an earlier end of the log. It does not count, so recovery does not step "
    "over the damage because of it.")
QUARANTINE_IS_FULL: Final = _event(
    "warning", "quarantine is full, the oldest evidence goes", "file bytes",
    "The limit of tailrace/quarantine/ is reached, so the oldest copies are deleted. Move copies that you need to "
    "another directory.")

# timers

TIMER_RECOVERY: Final = _event(
    "info", "timer recovery", "mode reason units cut_at queue_offset read_time_ms",
    "Timers are loaded by a replay of the timer log, or rebuilt from the CommitLog. Delivery continues at "
    "`read_time_ms`, enqueueing at `queue_offset`.")
TIMERS_ARE_REBUILT_FROM_THE_COMMITLOG: Final = _event(
    "warning", "timers are rebuilt from the CommitLog", "reason",
    "The files of the timers cannot be used; all pending timers are found in the log again.")
TIMER_LOG_IS_CUT_AT_ITS_FIRST_BAD_UNIT: Final = _event(
    "warning", "timer log is cut at its first bad unit", "pos",
    "The units after this position were not written completely. Their messages are enqueued again from the "
    "CommitLog.")
TIMER_LOG_FILE_IS_DELIVERED_AND_REMOVED: Final = _event(
    "info", "timer log file is delivered and removed", "file",
    "All timers of this file are delivered.")
REMOVE_TIMER_LOG_FILE: Final = _event(
    "info", "remove timer log file", "file",
    "A rebuild of the timers removes the files of the timer log.")
TIMER_LOG_APPEND_FAILED: Final = _event(
    "error", "timer log append failed, enqueue waits", "queue_offset cause",
    "New timers cannot be written, usually because the disk is full. They wait in their queue, and enqueueing is "
    "retried.")
TIMER_QUEUE_OFFSET_IS_BELOW_THE_LEAST_ONE: Final = _event(
    "warning", "timer queue offset is below the least one", "offset min_offset",
    "Timer messages were deleted by retention before they were enqueued; enqueueing continues after them.")
TIMER_MESSAGE_UNREADABLE: Final = _event(
    "error", "timer message unreadable", "phy_offset size cause",
    "The message of a timer was deleted or is damaged, so it cannot be delivered. Counted as timerUnreadable.")
READ_OF_A_WAITING_MESSAGE_FAILED: Final = _event(
    "warning", "a waiting message cannot be read now", "phy_offset size reads cause",
    "A read of a timer or of a message of a delay level failed: descriptors or memory are short, or the disk returned "
    "an error. Only this message waits; it is read again within 5 s. At most one line in 10 s, with the number of "
    "failed `reads` since the last one. Counted as timerReadFailed or scheduleReadFailed.")
WAITING_MESSAGE_IS_LEFT_OUT: Final = _event(
    "error", "a waiting message cannot be read, it is left out", "phy_offset size cause",
    "For at least 60 s the disk returned an error for a timer or a message of a delay level, and other bytes of the "
    "segment can be read. The message is not delivered. Quarantine lists it, with the bytes that can be read.")
LIST_OF_A_TIMER_SLOT_CANNOT_BE_READ: Final = _event(
    "error", "list of a timer slot cannot be read now", "time_ms pos cause",
    "A read of the timer log failed. The timers of that second wait, and the list is read again within 5 s. If the "
    "disk keeps returning an error, the next open rebuilds the timers from the CommitLog.")
LIST_OF_A_TIMER_SLOT_IS_BROKEN: Final = _event(
    "error", "list of a timer slot is broken", "time_ms pos units",
    "The list of timers of one time ends at a unit that does not belong to it; those found before are delivered.")
STORE_TIMES_ARE_AHEAD: Final = _event(
    "warning", "store times are ahead of the wall clock", "ahead_ms last_store_time",
    "The wall clock was ahead when the last messages were stored, or it was set back. Until the clock has reached the "
    "last store time, in ms since 1970, messages get that one; look-ups by time and ages count from the wall clock.")
CANNOT_KEEP_TIMES_OF_THE_WALL_CLOCK: Final = _event(
    "warning", "cannot keep times of the wall clock", "file cause",
    "Times at which messages were stored while store times are ahead could not be written. After a restart look-ups "
    "by time in that period may be answered with an earlier message.")
WALL_CLOCK_STEPPED_BACK: Final = _event(
    "warning", "wall clock stepped back", "by_ms",
    "Timers of this period may have been delivered already, so the log is checked before each delivery.")
TIMER_PUT_BACK_FAILED: Final = _event(
    "warning", "timer put-back failed, it is tried again", "phy_offset status cause",
    "A due timer could not be put into its topic. It stays due.")
MESSAGE_PARKED: Final = _event(
    "error", "message parked", "phy_offset topic messages reason",
    "Due messages that can never be put into their topic, or whose topic was deleted, are in %DLQ%TAILRACE_TIMER with "
    "the reason in their properties. `messages` were parked for the same reason in one step of the service; "
    "`phy_offset` is the position of the first one.")
PROPERTIES_LEFT_OUT_OF_A_COPY: Final = _event(
    "warning", "properties left out of a copy", "topic message copy left_out",
    "A message of an older release or of a Java broker has nearly as many bytes of properties as a record may have. "
    "A retry, dead letter or parked message has more of them, so its copy lacks these; the message itself has all. "
    "New sends of that size are refused.")
QUEUE_OF_WAITING_MESSAGES_IS_GONE: Final = _event(
    "warning", "queue of waiting messages is gone", "topic queue_id to messages",
    "Timers or messages of delay levels were put for a queue that the topic does not have any more. They are "
    "delivered to another queue, which can be read; those of one queue keep their order.")
FAR_TIMERS_COST_A_RECORD_IN_EACH_ROUND: Final = _event(
    "warning", "far timers cost a record in each round", "max_delay_s rounds window_s",
    "This timerMaxDelaySec allows timers that are rolled more than once: each round writes the message to the "
    "CommitLog again. `rounds` is the number of records for the longest delay.")
TIMER_PROGRESS: Final = _event(
    "info", "timer progress", "read_behind_ms offset_behind to_look_at waiting put_back congestion",
    "At the interval of timerProgressLogIntervalMs, if a figure has changed: how late delivery is, timers that are "
    "not enqueued yet, those of begun slots that are kept as units and those that wait one by one, timers delivered "
    "since the start, and timers of slots to come.")
DELAY_OFFSET_CORRECTED: Final = _event(
    "warning", "delay offset corrected", "level offset to min_offset max_offset",
    "config/delayOffset.json names an offset that the queue of a delay level does not have.")
DELAY_OFFSET_WITHOUT_A_QUEUE: Final = _event(
    "warning", "delay offset without a queue", "level offset to",
    "config/delayOffset.json has a delay level that has no messages. The level starts at 0.")
DELIVER_TIMES_ARE_TOO_FAR_AHEAD: Final = _event(
    "warning", "deliver times are too far ahead", "level offset",
    "Deliver times in a delay level are later than now plus the delay: the wall clock was stepped back. Its messages "
    "wait at most for the delay, counted from now.")
DELAYED_MESSAGE_HELD_UP: Final = _event(
    "warning", "delayed message held up, it is tried again", "level offset phy_offset cause",
    "A due message of a delay level could not be put into its topic, or the queue of the level (`phy_offset` is -1) or "
    "more than 32 of its messages cannot be read. The later messages of the level wait.")
DELAYED_MESSAGE_UNREADABLE: Final = _event(
    "error", "delayed message unreadable", "phy_offset size cause",
    "A message of a delay level was deleted or is damaged, so it cannot be delivered. Counted as scheduleUnreadable.")

EVENTS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Event))
"""All events."""
