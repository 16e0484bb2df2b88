"""Moving an image: push and pull with a local registry, and conversion to squashfs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from builds import ONE_LAYER, OURS
from greenroom import debian
from greenroom.engine import Engine
from greenroom.process import run
from greenroom.publish import push_image
from harness import Bench, median, ratio
from lab import forget, settle_disk
from local_registry import Registry, start_registry
from parts import unpacked

TRANSFER_TIMEOUT = 900.0
SIDES = (OURS, ONE_LAYER)
ZSTD = "ours_zstd"


def registry(bench: Bench) -> None:
    """Measure push_after_bump_share and pull_speedup: the first image, then the bumped one."""
    images = {side: {variant: bench.image(side, variant) for variant in ("base", "bumped")} for side in SIDES}
    # One for each side, so that neither finds the base image's layer pushed already.
    root = unpacked(bench.lab)
    places = {side: start_registry(root, bench.lab.directory / f"registry-{side}") for side in SIDES}
    for place in places.values():
        bench.lab.adopt(place.child)
    raw = bench.outcome.raw
    for side, place in places.items():
        pushes = {variant: _push(bench.engine, place, images[side][variant], side, variant) for variant in images[side]}
        before, after = (place.layers(side, variant) for variant in ("base", "bumped"))
        new = {digest: size for digest, size in after.items() if digest not in before}
        raw[side] = {
            "pushes": pushes,
            "layers": len(after),
            "new_layers": len(new),
            "new_layer_bytes": sum(new.values()),
        }
        raw[side]["share"] = ratio(pushes["bumped"]["stored_bytes"], pushes["base"]["stored_bytes"])
    bench.outcome.figures["push_after_bump_share"] = raw[OURS]["share"]
    zstd = start_registry(root, bench.lab.directory / "registry-zstd")
    bench.lab.adopt(zstd.child)
    raw[ZSTD] = _push_zstd(bench.engine, zstd, images[OURS]["bumped"])
    pulls = _pulls(bench, {**places, ZSTD: zstd})
    raw["cold_pull_seconds"] = pulls
    # The goal compares like with like, gzip; what zstd adds is told beside it.
    raw["pull_speedup_zstd"] = ratio(median(pulls[ONE_LAYER]), median(pulls[ZSTD]))
    bench.outcome.figures["pull_speedup"] = ratio(median(pulls[ONE_LAYER]), median(pulls[OURS]))


def _push(engine: Engine, place: Registry, image: str, side: str, variant: str) -> dict[str, float]:
    reference = place.reference(side, variant)
    engine.cli("tag", image, reference, changes=True)
    stored = place.stored_bytes()
    settle_disk()
    began = time.monotonic()
    engine.cli("push", "--quiet", reference, changes=True, timeout=TRANSFER_TIMEOUT)
    seconds = round(time.monotonic() - began, 2)
    engine.cli("rmi", reference, changes=True)
    return {"seconds": seconds, "stored_bytes": place.stored_bytes() - stored}


def _push_zstd(engine: Engine, place: Registry, image: str) -> dict[str, float]:
    settle_disk()
    began = time.monotonic()
    push_image(engine, image, place.reference(ZSTD, "bumped"), "zstd")
    return {"seconds": round(time.monotonic() - began, 2), "stored_bytes": place.stored_bytes()}


def _pulls(bench: Bench, places: Mapping[str, Registry]) -> dict[str, list[float]]:
    """Pull each side's bumped image, interleaved, on an engine that has nothing: no base image either."""
    engine = bench.lab.engine("puller", base=False)
    seconds: dict[str, list[float]] = {side: [] for side in places}
    for _ in range(bench.repeats):
        for side, place in places.items():
            reference = place.reference(side, "bumped")
            forget(engine, [reference])
            settle_disk()
            began = time.monotonic()
            engine.cli("pull", "--quiet", reference, changes=True, timeout=TRANSFER_TIMEOUT)
            seconds[side].append(round(time.monotonic() - began, 2))
            forget(engine, [reference])
    return seconds


def squashfs(bench: Bench) -> None:
    """Measure squashfs_ratio: mksquashfs of each image's exported root."""
    images = {side: bench.image(side) for side in SIDES}
    parts = unpacked(bench.lab)
    roots = {side: _exported(bench.engine, images[side], bench.scratch / f"root-{side}") for side in SIDES}
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    sizes: dict[str, int] = {}
    try:
        for _ in range(bench.repeats):
            for side in SIDES:
                target = bench.scratch / f"{side}.squashfs"
                target.unlink(missing_ok=True)
                settle_disk()
                began = time.monotonic()
                argv: list[str | Path] = [
                    parts / "usr/bin/mksquashfs",
                    roots[side],
                    target,
                    "-noappend",
                    "-no-progress",
                    "-quiet",
                ]
                run(argv, changes=True, env=debian.library_environment(parts), timeout=TRANSFER_TIMEOUT)
                seconds[side].append(round(time.monotonic() - began, 2))
                sizes[side] = target.stat().st_size
                target.unlink()
                bench.outcome.raw |= {"seconds": seconds, "bytes": sizes}
    finally:
        for root in roots.values():
            shutil.rmtree(root, ignore_errors=True)
    bench.outcome.figures["squashfs_ratio"] = ratio(median(seconds[OURS]), median(seconds[ONE_LAYER]))


def _exported(engine: Engine, image: str, root: Path) -> Path:
    """Unpack an image's whole root into a directory."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    archive = root.with_suffix(".tar")
    container = engine.cli(
        "create", "--network", "none", image, "/nonexistent", changes=True, timeout=60
    ).stdout.strip()
    try:
        engine.cli("export", "--output", archive, container, changes=True, timeout=TRANSFER_TIMEOUT)
    finally:
        engine.cli("rm", "--force", container, changes=True, timeout=60)
    run(["tar", "-xf", archive, "-C", root], changes=True, timeout=TRANSFER_TIMEOUT)
    archive.unlink()
    return root
