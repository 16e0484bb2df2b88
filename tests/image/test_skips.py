"""Leaving extras out: nothing of theirs is in the image, and a misspelt one builds nothing."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.image.support import (
    COMPILED,
    REPO,
    VENV_DIR,
    Built,
    Images,
    build,
    copy_project,
    differences,
    error_line,
    greenroom,
    snapshot,
)

MATH = {"math", "math+reward"}


@pytest.fixture(scope="module")
def without_math(default_image: Built, images: Images) -> Built:
    """The default image without an extra, chosen by the environment as a CI does."""
    return build(images, "no-math", default_image.project, "--skip", COMPILED, variables={"SKIP_MATH_BUILD": "1"})


def distributions_of(plan: dict[str, Any], sets: set[str]) -> set[tuple[str, str]]:
    """Return name and version of the distributions of some sets."""
    files = {
        file for environment_set in plan["sets"] if environment_set["name"] in sets for file in environment_set["files"]
    }
    return {(item["name"], item["version"]) for item in plan["artifacts"] if item["filename"] in files}


def installed_in(names: list[str]) -> set[tuple[str, str]]:
    """Return name and version of the distributions that are among the paths."""
    found = (re.search(r"/([^/]+)-([^/-]+)\.dist-info$", name) for name in names)
    return {(re.sub(r"[-_.]+", "-", match[1]).lower(), match[2]) for match in found if match}


def names_in_layers(images: Images, tag: str, directory: Path) -> list[str]:
    """Return the path of every entry of every layer, as a registry would store them."""
    saved = directory / "image.tar"
    images.engine.cli("save", "--output", saved, tag)
    names: list[str] = []
    with tarfile.open(saved) as archive:
        manifest = archive.extractfile("manifest.json")
        assert manifest
        for layer in json.load(manifest)[0]["Layers"]:
            with tarfile.open(fileobj=archive.extractfile(layer)) as entries:
                names += entries.getnames()
    saved.unlink()
    return names


def test_a_skipped_extra_leaves_nothing_in_any_layer(
    default_image: Built, without_math: Built, images: Images, tmp_path: Path
) -> None:
    sets = {environment_set["name"] for environment_set in default_image.plan["sets"]}
    exclusive = distributions_of(default_image.plan, MATH) - distributions_of(default_image.plan, sets - MATH)
    assert {name for name, _ in exclusive} >= {"math-verify", "sympy", "antlr4-python3-runtime"}
    names = names_in_layers(images, without_math.tag, tmp_path)
    installed = installed_in(names)
    assert "ray" in {name for name, _ in installed}, "distributions are found this way"
    assert installed & exclusive == set()
    assert [name for name in names if "/math_verify" in name or "/sympy/" in name] == []
    assert [name for name in names if re.search(r"\.sets/math|\.math_environment\.", name)] == []
    assert [name for name in names if "python-Math" in name] == []


def test_a_skipped_extra_s_actors_are_out_and_say_why(without_math: Built, images: Images) -> None:
    actors = {actor["fqn"].rpartition(".")[2]: actor for actor in without_math.plan["actors"]}
    out = {name: actor["reason"] for name, actor in actors.items() if not actor["included"]}
    assert out == {
        "LlamaCppEnvironment": f"skips {COMPILED}",
        "MathEnvironment": "skips math",
        "MathMultiRewardEnvironment": "skips math",
    }
    assert len(without_math.report["venvs"]) == len(actors) - 3
    label = images.engine.cli(
        "image", "inspect", "--format", '{{index .Config.Labels "org.greenroom.skip"}}', without_math.tag
    )
    assert label.stdout.strip() == f"{COMPILED} math"


def test_an_image_is_verified_against_its_own_skip_list(without_math: Built) -> None:
    assert differences(REPO, without_math.tag, "--skip", f"math {COMPILED}") == (0, [])
    code, rows = differences(REPO, without_math.tag, "--skip", COMPILED)
    assert code == 1
    prefix = "greenroom.environments.math_environment"
    assert [row for row in rows if row[0] == "venv-set" and row[1]] == [
        ("venv-set", f"{prefix}.{name}", f"{VENV_DIR}/{prefix}.{name} is missing")
        for name in ("MathEnvironment", "MathMultiRewardEnvironment")
    ]


@pytest.mark.parametrize("command", ["image", "plan", "verify"])
@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["--skip", "lefft"], {}),
        (["--skip", "right", "--skip", "lef"], {}),
        (["--skip", "Left*"], {}),
        ([], {"SKIP_LEFFT_BUILD": "1"}),
        ([], {"SKIP_LEFT_BUILD": "maybe"}),
    ],
    ids=["misspelt", "one right and a part of one", "a pattern", "variable", "a variable's value"],
)
def test_a_wrong_skip_builds_nothing(
    tiny: Path, images: Images, tmp_path: Path, command: str, words: list[str], variables: dict[str, str]
) -> None:
    project = copy_project(tiny, tmp_path / "tiny")
    before = snapshot(project)
    tag = images.tag("never")
    option = {"image": ["--tag", tag], "plan": [], "verify": ["--image", tag]}[command]
    done = greenroom(command, "--project", project, *option, *words, variables=variables)
    assert done.returncode == 2
    assert done.stdout == ""
    line = error_line(done)
    assert "left, right" in line or "export SKIP_LEFT_BUILD=1" in line
    assert snapshot(project) == before
    assert images.id_of(tag) is None
    assert images.id_of(f"{tag}-unverified") is None


@pytest.mark.parametrize("spelling", ["Left", "left,", "LEFT left"])
def test_a_skip_word_s_spelling_does_not_matter(tiny: Path, tmp_path: Path, spelling: str) -> None:
    project = copy_project(tiny, tmp_path / "tiny")
    done = greenroom("plan", "--project", project, "--json", "--skip", spelling)
    included = [actor["fqn"] for actor in json.loads(done.stdout)["actors"] if actor["included"]]
    assert included == ["tiny.Alone", "tiny.Right"]
