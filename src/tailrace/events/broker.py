"""Lines of the broker, of access control and of the command `serve`."""

from __future__ import annotations

from typing import Final

from tailrace.events.declaration import event

PORTS_TAKEN: Final = event(
    "info", "ports taken", "broker namesrv advertised",
    "The broker listens. It refuses requests until its store is open.")
VIP_PORT_LEFT_OUT: Final = event(
    "warning", "VIP port left out", "address reason",
    "The broker could not listen on the port two below its own.",
    do="Nothing, unless clients set `vipChannelEnabled` or a slave is a Java broker.")
BROKER_STARTED: Final = event(
    "info", "broker started", "broker namesrv advertised",
    "Clients are served at these addresses.")
ADVERTISED_ADDRESS_IS_OF_THIS_MACHINE_ONLY: Final = event(
    "warning", "the advertised address is reached from this machine only, set brokerIP1", "advertised listens",
    "Routes have a loopback address, although the broker listens for other machines.",
    do="Set `brokerIP1` to the address that clients use.")
ANYBODY_WHO_REACHES_THIS_ADDRESS_MAY_READ: Final = event(
    "warning", "anybody who reaches this address may read, write and delete", "address",
    "`--allow-remote` is given, and there is no access control.",
    do="Switch [access control](../how-to/operate/users.md) on, or use a firewall.")
EVERY_USER_MAY_READ: Final = event(
    "warning", "every user may read, write and delete", "address",
    "Users must prove who they are, but `authorizationEnabled` is false.",
    do="Set `authorizationEnabled=true` and give each user permissions.")
ANYBODY_WHO_REACHES_THIS_ADDRESS_MAY_READ_METRICS: Final = event(
    "warning", "anybody who reaches this address may read metrics", "address",
    "Metrics name topics and groups.",
    do="Set [`metricsNeedsUser` or `metricsTokenFile`](../how-to/operate/monitor.md#let-prometheus-read-the-metrics), "
       "or use a firewall.")
CONNECTIONS_WITH_USERS_ARE_NOT_ENCRYPTED: Final = event(
    "warning", "connections with users are not encrypted", "address",
    "`--allow-plain` is given. Whoever records a connection can [send as its "
    "user](../how-to/operate/tls.md#what-a-recording-is-worth).",
    do="Set `tls.server.mode=enforcing`, or listen on 127.0.0.1.")
SIGNED_REQUESTS_ARE_NOT_ENCRYPTED: Final = event(
    "warning", "signed requests are not encrypted", "address",
    "The broker sends requests with a user's signature to this name server without TLS.",
    do="Set `tls.enable=true` and `tls.client.trustCertPath`.")
ANYBODY_WHO_REACHES_THIS_ADDRESS_MAY_READ_METRICS_AND_MESSAGES: Final = event(
    "warning", "anybody who reaches this address may read metrics and messages", "address",
    "The broker has no users, so the console asks for none.",
    do="Switch [access control](../how-to/operate/users.md) on, or listen on 127.0.0.1.")
ACCESS_DENIED: Final = event(
    "warning", "access denied", "user address code action resource reason more others",
    "`code` names a request, a gRPC call or `console`. At most one line in 10 s for each kind; `more` is the number of "
    "denied requests of this kind since then, `others` that of kinds without a line.",
    do="See [when a request is denied](../how-to/operate/users.md#when-a-request-is-denied).")
REQUEST_IS_BOUND_TO_ANOTHER_ADDRESS: Final = event(
    "warning", "request is bound to another address", "user address count",
    "A client reached the server by an address that it does not know. The request was served.",
    do="Add the address to `authenticationBindingAddresses` before you set "
       "[`authenticationBinding=required`](../how-to/operate/users.md#bound-requests).")
ADMINISTRATION: Final = event(
    "info", "administration", "user address code name resource result",
    "A request of administration was answered; `result` is ok, refused or failed. The file of `--audit-log` has more.")
MESSAGES_SENT_FROM_THE_CONSOLE: Final = event(
    "info", "messages sent from the console", "user address name resource result",
    "A user sent a test message, or dead letters again.")
AUDIT_LOG_CANNOT_BE_WRITTEN: Final = event(
    "error", "audit log cannot be written", "file cause lost",
    "Up to 10,000 lines wait in memory; `lost` were dropped.", do="Free space there, or correct the directory.")
