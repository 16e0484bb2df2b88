"""Builds that go wrong, are cut short, come in parts, or are only shown; and one without greenroom's commands."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.image.support import (
    COMPILED,
    REPO,
    VENV_DIR,
    Built,
    Images,
    build,
    clean_environment,
    copy_project,
    differences,
    error_line,
    greenroom,
    program,
    snapshot,
    succeeded,
    write_project,
)

from greenroom.base_image import ensure_base_image
from greenroom.build import read_secrets, secret_arguments, with_secrets
from greenroom.process import Completed, run
from greenroom.project import DEFAULT_BASE_IMAGE


def test_an_image_that_is_refused_never_gets_the_tag(tiny: Path, images: Images, tmp_path: Path) -> None:
    project = copy_project(tiny, tmp_path / "tiny")
    good = build(images, "refused", project)
    identifier = images.id_of(good.tag)
    base = ensure_base_image(images.engine, DEFAULT_BASE_IMAGE)
    bad = images.derive("bad-base", base, "RUN mkdir /wheels && touch /wheels/a-1-py3-none-any.whl /wheels/uv.lock")
    done = greenroom("image", "--project", project, "--tag", good.tag, "--base-image", bad)
    assert done.returncode == 1
    assert "/wheels/a-1-py3-none-any.whl is left in the image" in error_line(done)
    assert "leftovers: /wheels/uv.lock is left in the image" in done.stdout.splitlines()
    assert images.id_of(good.tag) == identifier
    assert images.id_of(f"{good.tag}-unverified") not in {None, identifier}
    assert json.loads((project / "build/verify.json").read_text())["ok"] is False

    again = build(images, "refused", project)
    assert images.id_of(again.tag)
    assert images.id_of(f"{good.tag}-unverified") is None


def test_the_dockerfile_builds_without_greenroom_s_commands(default_image: Built, images: Images) -> None:
    base = ensure_base_image(images.engine, DEFAULT_BASE_IMAGE)
    secrets = read_secrets(os.environ, [])
    tag = images.tag("plain")
    words = ["buildx", "build", "--builder", "default", "--load", "--network", "host", "--tag", tag]
    words += ["-f", f"{REPO}/docker/Dockerfile", "--target", "release", "--build-arg", f"BASE_IMAGE={base}"]
    words += ["--build-arg", f"SKIP_EXTRAS=math reward {COMPILED}"]
    words += secret_arguments(secrets)
    with_secrets(images.engine, secrets).cli(*words, str(REPO), changes=True, timeout=800)
    assert differences(REPO, tag, "--skip", f"math reward {COMPILED}") == (0, [])
    code, _ = differences(REPO, tag, "--skip", f"math {COMPILED}")
    assert code == 1


@pytest.fixture
def unseen(tmp_path: Path) -> Path:
    """A locked project that no cached step fits: its extra has a name of its own."""
    extra = f"x{uuid.uuid4().hex}"
    project = write_project(
        tmp_path / "unseen",
        actors={"unseen.First": [extra], "unseen.Second": [extra]},
        extras={extra: ["six", "toolz", "idna"]},
    )
    succeeded(greenroom("lock", "--project", project))
    return project


def descendants(pid: int) -> list[int]:
    """Return a process's children and theirs, whatever their process groups."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    below = list(parents.get(pid, []))
    for child in below:
        below += parents.get(child, [])
    return below


