"""Rules that the Dockerfile keeps: what reaches the network, what sees secrets, what it names."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).parents[2]
DOCKER = REPOSITORY / "docker"
TEXT = (DOCKER / "Dockerfile").read_text()

FETCHING = re.compile(r"tools|project|wheels(-\d+)?|compile-tools|compiled-\d+")
"""The stages that may use the network; the image has none of them in its chain."""


def instructions() -> list[tuple[str, str]]:
    """Return (stage, instruction) in order, continuation lines joined."""
    lines = [line for line in TEXT.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()
    stage, result = "", []
    for line in joined:
        if match := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            stage = match[2]
        result.append((stage, line))
    return result


RUNS = [(stage, line) for stage, line in instructions() if line.startswith("RUN ")]


def test_there_is_no_syntax_line() -> None:
    assert not re.search(r"^#\s*(syntax|check|escape)\s*=", TEXT, re.M)


@pytest.mark.parametrize(("stage", "line"), RUNS)
def test_network_and_secrets_go_together_and_to_fetching_stages_only(stage: str, line: str) -> None:
    offline = "--network=none" in line
    assert offline == (FETCHING.fullmatch(stage) is None)
    assert ("type=secret" in line) is not offline


def test_fetching_stages_see_every_secret() -> None:
    for stage, line in RUNS:
        if FETCHING.fullmatch(stage):
            assert re.findall(r"--mount=type=secret,id=(\w+)", line) == ["ca", "netrc", "index"], stage


def chain(stage: str) -> list[str]:
    """Return a stage and those it is built on."""
    parents = {name: parent for parent, name in re.findall(r"^FROM (\S+) AS (\S+)$", TEXT, re.M)}
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)$", TEXT, re.M))
    parents = {name: arguments["FINISHED"] if parent == "${FINISHED}" else parent for name, parent in parents.items()}
    result = [stage]
    while result[-1] in parents:
        result.append(parents[result[-1]])
    return result


def test_the_image_is_built_on_no_fetching_stage() -> None:
    stages = chain("release")
    assert stages[-2:] == ["base", "${BASE_IMAGE}"]
    assert not [stage for stage in stages if FETCHING.fullmatch(stage)]


def test_the_image_copies_nothing() -> None:
    stages = set(chain("release"))
    assert [line for stage, line in instructions() if stage in stages and re.match(r"COPY|ADD", line)] == []


def test_nothing_is_added_from_an_address() -> None:
    assert not re.search(r"^ADD ", TEXT, re.M)
    assert "://" not in TEXT


def test_images_are_named_by_the_base_argument_only() -> None:
    stages = {stage for stage, _ in instructions()}
    sources = [re.split(r"\s+", line)[1] for _, line in instructions() if line.startswith("FROM ")]
    assert set(sources) - stages == {"${BASE_IMAGE}", "${COMPILE_IMAGE}", "${FINISHED}", "scratch"}
    assert not re.search(r":latest|/library/", TEXT)


def test_every_mount_is_of_a_known_stage() -> None:
    stages = {stage for stage, _ in instructions()}
    named = set(re.findall(r"(?:--from=|,from=|--mount=from=)([\w-]+)", TEXT))
    assert named <= stages


def test_every_script_is_used_and_every_used_script_is_there() -> None:
    used = set(re.findall(r"[\w/]*/(\w+\.(?:py|sh))\b", TEXT))
    assert {name for name in used if not (DOCKER / name).is_file()} - {"actor_environments.py"} == set()
    scripts = {path.name for path in DOCKER.iterdir() if path.suffix in {".py", ".sh"}}
    imported = {"build_wheels.py", "network.py", "venv_tree.py"}
    assert scripts - used <= imported


def requirements() -> dict[str, str]:
    """Return the pinned requirements: name → version."""
    lines = re.sub(r"\\\n\s*", "", (DOCKER / "requirements.txt").read_text()).splitlines()
    pins = {}
    for line in lines:
        if line.strip() and not line.startswith("#"):
            match = re.match(r"([\w.-]+)==(\S+)", line)
            assert match, line
            pins[match[1]] = match[2]
    return pins


def test_tools_are_pinned_with_hashes() -> None:
    text = re.sub(r"\\\n\s*", "", (DOCKER / "requirements.txt").read_text())
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            assert re.search(r" --hash=sha256:[0-9a-f]{64}(\s|$)", line), line[:60]
            assert not re.search(r"https?://|--(extra-)?index-url|--find-links", line)


def test_tools_are_the_releases_that_the_host_uses() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    pipeline = {item.name: item.specifier for item in map(Requirement, project["optional-dependencies"]["pipeline"])}
    pins = requirements()
    assert str(pipeline["uv"]) == f"=={pins['uv']}"
    for name in ("uv", "packaging"):
        assert pipeline[name].contains(pins[name]), name


def test_what_is_ignored_is_not_what_is_copied() -> None:
    patterns = [
        line for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines() if line and line[0] != "#"
    ]
    for needed in ("pyproject.toml", "uv.lock", "src", "docker", "README.md", "LICENSE"):
        assert needed not in patterns
    for unwanted in (".git", ".venv", "build", "**/__pycache__"):
        assert unwanted in patterns
