"""The name server: brokers, routes of topics, key-value pairs."""