def installing(project: Path, tag: str) -> subprocess.Popen[str]:
    """Start a build; return when it has installed its first slot and has others before it."""
    child = subprocess.Popen(
        [str(program("greenroom")), "image", "--project", str(project), "--tag", tag],
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr
    said = []
    for line in child.stderr:
        said.append(line)
        if re.search(r"slot \d+ has ", line):
            return child
    child.communicate()
    pytest.fail("".join(said))


@pytest.fixture
def killed(unseen: Path, images: Images) -> str:
    """The tag of a build that was killed, with all of its processes, while it installed."""
    tag = images.tag("killed")
    child = installing(unseen, tag)
    for pid in [child.pid, *descendants(child.pid)]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    child.communicate(timeout=30)
    assert child.returncode == -signal.SIGKILL
    return tag


def test_a_killed_build_leaves_no_image_and_the_next_one_converges(unseen: Path, killed: str, images: Images) -> None:
    assert images.id_of(killed) is None
    assert images.id_of(f"{killed}-unverified") is None
    assert not (unseen / "build/verify.json").exists()
    again = build(images, "killed", unseen)
    assert again.tag == killed
    assert sorted(again.report["venvs"]) == ["unseen.First", "unseen.Second"]


def test_an_interrupted_build_ends_its_processes(unseen: Path, images: Images) -> None:
    tag = images.tag("interrupted")
    child = installing(unseen, tag)
    below = descendants(child.pid)
    assert below
    child.send_signal(signal.SIGINT)
    _, rest = child.communicate(timeout=60)
    assert child.returncode == 130
    assert rest.splitlines()[-1] == "greenroom: interrupted; run the same command again to go on"
    assert "Traceback" not in rest
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in below):
        assert time.monotonic() < deadline, "a process of the build goes on"
        time.sleep(0.1)
    assert images.id_of(tag) is None


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A locked project with a later stage."""
    project = write_project(
        tmp_path_factory.mktemp("staged") / "staged",
        actors={"job.Early": ["left"], "job.Late": ["left", "right"], "job.Other": []},
        extras={"left": ["idna"], "right": ["six"]},
        stages={"right": "late"},
    )
    succeeded(greenroom("lock", "--project", project))
    return project


STAGES = {"deps": ["job.Early", "job.Other"], "late": ["job.Late"]}


@pytest.mark.parametrize(("stage", "other"), [("deps", "late"), ("late", "deps")])
def test_a_stage_s_image_holds_that_stage_s_venvs(staged: Path, images: Images, stage: str, other: str) -> None:
    image = build(images, f"stage-{stage}", staged, "--stage", stage)
    assert sorted(image.report["venvs"]) == STAGES[stage]
    found = images.python(image.tag, f"import json, os; print(json.dumps(sorted(os.listdir({VENV_DIR!r}))))")
    assert found == [".sets", *STAGES[stage]]
    for wanted in (other, "all"):
        code, rows = differences(staged, image.tag, "--stage", wanted)
        missing = {venv for check, venv, what in rows if check == "venv-set" and what.endswith("is missing") and venv}
        assert (code, missing) == (1, set(STAGES[other]))


def dry_greenroom(project: Path, tag: str) -> Completed:
    return greenroom("--dry", "image", "--project", project, "--tag", tag)


def dry_invoke(project: Path, tag: str) -> Completed:
    words = ["--dry", "image.build", "--project", str(project), "--tag", tag]
    return run([program("invoke"), *words], cwd=REPO, env=clean_environment(), timeout=60, check=False)


@pytest.mark.parametrize("command", [dry_greenroom, dry_invoke])
def test_a_dry_run_shows_commands_and_changes_nothing(
    tiny: Path, images: Images, tmp_path: Path, command: Callable[[Path, str], Completed]
) -> None:
    project = copy_project(tiny, tmp_path / "tiny")
    before = snapshot(project)
    tag = images.tag("dry")
    done = succeeded(command(project, tag))
    lines = done.stdout.splitlines()
    (shown,) = [line for line in lines if " buildx build " in line]
    assert f"--tag {tag}-unverified" in shown
    assert str(project) in shown
    assert f"write {project}/build/plan.json" in lines
    assert any(line.endswith(f" tag {tag}-unverified {tag}") for line in lines)
    assert snapshot(project) == before
    assert images.id_of(tag) is None
    assert images.id_of(f"{tag}-unverified") is None
