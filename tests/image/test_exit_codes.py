"""One exit code for each kind of failure, and one line that says what happened and what to do."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.image.support import Images, copy_project, error_line, greenroom, snapshot, succeeded

Breaks = Callable[[Path], None]


def replace_in(name: str, old: str, new: str) -> Breaks:
    def edit(project: Path) -> None:
        text = (project / name).read_text()
        assert old in text
        (project / name).write_text(text.replace(old, new))

    return edit


def remove(name: str) -> Breaks:
    return lambda project: (project / name).unlink()


def nothing(project: Path) -> None:
    """Leave the project as it is."""


DEAD_ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}
CASES: dict[str, tuple[int, Breaks, list[str], dict[str, str], str]] = {
    "no such project": (2, nothing, ["--project", "/nonexistent"], {}, "no pyproject.toml in /nonexistent"),
    "unknown option": (2, nothing, ["--skipp", "left"], {}, "--skipp"),
    "unknown stage": (2, nothing, ["--stage", "dep"], {}, "unknown stage 'dep'; known stages: all, deps"),
    "unknown extra": (2, nothing, ["--skip", "lefft"], {}, "unknown extra to skip: lefft"),
    "unknown setting": (
        2,
        replace_in("pyproject.toml", "[tool.greenroom]", "[tool.greenroom]\ntags = 'x'"),
        [],
        {},
        "tags",
    ),
    "no such manifest": (2, nothing, ["--manifest", "other.py"], {}, "no manifest at other.py"),
    "broken manifest": (2, replace_in("actor_environments.py", "import os", "import os os"), [], {}, "SyntaxError"),
    "unknown suite": (2, nothing, ["--base-image", "bootstrap:sid"], {}, "sid is not a suite"),
    "an extra that the project lacks": (
        2,
        replace_in("actor_environments.py", "['left', 'right']", "['left', 'up']"),
        [],
        {},
        "extras left+up: ",
    ),
    "no engine": (3, nothing, [], DEAD_ENGINE, "DOCKER_HOST=unix:///nonexistent/docker.sock cannot be used"),
    "two classes of one name": (
        4,
        replace_in("actor_environments.py", "'tiny.LeftToo'", "'other.Left'"),
        [],
        {},
        "other.Left and tiny.Left both want the wrapper python-Left",
    ),
    "no lock": (5, remove("uv.lock"), [], {}, "no uv.lock in "),
    "stale lock": (5, replace_in("pyproject.toml", "'idna'", "'idna<3'"), [], {}, "does not match pyproject.toml"),
    "unreadable lock": (5, replace_in("uv.lock", "version = ", "version == "), [], {}, "uv.lock"),
    "no reviewed closures": (
        5,
        replace_in("pyproject.toml", "[tool.greenroom]", "[tool.greenroom]\nclosures = 'closures.txt'"),
        [],
        {},
        "no reviewed closures at closures.txt",
    ),
    "no base image": (
        6,
        nothing,
        ["--base-image", "greenroom.invalid/base:1"],
        {},
        "base image greenroom.invalid/base:1 is not here and cannot be pulled",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_failure_has_its_code_and_one_line(tiny: Path, images: Images, tmp_path: Path, name: str) -> None:
    code, breaks, words, variables, said = CASES[name]
    project = copy_project(tiny, tmp_path / "tiny")
    breaks(project)
    before = snapshot(project)
    tag = images.tag("never")
    option = [] if "--project" in words else ["--project", str(project)]
    done = greenroom("image", *option, "--tag", tag, *words, variables=variables)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in error_line(done)
    if code != 4:
        assert snapshot(project) == before
    assert images.id_of(tag) is None


@pytest.mark.parametrize("name", ["no engine", "unknown extra"])
def test_debug_shows_the_traceback(tiny: Path, name: str) -> None:
    code, _, words, variables, said = CASES[name]
    done = greenroom("--debug", "image", "--project", tiny, *words, variables=variables)
    assert done.returncode == code
    assert "Traceback (most recent call last)" in done.stderr
    assert said in done.stderr.splitlines()[-1]


def test_an_image_that_is_not_there(tiny: Path) -> None:
    done = greenroom("verify", "--project", tiny, "--image", "greenroom-test:never")
    assert done.returncode == 2
    assert "no image greenroom-test:never" in error_line(done)


@pytest.fixture
def reviewed(tiny: Path, tmp_path: Path) -> Path:
    """A project with reviewed closures."""
    project = copy_project(tiny, tmp_path / "tiny")
    replace_in("pyproject.toml", "[tool.greenroom]", "[tool.greenroom]\nclosures = 'closures.txt'")(project)
    succeeded(greenroom("lock", "--project", project, "--accept"))
    return project


def test_a_lock_that_is_not_the_reviewed_one_names_what_changed(reviewed: Path) -> None:
    succeeded(greenroom("plan", "--project", reviewed))
    replace_in("closures.txt", "toolz 1.", "toolz 0.")(reviewed)
    for command in (["image", "--tag", "greenroom-test:never"], ["plan"], ["lock"]):
        done = greenroom(*command, "--project", reviewed)
        assert (done.returncode, done.stdout) == (5, "")
        line = error_line(done)
        assert re.search(r"toolz: 0\S* sha256:\w+ -> 1\S* sha256:\w+ \(left\+right, right\)", line)
        assert "six" not in line
    accepted = succeeded(greenroom("lock", "--project", reviewed, "--accept"))
    assert [line.split()[0] for line in accepted.stdout.splitlines()] == ["toolz:"]
    succeeded(greenroom("plan", "--project", reviewed))


def test_a_missing_lock_is_made_where_closures_are_reviewed(reviewed: Path) -> None:
    lock = (reviewed / "uv.lock").read_bytes()
    (reviewed / "uv.lock").unlink()
    succeeded(greenroom("plan", "--project", reviewed))
    assert (reviewed / "uv.lock").read_bytes() == lock


def test_a_file_of_another_hash_ends_the_build_with_both_hashes(tiny: Path, images: Images, tmp_path: Path) -> None:
    project = copy_project(tiny, tmp_path / "tiny")
    packages = tomllib.loads((project / "uv.lock").read_text())["package"]
    (wheel,) = next(package for package in packages if package["name"] == "toolz")["wheels"]
    locked = wheel["hash"].removeprefix("sha256:")
    wrong = locked[::-1]
    replace_in("uv.lock", locked, wrong)(project)
    tag = images.tag("wrong-hash")
    done = greenroom("image", "--project", project, "--tag", tag)
    assert done.returncode == 4
    line = error_line(done)
    assert re.search(r"step \[wheels\S* ", line)
    assert line.count(" | likely cause: ") == line.count(" | next: ") == 1
    assert f"toolz-{wheel['url'].rsplit('toolz-')[-1]}: sha256 is {locked}, the lock says {wrong}" in line
    assert images.id_of(tag) is None
