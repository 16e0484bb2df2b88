"""The job: both parsers read one order, each in an actor that Ray starts from its own prebuilt venv."""

from __future__ import annotations

import os
from typing import Any

import ray

from parsers.legacy import LegacyParser
from parsers.modern import ModernParser

ORDER = '{"item": "chair", "count": 4}'


class Counter:
    """Adds up what was ordered; needs nothing but the driver's interpreter."""

    def __init__(self) -> None:
        self._total = 0

    def add(self, count: int) -> int:
        """Add a number of things; return the total."""
        self._total += count
        return self._total


def start(actor: type, *, own_venv: bool = True) -> Any:
    """Start an actor, from its venv or in the driver's interpreter."""
    python = f"{os.environ['VENV_DIR']}/{actor.__module__}.{actor.__qualname__}/bin/python"
    return ray.remote(actor).options(runtime_env={"py_executable": python} if own_venv else None).remote()


def main() -> None:
    """Run the job and print what the actors said."""
    ray.init(include_dashboard=False)
    counter = start(Counter, own_venv=False)
    for parser in (LegacyParser, ModernParser):
        release, count = ray.get(start(parser).parse.remote(ORDER))
        total = ray.get(counter.add.remote(count))
        print(f"{parser.__name__}: marshmallow {release}, {count} ordered, {total} in all", flush=True)


if __name__ == "__main__":
    main()
