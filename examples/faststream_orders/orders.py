"""Orders with FastStream on Tailrace: `faststream run orders:app`."""

import os

from faststream import FastStream
from pydantic import BaseModel

from tailrace_faststream import RocketmqBroker

broker = RocketmqBroker(namesrv=os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876"))
app = FastStream(broker)


class Order(BaseModel):
    number: int


@broker.subscriber("fs_orders", group="packing", tags="new", max_workers=10)
@broker.publisher("fs_parcels")
async def pack(order: Order) -> Order:
    print(f"packed {order.number}", flush=True)
    return order


@broker.subscriber("fs_parcels", group="shipping")
async def ship(order: Order) -> None:
    print(f"sent {order.number}", flush=True)


@app.after_startup
async def first_order() -> None:
    await broker.publish(Order(number=42), "fs_orders", tags="new", keys=["42"], delay=1)
