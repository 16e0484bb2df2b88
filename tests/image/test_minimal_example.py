"""The small example, as its README says: planned, built, verified, and its job run in its image."""

from __future__ import annotations

import json
import re

import pytest
from tests.image.support import REPO, Built, Images, build, copy_project, greenroom, succeeded


@pytest.fixture(scope="module")
def minimal(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The example's image. There is no lock: it is made, and compared with the reviewed closures."""
    source = copy_project(REPO / "examples/minimal", tmp_path_factory.mktemp("examples") / "minimal")
    (source / "uv.lock").unlink(missing_ok=True)
    return build(images, "minimal", source)


def test_the_minimal_example_is_built_and_verified(minimal: Built) -> None:
    assert sorted(minimal.report["venvs"]) == ["parsers.legacy.LegacyParser", "parsers.modern.ModernParser"]
    assert all(venv["ok"] for venv in minimal.report["venvs"].values())
    assert minimal.plan["project"] == ["parsers", "1.0.0"]


def test_its_venvs_are_where_it_says(minimal: Built, images: Images) -> None:
    venv = "/srv/venvs/parsers.legacy.LegacyParser"
    code = "import json, sys, parsers.legacy; print(json.dumps([sys.prefix, parsers.legacy.version('marshmallow')]))"
    prefix, release = images.python(minimal.tag, code, interpreter=f"{venv}/bin/python")
    assert (prefix, release.split(".")[0]) == (venv, "3")


def test_its_job_starts_each_actor_from_its_own_venv(minimal: Built, images: Images) -> None:
    flags = ["run", "--rm", "--init", "--network", "none", "--shm-size", "1g", minimal.tag]
    command = ["python-ModernParser", "-m", "parsers.job"]
    said = images.engine.cli(*flags, *command, changes=True, timeout=180).stdout
    told = re.findall(r"(?m)^(\w+): marshmallow (\d)\.\S+, (\d+) ordered, (\d+) in all$", said)
    assert told == [("LegacyParser", "3", "24", "24"), ("ModernParser", "4", "24", "48")]


def test_the_estimate_is_right_within_a_factor_of_two(default_image: Built, minimal: Built, images: Images) -> None:
    """Of two real images: what the plan said beforehand, and what the image's layers hold."""
    for image in (default_image, minimal):
        skips = [word for extra in image.plan["skip"] for word in ("--skip", extra)]
        planned = succeeded(greenroom("plan", "--project", image.project, "--json", *skips))
        told = json.loads(planned.stdout)["estimate"]
        found = json.loads(succeeded(greenroom("size", image.tag, "--json")).stdout)
        real = {"bytecode_bytes": found["bytecode"], "unpacked_bytes": found["venv_size"] - found["bytecode"]}
        for name, size in real.items():
            assert size / 2 < told[name] < size * 2, f"{image.tag}: {name}: {told[name]} and really {size}"
        layers = images.engine.client().images.get(image.tag).attrs["RootFS"]["Layers"]
        base = images.engine.client().images.get("greenroom-base:trixie").attrs["RootFS"]["Layers"]
        assert told["layers"] == len(layers) - len(base)