AUDIT_LOG_IS_WRITTEN_AGAIN: Final = event(
    "info", "audit log is written again", "file lost",
    "The lines that waited are in the file.")
AUDIT_LINES_LOST: Final = event(
    "error", "audit lines lost", "file lines",
    "The server ended before it could write them.", do="Look for `administration` in this log.")
USER_OVER_QUOTA: Final = event(
    "warning", "user over quota", "user quota limit count",
    "`count` requests of a user were refused since the line before.",
    do="Raise the [quota](../how-to/operate/users.md#quotas), or look at what the user sends.")
SUPER_USER_CREATED: Final = event(
    "info", "super user created", "user",
    "The directory had no user yet.")
USER_OF_A_SETTING_NOT_CREATED: Final = event(
    "warning", "user of a setting not created", "user setting",
    "Users are created from settings only at the first start.",
    do="Remove the setting, or run `tailrace acl user add NAME --super`.")
SHORT_PASSWORDS: Final = event(
    "warning", "short passwords", "users count",
    "These users have passwords of less than 16 characters.",
    do="Run `tailrace acl user update NAME --generate --keep-old 24h`.")
USER_HAS_LEFT: Final = event(
    "info", "user has left", "user connections",
    "The user was deleted, disabled or got a new password; its connections were closed.")
CREDENTIALS_CAN_BE_READ_BY_OTHER_USERS_OF_THIS_MACHINE: Final = event(
    "warning", "credentials can be read by other users of this machine", "file",
    "The file holds a password, a token, a key or the users.", do="Run `chmod 600 FILE`.")
THE_STORE_CAN_BE_READ_BY_OTHERS: Final = event(
    "warning", "the store can be read by other users of this machine", "directory who command",
    "The directory is older or was made by another program.",
    do="Run `command`; see [who may read the files](../how-to/operate/tls.md#who-may-read-the-files).")
THE_GROUP_CANNOT_READ_NEW_FILES: Final = event(
    "warning", "the group cannot read new files", "directory command",
    "`storeGroupReadable` is on, but the directory is not shared with its group.", do="Run `command`.")
STOP: Final = event(
    "info", "stop", "signal",
    "A signal was received; the server closes its store.")
THE_SERVICE_MANAGER_WAS_NOT_NOTIFIED: Final = event(
    "warning", "the service manager was not notified", "socket cause",
    "The supervisor may assume that the server did not start.", do="Check `NOTIFY_SOCKET` and the unit.")
CANNOT_PRINT: Final = event(
    "warning", "cannot print", "stream cause",
    "The terminal was closed. The server continues without output.", do="Send the output to a file or a supervisor.")
CONNECTIONS_CANNOT_BE_ACCEPTED: Final = event(
    "error", "connections cannot be accepted", "cause count",
    "No descriptor or memory is left; `count` connections failed since the line before.",
    do="Raise `ulimit -Hn`, or give the machine memory.")
BROKER_STOPPED: Final = event(
    "info", "broker stopped", "broker",
    "Connections are closed; the store is closed next.")
CONSUMER_OFFSETS_COULD_NOT_BE_WRITTEN: Final = event(
    "error", "consumer offsets could not be written", "cause",
    "The next write includes them.", do="Check the disk if this repeats.")
CONSUMER_OFFSET_CORRECTED: Final = event(
    "warning", "consumer offset corrected", "group topic queue offset to",
    "The offset was after the end of the queue, for example because a power loss took unsynced messages. It was set to "
    "the end.", do="Use `SYNC_FLUSH` to prevent this.")
COMMITTED_OFFSET_IS_REFUSED: Final = event(
    "warning", "committed offset is refused", "group topic queue offset reason count",
    "A client sent an offset past the end of the queue, below 0, or of a group of the broker.",
    do="Look for a consumer that computes offsets.")
EVENT_LOOP_WAS_HELD: Final = event(
    "warning", "event loop was held", "ms",
    "No client was served for this time.", do="Look for swapping, a slow disk or a busy processor.")
STATISTICS_ARE_FULL: Final = event(
    "warning", "statistics are full, new ones are not counted", "name key limit",
    "Idle keys are dropped after a day.", do="Nothing.")
