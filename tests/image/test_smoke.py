"""The smoke test: every environment answers from its own venv in the image, and what goes wrong is named."""

from __future__ import annotations

import json

import pytest
from tests.image.support import COMPILED, REPO, VENV_DIR, Built, Images, error_line, greenroom, succeeded

from greenroom.actor_environments import ACTOR_ENVIRONMENTS
from greenroom.environments.utils import ENV_REGISTRY

SITE = "lib/python3.13/site-packages"
PUZZLE = "greenroom.environments.sliding_puzzle.SlidingPuzzleEnvironment"
RETRIEVER = "greenroom.environments.retriever.RetrieverEnvironment"


def test_every_environment_answers_from_its_own_venv(default_image: Built) -> None:
    done = succeeded(greenroom("smoke", "--image", default_image.tag, "--skip", COMPILED, "--json"))
    report = json.loads(done.stdout)
    assert report["ok"] and report["problems"] == [] and report["image"] == default_image.tag
    rows = {row["environment"]: row for row in report["environments"]}
    assert set(rows) == set(ENV_REGISTRY)
    for row in rows.values():
        assert row["problem"] is None and ("left_out" in row) == (row["environment"] == COMPILED)
        if ACTOR_ENVIRONMENTS[row["actor"]] is not None and "left_out" not in row:
            assert row["venv"] == f"{VENV_DIR}/{row['actor']}"
    assert json.loads((REPO / "build" / "smoke.json").read_text()) == report


def test_an_image_without_some_venvs_is_tried_without_them(images: Images) -> None:
    tag = images.tag("smoke-retriever")
    words = ["--skip", "math", "--skip", "gymnasium", "--skip", "reward", "--skip", COMPILED]
    done = succeeded(greenroom("image", "--tag", tag, "--smoke", *words))
    assert "5 environments answered" not in done.stdout
    assert "4 environments answered, 0 problems" in done.stdout
    assert images.id_of(tag)


@pytest.fixture(scope="module")
def damaged(default_image: Built, images: Images) -> str:
    """An image whose puzzle leaves a process behind and whose retriever lacks what it imports."""
    puzzle = f"{VENV_DIR}/.sets/*/{SITE}/greenroom/environments/sliding_puzzle.py"
    # Ray ends the children of its workers; this one is an orphan before Ray looks.
    leave = 'import subprocess; subprocess.run(["setsid", "-f", "sleep", "1234"])'
    return images.derive(
        "smoke-damaged",
        default_image.tag,
        "USER root",
        f"RUN for file in {puzzle}; do rm -rf $(dirname $file)/__pycache__; "
        f"printf '%s\\n' '{leave}' >> $file; done; rm -rf {VENV_DIR}/{RETRIEVER}/{SITE}/bm25s",
    )


def test_what_goes_wrong_is_named_and_does_not_hide_the_rest(damaged: str) -> None:
    done = greenroom("smoke", "--image", damaged, "--skip", COMPILED)
    assert done.returncode == 1
    assert "smoke test of" in error_line(done) and " more, listed above" in error_line(done)
    assert "retriever: " in done.stdout and "bm25s" in done.stdout
    assert "is left: sleep 1234" in done.stdout
    assert "7 environments answered, 2 problems" in done.stdout


def test_a_project_without_the_runtime_library_cannot_be_tried(tiny_image: Built) -> None:
    done = greenroom("smoke", "--project", tiny_image.project, "--image", tiny_image.tag)
    assert done.returncode == 2
    assert "no venv of it holds greenroom and ray" in error_line(done)
