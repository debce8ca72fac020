"""The requests of the remoting protocol: the fields of their headers, and a table of all of them."""
