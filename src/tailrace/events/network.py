"""Lines of the network server and of the gRPC endpoint."""

from __future__ import annotations

from typing import Final

from tailrace.events.declaration import event

# the gRPC endpoint

GRPC_ENDPOINT_STARTED: Final = event(
    "info", "gRPC endpoint started", "address tls",
    "Clients of RocketMQ 5 are served at this address.")
GRPC_CLIENT_FORGOTTEN: Final = event(
    "info", "gRPC client forgotten", "client peer renewed",
    "It said goodbye or was silent; `renewed` messages are redelivered.")
GRPC_STREAM_ENDED: Final = event(
    "info", "gRPC stream ended", "peer reason",
    "The connection of a client broke.")
GRPC_CALLS_REFUSED: Final = event(
    "warning", "gRPC calls refused", "reason address user count",
    "`reason` names the [bound](grpc.md#bounds) that is reached; `address` and `user` are those of the last of `count` "
    "calls since the line before.",
    do="With `no user in time`, check the credentials. Otherwise raise the bound.")
GRPC_ADDRESS_HELD: Final = event(
    "warning", "gRPC connections of an address not opened", "address seconds count",
    "Hundreds of calls had no valid user, or were cancelled. Their connections are closed; new ones wait.",
    do="Check the clients.")
GRPC_CALL_FAILED: Final = event(
    "warning", "gRPC call failed", "method peer reason",
    "The client got INTERNAL_SERVER_ERROR.", do="Report the traceback.")
GRPC_COMMAND_DROPPED: Final = event(
    "warning", "gRPC command dropped, the client does not read", "peer",
    "Too many commands wait. A transaction is checked again later.", do="Check this client.")
REQUEST_OF_THE_BROKER_NOT_PASSED_ON: Final = event(
    "warning", "request of the broker not passed on", "client code reason",
    "Its message cannot be read.", do="Run `tailrace verify STORE`.")
RECEIPT_NOT_RENEWED: Final = event(
    "warning", "receipt not renewed", "group topic queue offset reason",
    "If this continues, the message is redelivered.", do="Check this client.")
MESSAGE_NOT_GIVEN_BACK: Final = event(
    "warning", "message not given back, it comes after its invisible time", "group topic reason",
    "Its client is gone.", do="Nothing.")
RECEIVED_MESSAGE_NOT_SETTLED: Final = event(
    "warning", "received message not settled, it is redelivered", "reason",
    "It could be neither acknowledged nor made a dead letter.", do="Check the disk if this repeats.")
BODY_SENT_AS_IT_IS_STORED: Final = event(
    "warning", "body sent as it is stored", "topic queue offset reason",
    "Its compression cannot be undone here or by gRPC clients.", do="Check its sender.")

# remoting

CLOSE_A_CONNECTION_AFTER_A_BAD_FRAME: Final = event(
    "warning", "close a connection after a bad frame", "peer cause",
    "A server sent bytes that are not a frame; waiting requests fail.", do="Check the address.")
CONNECTION_GIVEN_UP: Final = event(
    "info", "connection given up, its peer is silent", "peer seconds",
    "Requests timed out; the next one opens a new connection.")
CONNECTION_CLOSED_FOR_BAD_FRAME: Final = event(
    "warning", "connection closed for bad frame", "peer reason count",
    "`count` clients sent bytes that are not a frame.", do="Find out what connects there.")
REQUEST_FAILED: Final = event(
    "warning", "request failed", "code peer reason",
    "The request got SYSTEM_ERROR.", do="If a traceback follows, report it.")
CONNECTION_CLOSED_FOR_IDLENESS: Final = event(
    "info", "connection closed for idleness", "peer",
    "No byte passed for two minutes.")
CONNECTION_CLOSED_FOR_A_LIMIT: Final = event(
    "warning", "connection closed for a limit", "peer reason count connections bytes",
    "`reason` names the limit, `count` the connections closed since the line before.",
    do="See [limits for clients](../how-to/operate/monitor.md#limits-for-clients).")
REQUESTS_WAIT_FOR_MEMORY: Final = event(
    "warning", "requests wait for memory", "bytes limit connections count",
    "Connections take more than `serverBufferMaxBytes`; the largest are closed.",
    do="See [limits for clients](../how-to/operate/monitor.md#limits-for-clients).")
CONNECTION_CLOSED_BEFORE_A_REQUEST: Final = event(
    "warning", "connection closed before a request", "peer reason detail count",
    "TLS failed; `count` connections were closed for this reason since the line before.",
    do="See [when a connection fails](../how-to/operate/tls.md#when-a-connection-fails).")
TLS_IS_SET_UP: Final = event(
    "info", "tls is set up", "mode certificate client_auth",
    "Connections with TLS are accepted.")
THE_CERTIFICATE_IS_MADE_BY_THE_SERVER: Final = event(
    "warning", "the certificate is made by the server", "reason",
    "No client can verify the server.", do="Set `tls.server.certPath` and `tls.server.keyPath`.")
CERTIFICATE_LOADED_AGAIN: Final = event(
    "info", "certificate loaded again", "certificate",
    "New connections use it.")
CERTIFICATE_CANNOT_BE_LOADED_AGAIN: Final = event(
    "error", "certificate cannot be loaded again", "certificate reason",
    "The old certificate is used until it expires.", do="Correct the files.")
CERTIFICATE_EXPIRES_SOON: Final = event(
    "warning", "certificate expires soon", "setting file hours",
    "Logged once a day.",
    do="[Renew the certificate](../how-to/operate/tls.md#renew-the-certificate) or the revocation list.")
CERTIFICATE_HAS_EXPIRED: Final = event(
    "error", "certificate has expired", "setting file hours",
    "Clients that verify the server cannot connect; with an expired revocation list, clients with a certificate "
    "cannot.",
    do="[Renew](../how-to/operate/tls.md#renew-the-certificate) `file`.")
TLS_CONFIG_FILE_IS_LEFT_OUT: Final = event(
    "warning", "tls config file is left out", "file reason",
    "This user cannot read the default file.", do="Correct its permissions.")
CONNECTION_ABORTED: Final = event(
    "warning", "connection aborted", "peer reason",
    "A client does not read its answers.", do="Check this client.")