GROUP_READS_LESS_FROM_THE_DISK: Final = event(
    "info", "group reads less from the disk", "group bytes threshold all_bytes",
    "The group, or all groups, reached the threshold of `coldDataFlowControlEnable`.")
STATIC_TOPIC_SET: Final = event(
    "info", "static topic set", "topic epoch queues led",
    "A request created or changed a static topic; this broker leads `led` queues.")
STATIC_TOPIC_CLEANED: Final = event(
    "info", "static topic cleaned", "topic queues",
    "Parts of queues that have no messages were removed.")
STATIC_TOPIC_NOT_CLEANED: Final = event(
    "warning", "static topic not cleaned", "topic reason",
    "Another broker did not answer, or a file could not be written. The next pass retries.",
    do="Check the disk or that broker if this repeats.")
SETTINGS_CHANGED: Final = event(
    "info", "settings changed", "user values",
    "A request changed live settings, and the file of `--config`.")
CONSUMER_DID_NOT_RETURN_ITS_OFFSETS: Final = event(
    "warning", "consumer did not return its offsets", "group client reason",
    "The answer to request 223 lacks this member.", do="Check this client.")
CONSUMER_REGISTERED: Final = event(
    "info", "consumer registered", "group client peer",
    "A consumer sent its first heartbeat.")
CONSUMER_UNREGISTERED: Final = event(
    "info", "consumer unregistered", "group client peer",
    "A consumer left its group, lost its connection or sent no heartbeat.")
CONSUMERS_UNREGISTERED: Final = event(
    "info", "consumers unregistered", "peer groups",
    "A connection was closed; its client left all its groups.")
CONSUMER_EXPIRED: Final = event(
    "warning", "consumer expired", "group peer",
    "A consumer sent no heartbeat. The other members get its queues.", do="Check this client.")
CONSUMER_GROUP_UNKNOWN: Final = event(
    "warning", "consumer group unknown", "group client",
    "The group does not exist and cannot be created.",
    do="Create the group, or set `autoCreateSubscriptionGroup=true`.")
POP_OFFSET_IS_OUTSIDE_ITS_QUEUE: Final = event(
    "info", "pop offset is outside its queue", "group topic queue offset to",
    "The group continues at the offset `to`.")
REVIVE_RECORDS_ARE_GONE: Final = event(
    "warning", "revive records are gone", "queue offset to",
    "Retention deleted POP checkpoints; their messages are not redelivered.",
    do="Keep the log longer than the longest invisible time.")
REVIVE_RECORD_IS_NOT_READABLE: Final = event(
    "warning", "revive record is not readable", "queue offset reason",
    "The record is skipped.", do="Run `tailrace verify STORE`.")
POPPED_MESSAGES_DO_NOT_COME_BACK: Final = event(
    "warning", "popped messages are not redelivered, their topic or group is gone", "topic group count",
    "They were popped when it was deleted.", do="Nothing.")
POP_IS_STOPPED: Final = event(
    "warning", "pop is stopped, too many messages are in flight", "group topic queue in_flight limit",
    "The limit is `popInflightMessageThreshold`.", do="Find out why consumers do not acknowledge.")
LITE_SUBSCRIPTIONS_EXPIRED: Final = event(
    "info", "lite subscriptions expired", "client group topic count",
    "A client did not renew them; other clients get the messages.")
LITE_EVENTS_GO_TO_ANOTHER_CLIENT: Final = event(
    "info", "lite events go to another client", "client group count",
    "A client did not fetch messages that were noted for it.")
LITE_OFFSET_RESET: Final = event(
    "info", "lite offset reset", "group topic offset client",
    "A subscription or an attribute named an offset.")
LITE_TOPICS_DELETED_AFTER_THEIR_EXPIRATION: Final = event(
    "info", "lite topics deleted after their expiration", "count first",
    "They had no message for `lite.topic.expiration`.")
LITE_TOPICS_COULD_NOT_BE_DELETED: Final = event(
    "warning", "lite topics could not be deleted", "count cause",
    "A file could not be written; the deletion is retried.", do="Remove the cause in the line.")
POPPED_MESSAGE_DOES_NOT_COME_BACK: Final = event(
    "warning", "popped message is not redelivered, it is gone", "topic queue offset status",
    "Retention deleted the message before its acknowledgement.",
    do="Keep the log longer than the longest invisible time.")
