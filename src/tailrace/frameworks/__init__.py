"""Former names of the brokers for frameworks, which are packages of their own: tailrace-dramatiq, tailrace-faststream.

`tailrace.frameworks.dramatiq` gives the names of `tailrace_dramatiq`, and `tailrace.frameworks.faststream` those of
`tailrace_faststream`. Without the package the import raises MissingPackageError.
"""
