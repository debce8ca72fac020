"""The connected clients: producers, consumers, their ids and their locks on queues."""
