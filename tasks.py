"""The project's commands as invoke tasks; `invoke --list` shows them. They call `greenroom.pipeline`."""

from __future__ import annotations

from greenroom.tasks import namespace

__all__ = ["namespace"]
