"""The commands, as invoke tasks by noun: the console script `greenroom` and `invoke` both run these.

Each task reads its arguments, calls one function of `greenroom.pipeline` or `greenroom.engine`, and
prints the result. Every failure ends with its class's exit code and one line on stderr.
"""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

from invoke.collection import Collection
from invoke.context import Context
from invoke.tasks import Task

from greenroom import engine, pipeline, report, size_report, wheel_store
from greenroom.command import command
from greenroom.errors import EngineError, UsageError
from greenroom.git_sources import pack_repositories
from greenroom.image_diff import compare_images
from greenroom.image_layers import read_images
from greenroom.manifest import actors_of_the_driver, known_extras, normalise_skips, read_rows
from greenroom.project import load_project
from greenroom.ready_lock import update_lock
from greenroom.selection import Selection, select
from greenroom.sizes import measure
from greenroom.smoke import SmokeReport, refuse_smoke
from greenroom.verify import Report, refuse


def _select(project: str, manifest: str, stage: str, skip: list[str] | None) -> Selection:
    return select(project, manifest=manifest or None, stage=stage, skip=skip or [])


@command(words=["project", "manifest", "stage", "skip"], iterable=["skip"], help={"json": "print the plan as JSON"})
def plan(
    context: Context,
    project: str = ".",
    manifest: str = "",
    stage: str = "all",
    skip: list[str] | None = None,
    json: bool = False,
) -> None:
    """Show every actor, in or out and why, its stage, environment set and closure size."""
    selection = _select(project, manifest, stage, skip)
    planned = pipeline.plan(selection)
    driver_actors = actors_of_the_driver(selection.project.manifest)
    if json:
        report.print_json(report.plan_json(planned.plan, driver_actors))
    else:
        report.print_plan(planned.plan, driver_actors)


@command(
    words=[
        "project",
        "manifest",
        "stage",
        "skip",
        "tag",
        "base-image",
        "no-cache",
        "bytecode",
        "timings",
        "check-reproducible",
        "smoke",
    ],
    iterable=["skip"],
    optional=["json"],
    help={"json": "print the verification's report as JSON, or write it to a file"},
)
def image(
    context: Context,
    project: str = ".",
    manifest: str = "",
    stage: str = "all",
    skip: list[str] | None = None,
    tag: str = "",
    base_image: str = "",
    no_cache: bool = False,
    bytecode: bool = True,
    timings: bool = False,
    check_reproducible: bool = False,
    smoke: bool = False,
    json: str = "",
) -> None:
    """Build the image and verify it; only a verified image gets the tag."""
    selection = _select(project, manifest, stage, skip)
    options = pipeline.ImageOptions(
        tag=tag,
        base_image=base_image,
        no_cache=no_cache,
        bytecode=bytecode,
        timings=timings,
        check_reproducible=check_reproducible,
        smoke=smoke,
    )
    pipeline.image(
        selection,
        options,
        on_report=lambda result: _show_report(result, json),
        on_smoke=lambda result: _show_smoke(result, json),
    )


@command(
    words=["project", "manifest", "stage", "skip", "tag", "base-image", "bytecode", "smoke"],
    iterable=["skip"],
    help={
        "to": "where: registry/name:tag",
        "compression": "of the layers: gzip (the engine's own), or zstd (nodes unpack it faster; needs skopeo)",
        "json": "print what was pushed as JSON; the verification's table is left out",
    },
)
def push(
    context: Context,
    to: str,
    project: str = ".",
    manifest: str = "",
    stage: str = "all",
    skip: list[str] | None = None,
    tag: str = "",
    base_image: str = "",
    bytecode: bool = True,
    smoke: bool = False,
    compression: str = "gzip",
    json: bool = False,
) -> None:
    """Build the image, verify it, and push exactly what was verified; a failing verification pushes nothing."""
    pushed = pipeline.push(
        _select(project, manifest, stage, skip),
        pipeline.ImageOptions(tag=tag, base_image=base_image, bytecode=bytecode, smoke=smoke),
        to=to,
        compression=compression,
        on_report=lambda result: None if json and result.ok else report.print_report(result),
    )
    if json:
        report.print_json(dataclasses.asdict(pushed))
    else:
        print(f"{pushed.reference}@{pushed.digest}")


