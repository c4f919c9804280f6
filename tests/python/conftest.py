"""Every test module here has a daemon of its own, and every test must leave it empty."""

from empty import daemon, nothing_left  # noqa: F401  fixtures
