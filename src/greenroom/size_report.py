"""Sizes and differences of images as people and machines read them. Everything here goes to stdout: it is data."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from greenroom.image_diff import ImageDiff, VenvChange
from greenroom.sizes import LayerSize, Sizes

_PIPED_WIDTH = 200
"""Columns of a table that does not go to a terminal."""
SHOWN = 20
"""Rows of distributions, and files of one venv, that people see; JSON has them all."""
_MADE_BY_WIDTH = 60
_UNITS = ("B", "kB", "MB", "GB", "TB")


def sizes_json(sizes: Sizes) -> dict[str, object]:
    """Return sizes as a JSON value (schema 1), in bytes."""
    value: dict[str, Any] = {"schema": 1, **dataclasses.asdict(sizes)}
    value["venvs"] = [
        {
            "name": item.venv.name,
            "directory": item.venv.directory,
            "actors": list(item.venv.actors),
            "own": item.own,
            "shared": item.shared,
            "bytecode": item.bytecode,
            "total": item.total,
            "entries": item.entries,
            "distributions": item.distributions,
        }
        for item in sizes.venvs
    ]
    value["layers"] = _layers_json(sizes.layers)
    return value


def diff_json(diff: ImageDiff) -> dict[str, object]:
    """Return what differs between two images as a JSON value (schema 1)."""
    value: dict[str, Any] = {"schema": 1, "same": diff.is_empty, **dataclasses.asdict(diff)}
    for change in value["changes"]:
        change["changed"] = {name: {"from": old, "to": new} for name, (old, new) in change["changed"].items()}
    value["layers_new"] = _layers_json(diff.layers_new)
    value["layers_gone"] = _layers_json(diff.layers_gone)
    return value


def _layers_json(layers: Iterable[LayerSize]) -> list[dict[str, object]]:
    return [
        {**dataclasses.asdict(layer), "largest": [{"distribution": what, "size": size} for what, size in layer.largest]}
        for layer in layers
    ]


def print_sizes(sizes: Sizes) -> None:
    """Print the totals, then a row per venv, distribution and layer, the largest first."""
    console = _console()
    console.print(
        f"{sizes.image}: {len(sizes.layers)} layers, {_bytes(sizes.size)}; {sizes.entries} filesystem entries",
        markup=False,
    )
    console.print(
        f"{sizes.venv_dir}: {_bytes(sizes.venv_size)} in {sizes.venv_entries} entries, {_bytes(sizes.venv_stored)} stored "
        f"in layers, {_bytes(sizes.venv_unique)} of distinct content; bytecode {_bytes(sizes.bytecode)}",
        markup=False,
    )
    if sizes.venvs:
        rows = [
            (
                item.venv.name,
                *map(_bytes, (item.own, item.shared, item.bytecode, item.total)),
                str(item.entries),
                str(item.distributions),
                "\n".join(item.venv.actors),
            )
            for item in sizes.venvs
        ]
        columns = ("venv", "own", "shared", "bytecode", "total", "entries", "distributions", "actors")
        _print_table(console, columns, rows, right=range(1, 7))
    if sizes.distributions:
        _print_distributions(console, sizes)
    _print_layers(console, "layer", sizes.layers)


def _print_distributions(console: Console, sizes: Sizes) -> None:
    rows = [
        (
            f"{item.name} {item.version}" if item.name else "(the venvs themselves)",
            *map(_bytes, (item.size, item.bytecode)),
            str(item.files),
            str(len(item.venvs)),
        )
        for item in sizes.distributions[:SHOWN]
    ]
    if rest := sizes.distributions[SHOWN:]:
        size, compiled = sum(item.size for item in rest), sum(item.bytecode for item in rest)
        rows.append(
            (f"{len(rest)} more, see --json", _bytes(size), _bytes(compiled), str(sum(i.files for i in rest)), "")
        )
    _print_table(console, ("distribution", "bytes", "bytecode", "files", "venvs"), rows, right=range(1, 5))


def print_diff(diff: ImageDiff) -> None:
    """Print what differs by venv and distribution, then the layers that change, the largest first."""
    console = _console()
    lines = [f"+ venv {name}" for name in diff.venvs_added] + [f"- venv {name}" for name in diff.venvs_removed]
    for change in diff.changes:
        lines += [f"~ venv {name}" for name in change.venvs]
        lines += [f"    {line}" for line in _change_lines(change)]
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
    _print_layers(console, "new layer", diff.layers_new)
    _print_layers(console, "layer gone", diff.layers_gone)
    touched = sum(len(change.venvs) for change in diff.changes)
    console.print(
        f"{diff.before} → {diff.after}: {len(diff.venvs_added)} venvs added, {len(diff.venvs_removed)} removed, "
        f"{touched} changed, {diff.venvs_same} the same; {len(diff.layers_new)} new layers, {_bytes(diff.new_size)}; "
        f"{_bytes(diff.new_venv_size)} of venvs, {diff.new_share:.2%} of all in B"
        + (
            f"; {len(diff.layers_touched)} have the content of a layer of A and differ in times or permissions only"
            if diff.layers_touched
            else ""
        ),
        markup=False,
        soft_wrap=True,
    )


def _change_lines(change: VenvChange) -> list[str]:
    lines = [f"+ {name} {version}" for name, version in change.added.items()]
    lines += [f"- {name} {version}" for name, version in change.removed.items()]
    lines += [f"~ {name} {old} → {new}" for name, (old, new) in change.changed.items()]
    lines += [f"~ {name}: the same version, other files" for name in change.rebuilt]
    lines += [f"~ {path}" for path in change.files[:SHOWN]]
    if len(change.files) > SHOWN:
        lines.append(f"~ {len(change.files) - SHOWN} more files, see --json")
    return lines


def _print_layers(console: Console, title: str, layers: Sequence[LayerSize]) -> None:
    if not layers:
        return
    rows = [
        (
            str(layer.index),
            layer.digest.removeprefix("sha256:")[:12],
            *map(_bytes, (layer.size, layer.venv_size, layer.hidden)),
            str(layer.entries),
            ", ".join(what for what, _ in layer.largest) or _short(layer.made_by),
        )
        for layer in layers
    ]
    columns = (title, "digest", "bytes", "of venvs", "hidden", "entries", "largest, or made by")
    _print_table(console, columns, rows, right=(0, 2, 3, 4, 5))


def _print_table(
    console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int]
) -> None:
    table = Table(box=None, pad_edge=False)
    numeric = set(right)
    for position, column in enumerate(columns):
        justify: Literal["left", "right"] = "right" if position in numeric else "left"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=position in numeric)
    for row in rows:
        table.add_row(*map(escape, row))
    console.print()
    console.print(table)


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPED_WIDTH)


def _short(made_by: str) -> str:
    """Return an instruction without its shell and build arguments."""
    words = re.sub(r"^RUN (\|\d+ .*?)?/bin/sh -c ", "RUN ", made_by).removesuffix(" # buildkit")
    return words if len(words) <= _MADE_BY_WIDTH else f"{words[: _MADE_BY_WIDTH - 1]}…"


def _bytes(size: int) -> str:
    """Return a number of bytes for people: in units of 1000, three digits or so."""
    if size < 1000:
        return f"{size} B"
    exponent = next((power for power in (1, 2, 3) if size < 999.5 * 1000**power), 4)
    value = size / 1000**exponent
    return f"{value:.2f} {_UNITS[exponent]}" if exponent > 2 else f"{value:.1f} {_UNITS[exponent]}"
