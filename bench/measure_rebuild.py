"""Cold builds, rebuilds after a bump, and rebuilds with one more actor: ours and the baselines, interleaved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import workload
from builds import BASELINES, ONE_LAYER, OURS, SYMLINK, Build
from greenroom.slots import SLOTS
from harness import Bench, median, ratio, tag_of
from lab import forget
from layers import diff_ids, venv_layers

COLD, NOOP, BUMP, ACTOR, NEW_SET = "cold", "noop", "bump", "actor_added", "actor_added_new_set"


def rebuild(bench: Bench) -> None:
    """Measure cold_ratio, bump_ratio, bump_changed_bytes_share and actor_added_ratio."""
    base, bump = bench.workload(), bench.bumped()
    variants: dict[str, tuple[str, Path]] = {
        COLD: ("base", base),
        NOOP: ("base", base),
        BUMP: ("bumped", bump.project),
        ACTOR: ("actor", workload.add_actor(base, bench.project("actor"), workload.PRESENT_EXTRAS)),
        NEW_SET: ("new-set", workload.add_actor(base, bench.project("new-set"), workload.NEW_SET_EXTRAS)),
    }
    builds: dict[str, dict[str, list[Build]]] = {side: {} for side in (OURS, *BASELINES)}
    raw = bench.outcome.raw
    raw |= {"bump": bump.to_json(), "slots": SLOTS, "added_actor_extras": list(workload.PRESENT_EXTRAS)}
    for number in range(bench.repeats):
        last = number == bench.repeats - 1
        for side in builds:
            # What no figure needs is measured once: the symlink variant, and an actor that makes a set of its own.
            if side == SYMLINK and not last:
                continue
            forget(bench.engine, [tag_of(side, tag) for tag, _ in dict.fromkeys(variants.values())])
            for what, (tag, project) in variants.items():
                if (side == SYMLINK and what in (ACTOR, NEW_SET)) or (not last and what == NEW_SET):
                    continue
                done = bench.build(side, project, tag_of(side, tag))
                builds[side].setdefault(what, []).append(done)
                raw[side] = {name: [item.to_json() for item in items] for name, items in builds[side].items()}
    _figures(bench, builds)
    _changed_bytes(bench)


def _figures(bench: Bench, builds: dict[str, dict[str, list[Build]]]) -> None:
    def seconds(side: str, what: str, *, planning: bool = False) -> float:
        return median(item.seconds + planning * item.planning_seconds for item in builds[side][what])

    names = {COLD: "cold_ratio", BUMP: "bump_ratio", ACTOR: "actor_added_ratio"}
    medians: dict[str, Any] = {}
    for what in (COLD, NOOP, BUMP, ACTOR, NEW_SET):
        ours, one_layer = seconds(OURS, what), seconds(ONE_LAYER, what)
        medians[what] = {
            "ours": ours,
            "ours_with_planning": seconds(OURS, what, planning=True),
            "one_layer": one_layer,
            "ratio": ratio(ours, one_layer),
            "ratio_with_planning": ratio(seconds(OURS, what, planning=True), one_layer),
        }
        if what in builds[SYMLINK]:
            medians[what]["symlink"] = seconds(SYMLINK, what)
        if what in names:
            bench.outcome.figures[names[what]] = medians[what]["ratio"]
    bench.outcome.raw["medians"] = medians


def _changed_bytes(bench: Bench) -> None:
    """Compare layers before and after the bump and the added actors, ours and the one-layer image's."""
    changes: dict[str, Any] = {}
    for side in (OURS, ONE_LAYER):
        before = set(diff_ids(bench.engine, tag_of(side, "base")))
        for variant in ("bumped", "actor", "new-set"):
            layers = venv_layers(bench.engine, tag_of(side, variant), bench.scratch)
            new = [layer for layer in layers if layer.diff_id not in before]
            total = sum(layer.tar_bytes for layer in layers)
            changed = sum(layer.tar_bytes for layer in new)
            changes[f"{side} {variant}"] = {
                "layers": len(layers),
                "changed_layer_bytes": [layer.tar_bytes for layer in new],
                "bytes": total,
                "changed_bytes": changed,
                "share": ratio(changed, total),
            }
    bench.outcome.raw["changed"] = changes
    bench.outcome.figures["bump_changed_bytes_share"] = changes[f"{OURS} bumped"]["share"]