POPPED_MESSAGE_BECOMES_A_DEAD_LETTER: Final = event(
    "warning", "popped message becomes a dead letter", "group topic offset tries reason",
    "The retry topic never takes it; the message is in `%DLQ%group`.", do="Remove the reason, then send it again.")
RETRIES_OF_A_DELETED_TOPIC_ARE_PASSED_OVER: Final = event(
    "info", "retries of a deleted topic are passed over", "topic group retry_topic queue from to",
    "The topic was created again; old retries are not delivered.")
A_MESSAGE_OF_A_DELETED_TOPIC_IS_NOT_RETRIED: Final = event(
    "info", "a message of a deleted topic is not retried", "group topic phy_offset",
    "A consumer sent it back after the deletion.")
POPPED_MESSAGE_IS_OF_ANOTHER_GROUP: Final = event(
    "warning", "popped message is of another group, it is not put into its retry topic again",
    "topic group queue offset",
    "Two groups share the name of this retry topic. The right group gets the message.", do="Nothing.")
POPPED_MESSAGE_IS_TRIED_LATER: Final = event(
    "warning", "popped message is tried later", "topic queue offset wait_ms reason",
    "It could not be put into the retry topic.", do="Check the disk if this repeats.")
POPPED_MESSAGES_CANNOT_COME_BACK_NOW: Final = event(
    "warning", "popped messages cannot be redelivered now", "queue reason",
    "The store takes no writes. They are redelivered when it does.", do="Find the line that says why.")
ORDERLY_POP_IS_NOT_READ: Final = event(
    "warning", "orderly pop is not read", "file key queue reason",
    "An entry is damaged; messages of that queue may be redelivered.", do="Compare the file with a copy.")
SUBSCRIPTION_ADDED: Final = event(
    "info", "subscription added", "group topic",
    "A group has subscribed to a topic.")
SUBSCRIPTION_REMOVED: Final = event(
    "info", "subscription removed", "group topic",
    "A group has ended its subscription.")
MEMBERS_HAVE_DIFFERENT_SUBSCRIPTIONS: Final = event(
    "warning", "members of a group have different subscriptions",
    "group topic client subscription other_client other_subscription counts",
    "`counts` is used for all; other members get wrong messages or miss some.",
    do="Give all members the same subscriptions, or different groups.")
SUBSCRIPTION_CHANGED: Final = event(
    "info", "subscription changed", "group topic subscription before",
    "The expression is another one than before.")
CONSUMER_FILTER_REGISTERED: Final = event(
    "info", "consumer filter registered", "group topic expression",
    "A group has a new SQL92 expression.")
CONSUMER_FILTER_IS_NOT_USED_ANY_MORE: Final = event(
    "info", "consumer filter is not used any more", "group topic",
    "The expression is kept for `filterDataCleanTimeSpan`.")
CONSUMER_FILTER_CANNOT_BE_COMPILED: Final = event(
    "error", "consumer filter cannot be compiled", "group topic expression reason",
    "Pulls of the group get code 27.", do="Correct the expression.")
CONSUMER_FILTER_REFUSED: Final = event(
    "error", "consumer filter refused", "group topic reason",
    "Expressions are too many, too long or damaged in the file.", do="Correct the expression.")
CONSUMER_FILTERS_COULD_NOT_BE_WRITTEN: Final = event(
    "error", "consumer filters could not be written", "cause",
    "The file keeps older expressions; the write is retried.", do="Check the disk if this repeats.")
EXPRESSION_CANNOT_BE_COMPILED: Final = event(
    "warning", "expression cannot be compiled", "topic expression reason",
    "The request gets code 23 and the reason.", do="Correct the expression.")
REPLY_REFUSED: Final = event(
    "warning", "reply refused", "peer reason",
    "Its producer is not connected here; the sender gets code 1.", do="Check both clients.")
REPLY_NOT_PUSHED: Final = event(
    "warning", "reply not pushed", "client peer reason",
    "The producer did not take it in 10 s; the sender gets code 1.", do="Check the producer.")
REPLY_NOT_STORED: Final = event(
    "warning", "reply not stored", "topic status reason",
    "The answer says only whether the reply was pushed.", do="See the status.")
