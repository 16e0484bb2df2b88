"""Measure everything side by side, on real parts, in one run: `nox -s bench`. See README.md in this directory.

The machine should do nothing else meanwhile. Every figure is measured or null with its reason; nothing is estimated.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure_actors
import measure_edit
import measure_image
import measure_rebuild
import measure_scale
import measure_transfer
import results
from greenroom.console import say
from harness import Bench, Outcome
from lab import Lab, Unavailable

MEASURES: dict[str, Callable[[Bench], None]] = {
    "rebuild": measure_rebuild.rebuild,
    "edit": measure_edit.edit,
    "shape": measure_image.shape,
    "digests": measure_image.digests,
    "import": measure_image.imports,
    "registry": measure_transfer.registry,
    "squashfs": measure_transfer.squashfs,
    "scale": measure_scale.scale,
    "actors": measure_actors.actors,
}


def _end(number: int, _: object) -> None:
    # An orderly end: the engines are stopped on the way out.
    sys.exit(128 + number)


def measure(bench: Bench, groups: tuple[str, ...], out: Path) -> tuple[dict[str, results.Value], dict[str, Any]]:
    """Measure groups one after the other; what is known so far is written after each."""
    figures: dict[str, results.Value] = {}
    raw: dict[str, Any] = {
        "machine": results.machine(),
        "groups": list(groups),
        "repeats": bench.repeats,
        "small": bench.small,
    }
    for group in results.GROUPS:
        if group not in groups:
            raw[group] = {"reason": "not asked for in this run"}
            continue
        say(f"bench: {group}")
        began = time.monotonic()
        # What a measure has found so far is kept when a later part of it fails.
        outcome = Outcome()
        try:
            bench.outcome = outcome
            MEASURES[group](bench)
        except Unavailable as error:
            outcome.raw["reason"] = str(error)
        except Exception as error:
            # Whatever it was, the other figures are still wanted; this one says why it is missing.
            traceback.print_exc()
            outcome.raw["reason"] = f"{type(error).__name__}: {error}".splitlines()[0]
        figures |= outcome.figures
        outcome.raw["took_seconds"] = round(time.monotonic() - began, 1)
        raw[group] = outcome.raw
        raw["versions"] = bench.lab.versions()
        results.write(out, figures, raw)
    return figures, raw


def main() -> int:
    """Run the bench; 0 when every figure asked for was measured, 1 otherwise, 2 for bad usage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="FIGURE", help="figures or groups; all by default")
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"), help="where the results go")
    parser.add_argument("--repeats", type=int, default=3, help="repetitions whose median counts")
    parser.add_argument("--largest-scale", type=int, default=4, help="where the scale series 1, 2, 4 ends")
    parser.add_argument("--small", action="store_true", help="a few actors, to try the bench; its numbers mean nothing")
    parser.add_argument("--keep", action="store_true", help="keep the engines' data and images for the next run")
    args = parser.parse_args()
    try:
        groups = results.groups_of(args.only)
    except ValueError as error:
        parser.error(str(error))
    signal.signal(signal.SIGTERM, _end)
    lab = Lab(Path("build/bench").resolve(), keep=args.keep)
    try:
        figures, raw = measure(
            Bench(lab=lab, repeats=max(1, args.repeats), largest_scale=args.largest_scale, small=args.small),
            groups,
            args.out,
        )
        # Before the engines are removed: results are shown whatever becomes of that.
        print(results.table(figures, raw), flush=True)
    finally:
        say("bench: stopping its engines")
        lab.close()
    wanted = [figure.name for figure in results.FIGURES if figure.group in groups]
    return 0 if all(figures.get(name) is not None for name in wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