@command(
    words=["project", "manifest", "stage", "skip"],
    iterable=["skip"],
    optional=["json"],
    help={"image": "the image; else the project's tag", "json": "print the report as JSON, or write it to a file"},
)
def verify(
    context: Context,
    project: str = ".",
    manifest: str = "",
    stage: str = "all",
    skip: list[str] | None = None,
    image: str = "",
    json: str = "",
) -> None:
    """Check that an image holds exactly what the manifest and the lock say; exit 1 lists every difference."""
    result = pipeline.verify(_select(project, manifest, stage, skip), tag=image)
    _show_report(result, json)
    refuse(result)


@command(
    words=["project", "manifest", "stage", "skip"],
    iterable=["skip"],
    help={"image": "the image; else the project's tag", "json": "print the report as JSON"},
)
def smoke(
    context: Context,
    project: str = ".",
    manifest: str = "",
    stage: str = "all",
    skip: list[str] | None = None,
    image: str = "",
    json: bool = False,
) -> None:
    """Create every registered environment in an image, each from its own venv, and ask each something."""
    result = pipeline.smoke(_select(project, manifest, stage, skip), tag=image)
    if json:
        report.print_json(result.to_json())
    else:
        report.print_smoke(result)
    refuse_smoke(result)


def _show_smoke(result: SmokeReport, json: str | bool) -> None:
    """Print a smoke test's report, unless stdout is the verification's report as JSON and nothing else."""
    if json is not True:
        report.print_smoke(result)


def _show_report(result: Report, json: str | bool) -> None:
    """Print a report: `--json` alone prints JSON, `--json FILE` writes it beside the table."""
    if json is True:
        report.print_json(result.to_json())
        return
    if json:
        pipeline.write_report(result, Path(json))
    report.print_report(result)


@command(words=["project", "manifest", "accept"])
def lock(context: Context, project: str = ".", manifest: str = "", accept: bool = False) -> None:
    """Make or update uv.lock and compare it with the reviewed closures."""
    for line in update_lock(project, manifest=manifest or None, accept=accept):
        print(line)


@command(words=["project", "manifest", "format", "variant"])
def matrix(context: Context, project: str = ".", manifest: str = "", format: str = "json", variant: str = "") -> None:
    """Print the named variants of skip lists as one line of JSON, for a CI's matrix."""
    if format not in {"json", "github"}:
        raise UsageError(f"unknown format {format!r}", next_step="use json or github")
    loaded = load_project(Path(project), manifest=manifest or None)
    known = known_extras(read_rows(loaded.manifest))
    variants = {name: normalise_skips(skips, known) for name, skips in loaded.matrix.items()} or {"full": ()}
    if variant and variant not in variants:
        raise UsageError(f"unknown variant {variant!r}", next_step=f"use one of: {', '.join(variants)}")
    report.print_matrix({variant: variants[variant]} if variant else variants, format)


@command(help={"image": "the image", "json": "print as JSON"})
def size(context: Context, image: str, json: bool = False) -> None:
    """Show what an image's venvs, distributions and layers weigh, largest first, without running it."""
    (read,) = read_images(engine.find_engine(), [image])
    sizes = measure(read)
    if json:
        report.print_json(size_report.sizes_json(sizes))
    else:
        size_report.print_sizes(sizes)


@command(help={"before": "image A", "after": "image B", "json": "print as JSON"})
def diff(context: Context, before: str, after: str, json: bool = False) -> None:
    """Show what differs from image A to image B by venv and distribution, and which layers change."""
    found = compare_images(*read_images(engine.find_engine(), [before, after]))
    if json:
        report.print_json(size_report.diff_json(found))
    else:
        size_report.print_diff(found)


