"""Static topics: requests with the numbers of logical queues, see `tailrace.node.topic_queue_mapping`."""
