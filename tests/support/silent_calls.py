"""A program: ENDPOINT METHOD CALLS CONNECTIONS METADATA. Begins calls that send no request; prints how they end."""

import asyncio
import json
import sys
from collections import Counter

import grpc


async def main(endpoint, method, calls, connections, metadata):
    own = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(endpoint, own) for _ in range(connections)]
    begun = [
        channels[n % connections].stream_stream(f"/apache.rocketmq.v2.MessagingService/{method}")(metadata=metadata)
        for n in range(calls)]
    await asyncio.sleep(0.2)
    print("begun", flush=True)
    codes = Counter()
    for call in begun:
        try:
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.RpcError:
            pass
        codes[(await call.code()).name] += 1
    print(json.dumps(codes), flush=True)


asyncio.run(main(*sys.argv[1:3], *map(int, sys.argv[3:5]), [tuple(pair) for pair in json.loads(sys.argv[5])]))
