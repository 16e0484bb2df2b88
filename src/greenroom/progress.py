"""Showing a build while it runs: a live line on a terminal, plain lines elsewhere.

buildx reports with `--progress=rawjson`: a stream of JSON objects, not one per line, with the steps
("vertexes") that start, end or fail and what they print ("logs", base64). The build's own scripts print
lines such as `greenroom: venv 3 of 20: …`, which carry the counts.
"""

from __future__ import annotations

import base64
import codecs
import json
import os
import re
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.status import Status

_FREQUENT = re.compile(r"greenroom: (fetched|slot \w+: )")
"""Lines of which there are hundreds; they are worth a live line, not a log."""
_BYTES = re.compile(r"(?P<done>\d+) of (?P<total>\d+) bytes")
_DECODER = codecs.getincrementaldecoder("utf-8")
"""Chunks end anywhere, within a character too."""
KEPT_LINES = 20
"""Lines of a failed step that its error shows."""


@dataclass
class Step:
    """A step of the build.

    Attributes:
        name: as the Dockerfile has it.
        lines: what it printed last.
        unfinished: what it printed after its last end of a line.
        error: why it failed; "" when it did not.
        cached: whether it was not run because nothing that it depends on changed.
        began: when it began, in seconds since 1970; 0 until it ends.
        seconds: how long it ran; 0 until it ends.
    """

    name: str
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    unfinished: str = ""
    error: str = ""
    cached: bool = False
    began: float = 0.0
    seconds: float = 0.0
    _decoder: codecs.IncrementalDecoder = field(default_factory=lambda: _DECODER(errors="replace"), repr=False)

    def take(self, data: bytes) -> list[str]:
        """Take what it printed, cut anywhere; return the lines that this ends."""
        *lines, self.unfinished = (self.unfinished + self._decoder.decode(data)).split("\n")
        self.lines.extend(line.rstrip() for line in lines)
        return lines

    @property
    def is_of_dockerfile(self) -> bool:
        """Whether it is an instruction of the Dockerfile, not the builder's own housekeeping."""
        return bool(re.match(r"\[\S+ +\d+/\d+\]", self.name))

    @property
    def tells_itself(self) -> bool:
        """Whether its own script says what it did, in better words than the instruction's."""
        return "/installer/" in self.name


def short_name(name: str) -> str:
    """Return a step's name without mounts and options: its place, instruction and first words."""
    words = [word for word in name.split() if not word.startswith("--")]
    return " ".join(words)[:90]


def _moment(stamp: str) -> float:
    """Return the seconds since 1970 of one of buildx's time stamps, which have nine decimals at most (RFC 3339)."""
    return datetime.fromisoformat(re.sub(r"(\.\d{1,6})\d*", r"\1", stamp)).timestamp()


class BuildProgress:
    """Collects buildx's report and shows it.

    Args:
        stream: a console on stderr; one that follows NO_COLOR and the terminal by default.
    """

    def __init__(self, stream: Console | None = None) -> None:
        self.steps: dict[str, Step] = {}
        self.console = stream or Console(stderr=True, highlight=False)
        self._json = json.JSONDecoder()
        self._text = _DECODER(errors="replace")
        self._buffer = ""
        self._ended: set[str] = set()
        self._status: Status | None = None
        self._started = time.monotonic()
        self._other: deque[str] = deque(maxlen=KEPT_LINES)

    def __enter__(self) -> BuildProgress:
        if self.console.is_terminal:
            self._status = self.console.status("build starts")
            self._status.start()
        elif os.environ.get("GITHUB_ACTIONS"):
            print("::group::image build", file=sys.stderr)
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()
        elif os.environ.get("GITHUB_ACTIONS"):
            print("::endgroup::", file=sys.stderr)

    def feed(self, chunk: bytes) -> None:
        """Take a chunk of buildx's stderr."""
        self._buffer += self._text.decode(chunk)
        while True:
            self._buffer = self._buffer.lstrip()
            if not self._buffer:
                return
            if not self._buffer.startswith("{"):
                line, newline, rest = self._buffer.partition("\n")
                if not newline:
                    return
                self._other.append(line)
                self._buffer = rest
                continue
            try:
                message, end = self._json.raw_decode(self._buffer)
            except json.JSONDecodeError:
                return
            self._buffer = self._buffer[end:]
            self._take(message)

    def failure(self) -> str:
        """Return the failed step and its last lines, or what else buildx said."""
        failed = [step for step in self.steps.values() if step.error]
        # A failure cancels the steps that run beside it; they are not what failed.
        failed.sort(key=lambda step: step.error.endswith("context canceled"))
        if not failed:
            return " / ".join([*self._other, self._buffer.strip()]).strip(" /")
        step = failed[0]
        lines = [line for line in [*step.lines, step.unfinished] if line.strip()]
        own = [line for line in lines if line.startswith("greenroom: ")]
        said = own[-1].removeprefix("greenroom: ") if own else " / ".join(lines[-10:]) or step.error
        return f"step {short_name(step.name)}: {said}"

    @property
    def cached_steps(self) -> int:
        """How many steps did not have to run."""
        return sum(step.cached for step in self.steps.values())

    def _take(self, message: dict[str, Any]) -> None:
        for vertex in message.get("vertexes") or []:
            step = self.steps.setdefault(vertex["digest"], Step(name=vertex.get("name", "")))
            if vertex.get("cached"):
                step.cached = True
            if vertex.get("error"):
                step.error = vertex["error"]
            if vertex.get("completed") and vertex["digest"] not in self._ended:
                self._ended.add(vertex["digest"])
                ended = _moment(vertex["completed"])
                step.began = _moment(vertex["started"]) if vertex.get("started") else ended
                step.seconds = max(0.0, ended - step.began)
                state = "cached" if step.cached else f"{step.seconds:.1f} s"
                self._show(
                    f"{short_name(step.name)} ({state})",
                    quiet=step.cached or not step.is_of_dockerfile or step.tells_itself,
                )
            elif vertex.get("started"):
                self._show(f"{short_name(step.name)} runs", quiet=True)
        for log in message.get("logs") or []:
            self._log(self.steps.setdefault(log["vertex"], Step(name="")), base64.b64decode(log["data"]))
        for status in message.get("statuses") or []:
            if status.get("total"):
                self._live(f"{status.get('id', '')}: {status.get('current', 0)} of {status['total']} bytes")

    def _log(self, step: Step, data: bytes) -> None:
        for line in step.take(data):
            if line.startswith("greenroom: "):
                self._show(line.removeprefix("greenroom: "), quiet=bool(_FREQUENT.match(line)))

    def _show(self, text: str, *, quiet: bool) -> None:
        """Show a line: live on a terminal; plain elsewhere unless it is one of very many."""
        if self._status:
            self._live(text)
        elif not quiet:
            self.console.print(
                f"greenroom: {time.monotonic() - self._started:6.1f} s  {text}", markup=False, soft_wrap=True
            )

    def _live(self, text: str) -> None:
        if self._status is None:
            return
        if match := _BYTES.search(text):
            done, total = int(match["done"]), int(match["total"])
            elapsed = time.monotonic() - self._started
            left = elapsed * (total - done) / done if done else 0
            text = f"{text[: match.start()]}{done / 1e6:.0f} of {total / 1e6:.0f} MB, about {left:.0f} s left"
        line = f"{time.monotonic() - self._started:.0f} s  {text}"[: max(20, self.console.width - 4)]
        # Step names hold brackets, which would be read as markup.
        self._status.update(escape(line))
