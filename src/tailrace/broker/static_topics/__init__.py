"""Static topics: requests that name logical queues, see `tailrace.node.topic_queue_mapping`."""
