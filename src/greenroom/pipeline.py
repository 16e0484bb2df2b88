"""What the commands do: plan, build, verify, push. Console script, nox and invoke call these functions."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from greenroom import timings
from greenroom.base_image import check_base, ensure_base_image
from greenroom.build import BuildRequest, accept, build_image, check_visible, unverified_tag
from greenroom.console import say
from greenroom.container import check_reference, environment_digest, image_target, inspect_image
from greenroom.disk import check_disk
from greenroom.engine import Engine, find_engine
from greenroom.errors import BuildError, UsageError
from greenroom.files import write_aside
from greenroom.image_layers import read_images
from greenroom.plan import Plan
from greenroom.planner import Planned, plan_project
from greenroom.process import is_dry_run
from greenroom.progress import BuildProgress
from greenroom.publish import Pushed, check_destination, push_image
from greenroom.ready_lock import make_missing_lock, ready_lock, uv_program
from greenroom.reproducible import first_difference
from greenroom.selection import Selection
from greenroom.slots import check_layer_count, oversized
from greenroom.smoke import SmokeReport, refuse_smoke, smoke_image
from greenroom.target import Target, bootstrap_target
from greenroom.verify import Report, compare, refuse
from greenroom.wheel_store import default_store


def plan(selection: Selection, *, target: Target | None = None) -> Planned:
    """Plan a selection.

    Args:
        selection: what to plan.
        target: the image's interpreter and platform; when None, the default base image's with the project's Python.

    Returns:
        The plan.

    Raises:
        UsageError, LockError: as `greenroom.planner.plan_project`, or the lock cannot be used.
    """
    # Before there are two threads: the lock that both read, and uv's search for itself, which two must not begin at once.
    uv_program()
    make_missing_lock(selection.project)
    with ThreadPoolExecutor(1) as pool:
        # The lock is checked while it is read; what the check says comes first.
        planned = pool.submit(_plan, selection, target or bootstrap_target(selection.project.python))
        ready_lock(selection.project)
        _warn(planned.result())
        return planned.result()


def _plan(selection: Selection, target: Target) -> Planned:
    planned = plan_project(
        uv=uv_program(),
        project=selection.project.root,
        manifest=selection.project.manifest,
        stage=selection.stage,
        skip=selection.skip,
        target=target,
    )
    check_visible(planned.plan)
    return planned


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """How an image is built.

    Attributes:
        tag: its tag; the project's when empty.
        base_image: what it is built on; the project's when empty.
        no_cache: run every build step again.
        bytecode: put compiled sources into the image: imports get about three times faster, the venvs half as large again.
        timings: write where time and bytes went to `build/timings.json` and `build/timings.html`.
        check_reproducible: build it a second time without any cache, and compare every layer's digest.
        smoke: after its verification, create every registered environment in it.
    """

    tag: str = ""
    base_image: str = ""
    no_cache: bool = False
    bytecode: bool = True
    timings: bool = False
    check_reproducible: bool = False
    smoke: bool = False


def image(
    selection: Selection,
    options: ImageOptions,
    *,
    on_report: Callable[[Report], None],
    on_smoke: Callable[[SmokeReport], None] = lambda report: None,
) -> str:
    """Build an image and verify it; only a verified image gets the tag.

    Args:
        selection: what it holds.
        options: how it is built.
        on_report: receives the verification's report before a wrong image is refused.
        on_smoke: receives the smoke test's report before an image that fails it is refused.

    Returns:
        The verified image's id; "" in a dry run.

    Raises:
        GreenroomError: of every kind; each has its exit code.
    """
    project = selection.project
    tag = check_reference(options.tag or project.tag)
    base_image = check_base(options.base_image or project.base_image)
    ready_lock(project)
    engine = find_engine()
    base = ensure_base_image(engine, base_image)
    target = bootstrap_target(project.python) if is_dry_run() else image_target(engine, base)
    planned = _plan(selection, target)
    write_aside(selection.output / "plan.json", planned.plan.to_json())
    describe(planned)
    if not planned.plan.included:
        raise UsageError(
            "every actor is left out: there is no venv to build",
            cause=f"stage {selection.stage}, skip {', '.join(selection.skip) or 'nothing'}",
            next_step="greenroom plan lists the actors; skip less",
        )
    if not is_dry_run():
        check_layer_count(len(engine.client().images.get(base).attrs["RootFS"]["Layers"]), planned.plan.last_place)
        present = "" if options.no_cache or options.check_reproducible else tag
        twice = options.check_reproducible
        check_disk(engine, planned.plan, present=present, bytecode=options.bytecode, twice=twice)
    compiles = planned.plan.last_place > 0
    compile_image = ensure_base_image(engine, check_base(project.compile_image)) if compiles else ""
    with unverified_tag(engine, tag) as aside:
        request = BuildRequest(
            project=project,
            plan=planned.plan,
            base_image=base,
            tag=aside,
            urls=planned.urls,
            no_cache=options.no_cache,
            bytecode=options.bytecode,
            compile_image=compile_image,
            compile_environment=environment_digest(engine, compile_image) if compiles and not is_dry_run() else "",
            exclude_newer=planned.rules.exclude_newer,
            store=default_store(),
        )
        progress, image_id = BuildProgress(), ""
        try:
            image_id = build_image(engine, request, progress)
        finally:
            if options.timings and not is_dry_run():
                _write_timings(engine, progress, image_id, tag, selection.output)
        if is_dry_run():
            accept(engine, "", aside, tag)
            return ""
        if options.check_reproducible:
            _build_again(engine, request, image_id)
        # A refused image keeps the name under which it can be looked at.
        report = _verify(engine, selection, image_id)
        report = dataclasses.replace(report, image=tag if report.ok else aside)
        write_report(report, selection.output / "verify.json")
        on_report(report)
        refuse(report)
        if options.smoke:
            refuse_smoke(_smoke(engine, selection, image_id, planned.plan, on_smoke, called=aside))
        accept(engine, image_id, aside, tag)
    built = engine.client().images.get(image_id)
    size = built.attrs["Size"] / 1e6
    say(
        f"{tag} is built and verified: {built.id}, {size:.0f} MB, {len(planned.plan.included)} venvs; {selection.output}"
    )
    if engine.private:
        say('its engine is private: eval "$(greenroom engine env)" lets docker reach it')
    return str(built.id)


def push(
    selection: Selection,
    options: ImageOptions,
    *,
    to: str,
    compression: str,
    on_report: Callable[[Report], None],
) -> Pushed:
    """Build an image, verify it, and push exactly what was verified.

    Args:
        selection: what it holds.
        options: how it is built.
        to: registry, name and tag.
        compression: of the layers: "gzip" or "zstd".
        on_report: as for `image`.

    Returns:
        What the registry has now; also written to `build/push.json`.

    Raises:
        GreenroomError: as for `image`, and nothing was pushed; or the push failed.
    """
    check_destination(check_reference(to), compression)
    image_id = image(selection, options, on_report=on_report)
    pushed = push_image(find_engine(), image_id or options.tag or selection.project.tag, to, compression)
    write_aside(selection.output / "push.json", json.dumps(dataclasses.asdict(pushed), indent=1) + "\n")
    return pushed


def _write_timings(engine: Engine, progress: BuildProgress, image_id: str, tag: str, output: Path) -> None:
    """Write a build's timings, and a table of them to a CI's summary page where there is one.

    A build that failed has no image, and no layers.
    """
    history = engine.client().images.get(image_id).history() if image_id else []
    layers = [(str(step["CreatedBy"]), int(step["Size"])) for step in history]
    rows = timings.timings(progress.steps.values(), layers)
    write_aside(output / "timings.json", json.dumps(timings.to_json(rows), indent=1) + "\n")
    write_aside(
        output / "timings.html", timings.to_html(rows, f"Build of {tag}" if image_id else f"Failed build of {tag}")
    )
    say(f"timings are in {output / 'timings.html'}")
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(timings.to_markdown(rows))


def _build_again(engine: Engine, request: BuildRequest, first: str) -> None:
    """Build a second time and compare.

    Raises:
        BuildError: a layer's digest differs; the first differing file is named.
    """
    again = dataclasses.replace(request, tag=f"{request.tag}-again", no_cache=True, rebuild_sdists=True)
    say("build a second time, without any cache")
    second = build_image(engine, again, BuildProgress())
    try:
        difference = first_difference(*read_images(engine, [first, second]))
    finally:
        engine.cli("rmi", again.tag, changes=True)
    if difference:
        raise BuildError(
            f"two builds of one plan differ: {difference}",
            cause="an sdist or the project whose build records a time or a path",
            next_step="greenroom diff shows the rest; set SOURCE_DATE_EPOCH in that build",
        )
    say("both builds have the same layers")


def verify(selection: Selection, *, tag: str = "", report_file: Path | None = None) -> Report:
    """Verify an image.

    Args:
        selection: what it must hold.
        tag: the image; the project's tag when empty.
        report_file: where the report goes as JSON; `build/verify.json` when None.

    Returns:
        The report. It is the caller's to `refuse` it.

    Raises:
        GreenroomError: the image cannot be read, or the expectation cannot be made.
    """
    ready_lock(selection.project)
    report = _verify(find_engine(), selection, tag or selection.project.tag)
    write_report(report, report_file or selection.output / "verify.json")
    return report


def _verify(engine: Engine, selection: Selection, image: str) -> Report:
    say(f"verify {image}")
    target = image_target(engine, image)
    expectation = _plan(selection, target).plan
    venv_dir = selection.project.venv_dir
    found = inspect_image(engine, image, venv_dir)
    return compare(expectation, found, image=image, venv_dir=venv_dir, uv_version=version("uv"))


def smoke(selection: Selection, *, tag: str = "") -> SmokeReport:
    """Create every registered environment in an image, each from its own venv, and ask each something.

    Args:
        selection: what the image holds.
        tag: the image; the project's tag when empty.

    Returns:
        The report. It is the caller's to `refuse_smoke` it.

    Raises:
        GreenroomError: the image cannot be tried.
    """
    ready_lock(selection.project)
    engine = find_engine()
    image = tag or selection.project.tag
    return _smoke(engine, selection, image, _plan(selection, image_target(engine, image)).plan)


def _smoke(
    engine: Engine,
    selection: Selection,
    image: str,
    planned: Plan,
    on_report: Callable[[SmokeReport], None] = lambda report: None,
    called: str = "",
) -> SmokeReport:
    report = smoke_image(engine, image, planned, selection.project.venv_dir)
    report = dataclasses.replace(report, image=called or image)
    write_aside(selection.output / "smoke.json", json.dumps(report.to_json(), indent=1) + "\n")
    on_report(report)
    return report


def write_report(report: Report, path: Path) -> None:
    """Write a report as JSON."""
    write_aside(path, json.dumps(report.to_json(), indent=1) + "\n")


def describe(planned: Planned) -> None:
    """Say on stderr what is going to be built, and why not the rest."""
    whole = planned.plan
    size = sum(artifact.size for artifact in whole.artifacts)
    say(
        f"plan {whole.digest[:19]}: {len(whole.included)} venvs in {len(whole.sets)} sets, "
        f"{len(whole.artifacts)} files, {size / 1e6:.0f} MB to fetch; stage {whole.stage}; "
        f"skip {', '.join(whole.skip) or 'nothing'}; CPython {whole.target.python} {whole.target.machine}"
    )
    for actor in whole.actors:
        if not actor.included:
            say(f"out: {actor.fqn}: {actor.reason}")
    _warn(planned)


def _warn(planned: Planned) -> None:
    for warning in oversized(planned.plan.artifacts):
        say(f"warning: {warning}")
