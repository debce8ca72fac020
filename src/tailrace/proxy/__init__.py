"""The gRPC endpoint for clients of RocketMQ 5: ``apache.rocketmq.v2.MessagingService``.

RocketMQ serves these clients with a proxy beside the broker. Here the endpoint is a part of the broker's
process and of its event loop. It checks and converts messages of the protocol, and calls the same processors
as a client of the remoting protocol does, so both kinds of clients share topics, groups, progress, retries and
transactions. Names, limits and status codes are those of RocketMQ's proxy (``proxy/grpc/v2``).

The packages of the extra ``grpc`` are imported by this room only.
"""
