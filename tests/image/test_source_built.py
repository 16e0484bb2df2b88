"""Source-built stages: compiled once, after everything else, kept beyond the builder, and verified like the rest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.image.support import VENV_DIR, Images, build, differences, error_line, greenroom, succeeded, write_project
from tests.packages import Web, native_sdist

from greenroom.slots import SLOTS

NATIVE = "job.Native"
ACTORS = {NATIVE: ["native"], "job.Plain": ["plain"], "job.Both": ["plain", "native"]}


@dataclass(frozen=True, kw_only=True)
class Job:
    """A locked project with a source-built stage.

    Attributes:
        root: its directory.
        variables: an environment with a store of compiled wheels of its own.
    """

    root: Path
    variables: dict[str, str]

    @property
    def store(self) -> Path:
        return Path(self.variables["GREENROOM_WHEEL_STORE"])

    def flags(self, flags: str) -> None:
        """Change how the source is compiled."""
        path = self.root / "pyproject.toml"
        text = path.read_text()
        head, _, tail = text.partition("NATIVE_FLAGS = ")
        path.write_text(f'{head}NATIVE_FLAGS = "{flags}" }}\n' + tail.partition("\n")[2])


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    directory = tmp_path_factory.mktemp("native")
    index = Web()
    index.publish(dict([native_sdist("nativething")]))
    root = write_project(
        directory / "job",
        actors=ACTORS,
        extras={"native": ["nativething", "six"], "plain": ["idna"]},
        stages={"native": "native"},
        settings='source-built = { native = ["nativething"] }',
    )
    with (root / "pyproject.toml").open("a") as file:
        file.write('[tool.uv.extra-build-variables]\nnativething = { NATIVE_FLAGS = "-DANSWER=41" }\n')
        file.write('[tool.uv.sources]\nnativething = { index = "local" }\n')
        file.write(f'[[tool.uv.index]]\nname = "local"\nurl = "{index.url}/simple/"\nexplicit = true\n')
    succeeded(greenroom("lock", "--project", root))
    yield Job(root=root, variables={"GREENROOM_WHEEL_STORE": str(directory / "store")})
    index.close()


def steps(root: Path) -> dict[str, bool]:
    """Return the steps of the last build with `--timings`: name → whether it was cached."""
    rows: list[dict[str, Any]] = json.loads((root / "build/timings.json").read_text())["steps"]
    return {row["step"]: row["cached"] for row in rows}


def answer(images: Images, tag: str, fqn: str = NATIVE) -> int:
    code = "import json, nativething; print(json.dumps(nativething.answer()))"
    return int(images.python(tag, code, interpreter=f"{VENV_DIR}/{fqn}/bin/python"))


def test_each_stage_s_image_holds_its_venvs_and_deps_compiles_nothing(job: Job, images: Images) -> None:
    deps = build(images, "native-deps", job.root, "--stage", "deps", variables=job.variables)
    assert sorted(deps.report["venvs"]) == ["job.Plain"]
    assert "nativething" not in deps.done.stderr
    assert not job.store.exists()

    stage = build(images, "native-stage", job.root, "--stage", "native", variables=job.variables)
    assert sorted(stage.report["venvs"]) == ["job.Both", NATIVE]
    assert "build nativething" in stage.done.stderr
    assert answer(images, stage.tag) == 41

    whole = build(images, "native-all", job.root, "--timings", variables=job.variables)
    assert sorted(whole.report["venvs"]) == sorted(ACTORS)
    assert "build nativething" not in whole.done.stderr
    assert answer(images, whole.tag, "job.Both") == 41
    for tag, other in ((deps.tag, "native"), (stage.tag, "deps"), (deps.tag, "all")):
        assert differences(job.root, tag, "--stage", other)[0] == 1


def test_other_flags_compile_again_and_run_no_step_before(job: Job, images: Images) -> None:
    before = build(images, "native-flags", job.root, variables=job.variables)
    job.flags("-DANSWER=42")
    try:
        code, rows = differences(job.root, before.tag)
        assert code == 1
        assert {row[0] for row in rows} == {"stamp"} and all("builds" in row[2] for row in rows)
        after = build(images, "native-flags", job.root, "--timings", variables=job.variables)
        assert answer(images, after.tag) == 42
        ran = {step for step, cached in steps(job.root).items() if not cached}
        before_it = {step for step in steps(job.root) if step.startswith("slot ") and "compiled" not in step}
        before_it |= {"the project", "interpreters, stamps, wrappers of deps"}
        assert len(before_it) == SLOTS + 2 and not before_it & ran
        assert [step for step in ran if "compiled1" in step or "compile_wheels.py" in step]
    finally:
        job.flags("-DANSWER=41")


def test_an_imported_store_compiles_nothing(job: Job, images: Images, tmp_path: Path) -> None:
    build(images, "native-store", job.root, variables=job.variables)
    listed = json.loads(succeeded(greenroom("wheels", "list", "--json", variables=job.variables)).stdout)
    assert {row["name"] for row in listed} == {"nativething"}
    succeeded(greenroom("wheels", "export", str(tmp_path / "exported"), variables=job.variables))
    elsewhere = {"GREENROOM_WHEEL_STORE": str(tmp_path / "elsewhere")}
    succeeded(greenroom("wheels", "import", str(tmp_path / "exported"), variables=elsewhere))
    again = build(images, "native-store", job.root, "--no-cache", variables=elsewhere)
    assert "nativething 1.0 is in the store of compiled wheels, nothing to compile" in again.done.stderr
    assert answer(images, again.tag) == 41


def test_a_failed_compile_fails_the_build_with_its_last_lines(job: Job, images: Images) -> None:
    job.flags("-DANSWER=nonsense")
    try:
        tag = images.tag("native-broken")
        done = greenroom("image", "--project", job.root, "--tag", tag, variables=job.variables)
    finally:
        job.flags("-DANSWER=41")
    assert done.returncode == 4
    assert "nativething cannot be built" in error_line(done) and "nonsense" in error_line(done)
    assert images.id_of(tag) is None


def test_two_builds_with_a_compiled_wheel_have_the_same_layers(job: Job, images: Images) -> None:
    again = build(images, "native-again", job.root, "--check-reproducible", variables=job.variables)
    assert "both builds have the same layers" in again.done.stderr


WRONG = {
    "no stage of the manifest": (
        'native = ["nativething"]',
        'nattive = ["nativething"]',
        "is no stage of the manifest",
    ),
    "nothing needs it": ('["nativething"]', '["nativethng"]', "which no venv of that stage needs"),
    "another stage needs it": ('native = ["nativething"]', 'deps = ["nativething"]', "need it too"),
    "wheels only": ('["nativething"]', '["nativething", "ray"]', "no venv of that stage needs"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_stage_that_fits_nothing_is_refused_when_planning(job: Job, case: str) -> None:
    old, new, said = WRONG[case]
    path = job.root / "pyproject.toml"
    text = path.read_text()
    path.write_text(
        text.replace(
            f"source-built = {{ {old if old.startswith('native') else 'native = ' + old}",
            f"source-built = {{ {new if not new.startswith('[') else 'native = ' + new}",
        )
    )
    try:
        done = greenroom("plan", "--project", job.root)
    finally:
        path.write_text(text)
    assert done.returncode == 2
    assert said in error_line(done)
