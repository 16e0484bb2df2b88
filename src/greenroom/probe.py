"""Print what the running interpreter and its platform are, as one line of JSON.

Runs inside images (`python3 -I - < probe.py`), so it needs the standard library alone, and is the
one place that says how these facts are read.
"""

import json
import os
import platform
import sys


def probe() -> "dict[str, str]":
    """Return the facts that select wheels and evaluate markers: see `greenroom.target.Target`."""
    libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else ""
    return {
        "python": platform.python_version(),
        # A free-threaded or debug interpreter takes other wheels: its flags make it another implementation.
        "implementation": sys.implementation.name + sys.abiflags,
        "machine": platform.machine(),
        "glibc": (libc or "").replace("glibc", "").strip(),
    }


if __name__ == "__main__":
    print(json.dumps(probe(), sort_keys=True))