HALF_MESSAGES_ARE_PENDING: Final = event(
    "info", "half messages are pending", "count from operations",
    "They are checked; the first one is at queue offset `from` or later.")
HALF_MESSAGE_NOT_COMMITTED: Final = event(
    "warning", "half message not committed", "topic queue_offset reason",
    "The store refused the message. It stays pending and is checked again.", do="Check the disk if this repeats.")
HALF_MESSAGE_OF_A_DELETED_TOPIC: Final = event(
    "warning", "half message of a deleted topic is dropped", "topic queue_offset",
    "Its topic was deleted before the commit.", do="Send it again if it is needed.")
HALF_MESSAGE_GIVEN_UP: Final = event(
    "warning", "half message given up", "topic group unique_key checks kept_in",
    "No producer settled it in `transactionCheckMax` checks or `fileReservedTime`.",
    do="Read `kept_in`; check that producers of the group have a `check`.")
HALF_MESSAGE_CANNOT_BE_READ: Final = event(
    "error", "half message cannot be read", "queue_offset",
    "The record is damaged or deleted; nothing is delivered for it.", do="Run `tailrace verify STORE`.")
HALF_MESSAGE_CANNOT_BE_PUT_AGAIN: Final = event(
    "error", "half message cannot be put again", "queue_offset reason",
    "The half message stays pending; the next pass retries.", do="Check the disk if this repeats.")
OPERATIONS_OF_HALF_MESSAGES_ARE_NOT_WRITTEN: Final = event(
    "error", "operations of half messages are not written", "count reason",
    "It is retried. After a stop, settled messages are checked again.", do="Check the disk if this repeats.")
CHECK_OF_HALF_MESSAGES_FAILED: Final = event(
    "error", "check of half messages failed", "reason",
    "The next pass continues.", do="Check the disk if this repeats.")
NUMBERS_OF_HALF_MESSAGES_COULD_NOT_BE_WRITTEN: Final = event(
    "error", "numbers of half messages could not be written", "cause",
    "The next write of `config/transactionMetrics` includes them.", do="Check the disk if this repeats.")
CANNOT_WAIT_FOR_THE_DISK: Final = event(
    "error", "cannot wait for the disk", "sends reason",
    "It is unknown whether these sends are on the disk; producers get SERVICE_NOT_AVAILABLE.",
    do="[Check the disk](../how-to/operate/runbook.md#a-sync-failed), then restart the machine.")
COLD_PULL_FAILED: Final = event(
    "warning", "cold pull failed", "topic queue reason",
    "The consumer gets SYSTEM_ERROR and pulls again.", do="Check the disk if this repeats.")
HELD_PULL_FAILED: Final = event(
    "warning", "held pull failed", "topic queue reason",
    "The consumer gets SYSTEM_ERROR and pulls again.", do="Check the disk if this repeats.")
STATUS_REQUEST_FAILED: Final = event(
    "warning", "status request failed", "target reason",
    "The HTTP request got status 500.", do="Report the traceback.")
A_SETTING_IS_IGNORED_AS_ASKED: Final = event(
    "warning", "a setting is ignored as asked", "setting reason",
    "`--ignore-setting` names it; the server lacks its effect.", do="Remove the setting if you can.")
SETTINGS_OF_THE_COMMAND_LINE: Final = event(
    "info", "settings of the command line", "settings",
    "`--set` gives them.")
REGISTERED_AT_A_NAME_SERVER: Final = event(
    "info", "registered at a name server", "address broker",
    "Clients find the broker there.")
CANNOT_REGISTER_AT_A_NAME_SERVER: Final = event(
    "warning", "cannot register at a name server", "address reason",
    "Clients of that name server do not find the broker. It is retried.", do="Check address and network.")
CANNOT_UNREGISTER_AT_A_NAME_SERVER: Final = event(
    "warning", "cannot unregister at a name server", "address reason",
    "The name server names this broker for two more minutes.", do="Nothing.")
BROKER_REGISTERED: Final = event(
    "info", "broker registered", "name id address",
    "A broker registered with this name server.")
BROKER_UNREGISTERED: Final = event(
    "warning", "broker unregistered", "name id address",
    "Routes do not have this broker any more.", do="Check that broker if it should run.")
