"""What people see while a command works: log lines on stderr, never on stdout (that is for data)."""

from __future__ import annotations

import sys


def say(message: str) -> None:
    """Write one log line to stderr."""
    print(f"greenroom: {message}", file=sys.stderr, flush=True)
