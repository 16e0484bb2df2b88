"""The examples are projects as anybody's: greenroom's manifest with other tables, and what they document.

The large one is locked from the public index, planned and estimated here; it is never built, for its image takes a disk
and hours that a CI does not have. The small one is built by `tests/image/test_minimal_example.py`.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.image.support import greenroom, succeeded

from greenroom.closures import parse
from greenroom.manifest import actors_of_the_driver, read_rows
from greenroom.project import load_project
from greenroom.stamps import set_name

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "examples"
NAMES = ["minimal", "post-training"]
GB = 1_000_000_000


def without_tables(manifest: Path) -> str:
    """Return a manifest's text without what is its project's own."""
    text = re.sub(r"(?ms)^(ACTOR_ENVIRONMENTS: .*? = )\{.*?^\}$", r"\1", manifest.read_text())
    return re.sub(r"(?m)^(SOURCE_BUILT_STAGES: .*? = )\{.*\}$", r"\1", text)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_s_manifest_is_greenroom_s_with_other_tables(name: str) -> None:
    ours = without_tables(REPOSITORY / "src/greenroom/actor_environments.py")
    assert without_tables(EXAMPLES / name / "actor_environments.py") == ours


@pytest.mark.parametrize("name", NAMES)
def test_an_example_s_reviewed_closures_cover_its_sets_and_hold_no_address(name: str) -> None:
    project = load_project(EXAMPLES / name)
    assert project.closures
    text = project.closures.read_text()
    assert set(parse(text)) == {set_name(row.extras) for row in read_rows(project.manifest)}
    assert "://" not in text


def test_the_post_training_actors_are_those_of_the_benchmark() -> None:
    """The same 29 actors: there on small packages that are built, here on the real ones."""
    example, bench = (
        REPOSITORY / name / "actor_environments.py" for name in ("examples/post-training", "bench/post-training")
    )
    assert read_rows(example) == read_rows(bench)
    assert actors_of_the_driver(example) == actors_of_the_driver(bench)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The large example, locked and planned as a user does it, as JSON."""
    source = EXAMPLES / "post-training"
    project = tmp_path_factory.mktemp("examples") / "post-training"
    project.mkdir()
    for name in ("pyproject.toml", "actor_environments.py", "closures.txt"):
        shutil.copyfile(source / name, project / name)
    # Makes the lock, and refuses one that is not the reviewed one.
    done = succeeded(greenroom("plan", "--project", project, "--json"))
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_post_training_job_is_planned(planned: dict[str, Any]) -> None:
    included = [actor for actor in planned["actors"] if actor["included"]]
    assert (len(included), len(planned["sets"]), len(planned["driver_actors"])) == (20, 11, 9)
    reasons = {actor["fqn"].rpartition(".")[2]: actor["reason"] for actor in planned["actors"]}
    assert reasons["VllmGenerationWorker"] == "needs vllm + nemo-gym"
    assert reasons["TrtllmAsyncGenerationWorker"] == "needs trtllm"
    # What has no room in one environment: two releases of torch, and each set has one.
    torch = {name: closure["torch"] for name, closure in planned["closures"].items() if "torch" in closure}
    assert len(set(torch.values())) == 2
    heavy = {
        "vllm": "vllm",
        "sglang": "sglang",
        "megatron-core": "mcore",
        "nemo-automodel": "automodel",
        "nemo-gym": "nemo-gym",
        "nvidia-modelopt": "modelopt",
    }
    for distribution, extra in heavy.items():
        having = {name for name, closure in planned["closures"].items() if distribution in closure}
        assert having == {row["name"] for row in planned["sets"] if extra in row["extras"]}


def test_the_post_training_job_is_estimated(planned: dict[str, Any]) -> None:
    found = planned["estimate"]
    assert found["download_bytes"] == sum(artifact["size"] for artifact in planned["artifacts"])
    assert found["unknown"] == []
    assert 5 * GB < found["download_bytes"] < 9 * GB
    assert 1.5 < found["unpacked_bytes"] / found["download_bytes"] < 4
    assert 2 * found["download_bytes"] + found["unpacked_bytes"] < found["disk_bytes"] < 60 * GB
