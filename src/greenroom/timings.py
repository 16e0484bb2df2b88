"""Where a build's time and bytes went: a table, JSON, and one self-contained HTML page.

Pure: the steps come from `greenroom.progress`, the layers' bytes from the engine's history of the image.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from greenroom.progress import Step, short_name

_SCRIPT = re.compile(r"/installer/(\w+)\.py /\w+ \S+(?: (\w+))?")
_INSTALLED = re.compile(r"greenroom: slot \w+ has (.*), in [\d.]+ s$")
_ROW_HEIGHT = 22
_LABEL_LENGTH = 46
"""Characters of a label; a longer one is cut, and whole in its tooltip."""
_LABEL_WIDTH = 350
_CHART_WIDTH = 560
_BYTES_WIDTH = 150
_NUMBER_WIDTH = 80
"""Room for a number behind a bar."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One step of a build.

    Attributes:
        step: which: a slot with what is in it, or its place in the Dockerfile and its first words.
        begin: seconds after the first step began.
        seconds: how long it ran.
        cached: whether it was not run.
        bytes: what its layer holds; 0 for a step that is not in the image or was not measured.
    """

    step: str
    begin: float
    seconds: float
    cached: bool
    bytes: int


def timings(steps: Iterable[Step], layers: Sequence[tuple[str, int]]) -> tuple[Timing, ...]:
    """Return the timings of a build.

    Args:
        steps: the build's steps.
        layers: (command that made it, bytes) of the image's layers, as the engine's history tells them.

    Returns:
        The Dockerfile's steps and the export, in the order in which they began.
    """
    ended = sorted((step for step in steps if step.began), key=lambda step: step.began)
    first = min((step.began for step in ended), default=0.0)
    return tuple(
        Timing(
            step=_label(step),
            begin=round(step.began - first, 3),
            seconds=round(step.seconds, 3),
            cached=step.cached,
            bytes=_bytes_of(step.name, layers),
        )
        for step in ended
        if step.is_of_dockerfile or step.name.startswith("exporting")
    )


def _label(step: Step) -> str:
    script = _SCRIPT.search(step.name)
    if script is None:
        return short_name(step.name)
    if script[1] == "finish_venvs":
        return f"interpreters, stamps, wrappers of {script[2]}"
    if script[2] == "project":
        return "the project"
    installed = next((match[1] for line in step.lines if (match := _INSTALLED.match(line))), "")
    # A step that was cached has said nothing.
    return f"slot {script[2]}: {installed or 'nothing'}" if installed or not step.cached else f"slot {script[2]}"


def _bytes_of(name: str, layers: Sequence[tuple[str, int]]) -> int:
    """Return the bytes of the layer that a step made.

    buildx names a step with its variables filled in, the image's history as it is written, so that the two are
    compared by script and slot. Only what runs the installer is in the image itself.
    """
    key = _SCRIPT.search(name)
    if key is None:
        return 0
    found = ((_SCRIPT.search(command), size) for command, size in layers)
    return next((size for match, size in found if match and match.groups() == key.groups()), 0)


def to_json(rows: Sequence[Timing]) -> dict[str, object]:
    """Return timings as a JSON value (schema 1); seconds and bytes."""
    return {"schema": 1, "steps": [asdict(row) for row in rows]}


def to_markdown(rows: Sequence[Timing]) -> str:
    """Return a table of the steps that ran, the longest first, for a CI's summary page."""
    ran = sorted((row for row in rows if not row.cached), key=lambda row: -row.seconds)
    lines = ["### Image build", "", "| step | seconds | MB |", "|---|---:|---:|"]
    lines += [f"| `{row.step}` | {row.seconds:.1f} | {row.bytes / 1e6:.1f} |" for row in ran]
    lines.append(f"\n{len(ran)} steps ran, {len(rows) - len(ran)} were cached.")
    return "\n".join(lines) + "\n"


def to_html(rows: Sequence[Timing], title: str) -> str:
    """Return one HTML page with a picture of the steps over time and the bytes of their layers.

    It loads nothing, so it can be kept and shown anywhere.
    """
    end = max((row.begin + row.seconds for row in rows), default=0.0) or 1.0
    most = max((row.bytes for row in rows), default=0) or 1
    bytes_x = _LABEL_WIDTH + _CHART_WIDTH + _NUMBER_WIDTH
    width = bytes_x + _BYTES_WIDTH + _NUMBER_WIDTH
    bars = []
    for number, row in enumerate(rows):
        y = 30 + number * _ROW_HEIGHT
        x = _LABEL_WIDTH + row.begin / end * _CHART_WIDTH
        length = max(1.5, row.seconds / end * _CHART_WIDTH)
        whole = html.escape(row.step)
        label = whole if len(row.step) <= _LABEL_LENGTH else html.escape(row.step[: _LABEL_LENGTH - 1]) + "…"
        kind, told = ("cached", "cached") if row.cached else ("ran", f"{row.seconds:.1f} s")
        bars.append(
            f'<text x="0" y="{y + 14}">{label}<title>{whole}</title></text>'
            f'<rect class="{kind}" x="{x:.1f}" y="{y + 3}" width="{length:.1f}" height="15">'
            f"<title>{whole}: {row.seconds:.2f} s{', cached' if row.cached else ''}</title></rect>"
            f'<text class="number" x="{x + length + 4:.1f}" y="{y + 14}">{told}</text>'
        )
        if row.bytes:
            bytes_length = max(1.0, row.bytes / most * _BYTES_WIDTH)
            bars.append(
                f'<rect class="bytes" x="{bytes_x}" y="{y + 3}" width="{bytes_length:.1f}" height="15"/>'
                f'<text class="number" x="{bytes_x + bytes_length + 4:.1f}" y="{y + 14}">{row.bytes / 1e6:.1f} MB</text>'
            )
    height = 40 + len(rows) * _ROW_HEIGHT
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>
<style>
body {{ font: 13px system-ui, sans-serif; margin: 24px; color: #1c2733; background: #fff; }}
svg {{ max-width: {width}px; width: 100%; height: auto; }}
svg text {{ font: 12px ui-monospace, monospace; fill: currentColor; }}
svg .number {{ fill: #5b6b7b; }}
.ran {{ fill: #2f6fde; }} .cached {{ fill: #b9c6d6; }} .bytes {{ fill: #d98324; }}
h1 {{ font-size: 18px; }}
</style></head><body>
<h1>{html.escape(title)}</h1>
<p>{len(rows)} steps in {end:.1f} s. Blue: ran. Grey: cached. Orange: bytes of the step's layer.</p>
<svg viewBox="0 0 {width} {height}" role="img" aria-label="steps of the build over time">
<text x="{_LABEL_WIDTH}" y="16">0 s</text><text x="{_LABEL_WIDTH + _CHART_WIDTH - 40}" y="16">{end:.1f} s</text>
<text x="{bytes_x}" y="16">layer</text>
{"".join(bars)}
</svg></body></html>
"""