@command(
    words=["project", "manifest", "stage", "skip"],
    iterable=["skip"],
    positional=["directory"],
    help={"directory": "receives a tar file for each commit"},
)
def sources(
    context: Context,
    directory: str,
    project: str = ".",
    manifest: str = "",
    stage: str = "all",
    skip: list[str] | None = None,
) -> None:
    """Fetch what the lock takes from git repositories, for a build of the Dockerfile without this command."""
    planned = pipeline.plan(_select(project, manifest, stage, skip))
    for path in pack_repositories(planned.urls, Path(directory)):
        print(path)


@command(help={"json": "print as JSON"})
def wheels_list(context: Context, json: bool = False) -> None:
    """List the store of compiled wheels: $GREENROOM_WHEEL_STORE, else wheels/ in the cache directory."""
    try:
        found = list(wheel_store.entries(wheel_store.default_store()))
    except ValueError as error:
        raise UsageError(str(error), cause="it was changed by hand", next_step="remove that directory") from error
    if json:
        report.print_json([{"key": entry.key, "wheel": str(entry.wheel), **entry.made_from} for entry in found])
        return
    for entry in found:
        size = entry.wheel.stat().st_size / 1e6
        print(f"{entry.key}  {entry.made_from['name']} {entry.made_from['version']}  {size:.1f} MB  {entry.wheel.name}")


@command(positional=["directory"], help={"directory": "receives a copy of the store"})
def wheels_export(context: Context, directory: str) -> None:
    """Copy the store of compiled wheels into a directory."""
    for entry in wheel_store.copy_entries(wheel_store.default_store(), Path(directory)):
        print(entry.wheel)


@command(positional=["directory"], help={"directory": "what an export made"})
def wheels_import(context: Context, directory: str) -> None:
    """Copy what an export made into the store of compiled wheels; every wheel is checked."""
    for entry in wheel_store.copy_entries(Path(directory), wheel_store.default_store()):
        print(entry.wheel)


@command()
def engine_start(context: Context) -> None:
    """Start the private engine, or say which engine answers already."""
    print(engine.start_engine().host)


@command()
def engine_stop(context: Context) -> None:
    """Stop the private engine."""
    print("stopped" if engine.stop_engine() else "was not running")


@command(help={"json": "print as JSON"})
def engine_status(context: Context, json: bool = False) -> None:
    """Say which engine answers; exit 3 when none does."""
    status = engine.engine_status()
    if json:
        report.print_json(status)
    elif status["answers"]:
        for key, value in status.items():
            print(f"{key}: {value}")
    if not status["answers"]:
        raise EngineError(str(status["reason"]))


@command()
def engine_env(context: Context) -> None:
    """Print the shell commands that let `docker` reach the engine: eval "$(greenroom engine env)"."""
    for line in engine.shell_commands(engine.find_engine(start=False)):
        print(line)


def _collection(name: str, default: str, **tasks: Task[Any]) -> Collection:
    collection = Collection(name)
    for word, body in tasks.items():
        collection.add_task(body, name=word, default=word == default)
    return collection


def _another(made: Task[Any]) -> Task[Any]:
    """Return a task once more, for a second name: invoke uses up the help of a task's options when it shows them."""
    another = copy.copy(made)
    another.help = dict(made.help)
    return another


namespace = Collection(
    _collection("image", "build", build=image, verify=_another(verify)),
    _collection("plan", "show", show=plan),
    _collection("lock", "update", update=lock),
    _collection("matrix", "show", show=matrix),
    _collection("wheels", "list", **{"list": wheels_list, "export": wheels_export, "import": wheels_import}),
    _collection("engine", "status", start=engine_start, stop=engine_stop, status=engine_status, env=engine_env),
)
namespace.add_task(verify, name="verify")
namespace.add_task(smoke, name="smoke")
namespace.add_task(push, name="push")
namespace.add_task(sources, name="sources")
namespace.add_task(size, name="size")
namespace.add_task(diff, name="diff")
