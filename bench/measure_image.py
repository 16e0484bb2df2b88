"""The finished image: its bytes and entries, its digests on two engines, and the time that imports take in it."""

from __future__ import annotations

import json
import random
from typing import Any

import workload
from builds import ONE_LAYER, OURS, SYMLINK
from greenroom.container import READER_UID
from harness import Bench, median, ratio, tag_of
from layers import VENVS, diff_ids, venv_facts

MATH_ACTOR = "greenroom.environments.math_environment.MathEnvironment"
MATH_MODULE = "greenroom.environments.math_judge"
"""The math actor's module that imports its extra: it runs in a process of the actor's own, which is awaited at first use."""
IMPORTS_PER_CONTAINER = 3
TIME_IMPORTS = """
import json, subprocess, sys, time
inner = "import time; t = time.perf_counter(); import {0}; print(time.perf_counter() - t)".format(sys.argv[1])
runs = []
for _ in range(int(sys.argv[2])):
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", inner], capture_output=True, text=True, check=True)
    runs.append([time.perf_counter() - began, float(done.stdout)])
print(json.dumps(runs))
"""
"""Runs in the venv's interpreter: (seconds of the whole process, seconds of the import alone) of each repetition."""


def shape(bench: Bench) -> None:
    """Measure venv_bytes_over_unique and entries_ratio."""
    raw = bench.outcome.raw
    images = {"ours": bench.image(OURS), "ours_with_bytecode": bench.image(OURS, bytecode=True)}
    images |= {side: bench.image(side) for side in (ONE_LAYER, SYMLINK)}
    facts = {name: venv_facts(bench.engine, image, bench.scratch) for name, image in images.items()}
    raw |= {name: item.to_json() for name, item in facts.items()}
    ours, compiled = facts["ours"], facts["ours_with_bytecode"]
    bench.outcome.figures["venv_bytes_over_unique"] = ratio(ours.file_bytes, ours.unique_bytes)
    bench.outcome.figures["entries_ratio"] = ratio(ours.entries, facts[ONE_LAYER].entries)
    if compiled.bytecode_unique_bytes:
        raw["bytecode_over_unique"] = ratio(compiled.bytecode_file_bytes, compiled.bytecode_unique_bytes)
        raw["bytecode_over_sources"] = ratio(compiled.bytecode_file_bytes, compiled.file_bytes)


def digests(bench: Bench) -> None:
    """Measure digests_equal: two clean builds, with bytecode, on two engines' data roots."""
    project = bench.workload()
    tag = tag_of(OURS, "clean")
    found: dict[str, list[str]] = {}
    for name in ("first", "second"):
        engine = bench.lab.engine(name)
        bench.build(OURS, project, tag, bytecode=True, no_cache=True, engine=engine)
        found[name] = diff_ids(engine, tag)
    pairs = list(zip(found["first"], found["second"], strict=False))
    differing = [number for number, (one, other) in enumerate(pairs) if one != other]
    bench.outcome.raw |= {"layers": {name: len(ids) for name, ids in found.items()}, "differing_layers": differing}
    bench.outcome.figures["digests_equal"] = found["first"] == found["second"]


def imports(bench: Bench) -> None:
    """Measure import_speedup: `python -c 'import …'` of the math actor's judging module, without and with bytecode."""
    project = workload.own_project(bench.project("own"))
    tags = {with_it: tag_of(OURS, "imports", bytecode=with_it) for with_it in (False, True)}
    for with_it, tag in tags.items():
        bench.build(OURS, project, tag, bytecode=with_it)
    runs: dict[bool, list[list[float]]] = {False: [], True: []}
    for _ in range(bench.repeats):
        # Interleaved, in a random order, so that neither always finds the files in memory.
        for with_it in random.sample([False, True], 2):
            runs[with_it] += _time_imports(bench, tags[with_it], MATH_MODULE)
    raw: dict[str, Any] = bench.outcome.raw
    raw |= {"module": MATH_MODULE, "without_bytecode": runs[False], "with_bytecode": runs[True]}
    process = {with_it: median(whole for whole, _ in items) for with_it, items in runs.items()}
    alone = {with_it: median(inner for _, inner in items) for with_it, items in runs.items()}
    raw["import_alone_speedup"] = ratio(alone[False], alone[True])
    bench.outcome.figures["import_speedup"] = ratio(process[False], process[True])


def _time_imports(bench: Bench, tag: str, module: str) -> list[list[float]]:
    python = f"/{VENVS}/{MATH_ACTOR}/bin/python"
    command = ["run", "--rm", "--network", "none", "--read-only", "--user", READER_UID, "--entrypoint", python, tag]
    told = bench.engine.cli(*command, "-c", TIME_IMPORTS, module, str(IMPORTS_PER_CONTAINER), timeout=300).stdout
    runs: list[list[float]] = json.loads(told)
    return runs
