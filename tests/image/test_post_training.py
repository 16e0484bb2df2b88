"""Another project, unchanged: a post-training job with 29 actors, of which 20 need a venv in 11 sets."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.image.support import REPO, Images, build, copy_project, differences, greenroom, succeeded


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the workload, locked."""
    project = copy_project(REPO / "bench/post-training", tmp_path_factory.mktemp("job") / "post-training")
    succeeded(greenroom("lock", "--project", project))
    return project


# The second build finds most of the first one's steps cached only where the sets are the same.
@pytest.mark.parametrize(
    ("skip", "venvs", "sets"), [([], 20, 11), (["--skip", "vllm"], 13, 8)], ids=["whole", "without vllm"]
)
def test_the_job_s_image(job: Path, images: Images, skip: list[str], venvs: int, sets: int) -> None:
    # Bytecode is the default image's; here it would double the time.
    image = build(images, f"job-{venvs}", job, "--no-bytecode", *skip)
    assert (len(image.report["venvs"]), len(image.plan["sets"])) == (venvs, sets)
    assert all(venv["ok"] for venv in image.report["venvs"].values())
    if skip:
        code, found = differences(job, image.tag)
        assert code == 1
        assert {check for check, _, _ in found} == {"venv-set", "wrapper"}
