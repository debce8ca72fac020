"""For the tests of all packages; tests/support is on the path of modules."""

from caught import nothing_is_caught_silently  # noqa: F401 - a fixture for all tests
