"""Brokers for frameworks, on Tailrace's client: `tailrace.frameworks.dramatiq` and `tailrace.frameworks.faststream`.

Each needs its extra, ``tailrace[dramatiq]`` or ``tailrace[faststream]``. Importing one without the framework raises
MissingPackageError.
"""
