"""The projects that are built: the post-training workload, its variants, and a copy of this repository."""

from __future__ import annotations

import ast
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from greenroom.lock import Artifact, uv_lock
from greenroom.plan import Plan
from greenroom.process import run
from greenroom.ready_lock import uv_program
from lab import Unavailable

REPOSITORY = Path(__file__).parents[1]
POST_TRAINING = Path(__file__).parent / "post-training"
MANIFEST = "actor_environments.py"
BUMP_CANDIDATES = ("click", "attrs", "idna", "certifi", "packaging")
"""Small pure packages of nearly every set; the first one whose previous release changes nothing else is bumped. Those in the
first slot of the smallest files come first: every later slot runs again."""
ADDED_ACTOR = "nemo_rl.bench.thirtieth.ThirtiethActor"
PRESENT_EXTRAS = ("nemo_gym",)
"""Extras of a set that the image has already: the added actor shares it."""
SMALL_EXTRAS = {"fsdp", "nemo_gym"}
"""Extras of the small workload, which is there to try the bench itself."""
NEW_SET_EXTRAS = ("fsdp", "nemo_gym")
"""Extras of no set so far, whose distributions are all in the image already."""


def post_training(directory: Path, *, small: bool = False) -> Path:
    """Copy the workload into a directory and lock it there; it is left alone when it is there already.

    Args:
        directory: the copy.
        small: keep only the actors whose extras are all in `SMALL_EXTRAS`.
    """
    if not (directory / "uv.lock").is_file():
        directory.mkdir(parents=True, exist_ok=True)
        for name in ("pyproject.toml", MANIFEST):
            shutil.copyfile(POST_TRAINING / name, directory / name)
        if small:
            table = actors(directory)
            write_actors(
                directory, {name: extras for name, extras in table.items() if set(extras or []) <= SMALL_EXTRAS}
            )
        uv_lock(uv_program(), directory)
    return directory


def actors(project: Path) -> dict[str, list[str] | None]:
    """Return the table of a copied manifest."""
    for node in ast.walk(ast.parse((project / MANIFEST).read_text(encoding="utf-8"))):
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "ACTOR_ENVIRONMENTS" and node.value:
            table: dict[str, list[str] | None] = ast.literal_eval(node.value)
            return table
    raise Unavailable("the workload's manifest has no table ACTOR_ENVIRONMENTS")


def write_actors(project: Path, table: Mapping[str, list[str] | None]) -> None:
    """Replace the table of a copied manifest."""
    path = project / MANIFEST
    rows = "".join(f"    {name!r}: {extras!r},\n" for name, extras in table.items())
    text, count = re.subn(
        r"(ACTOR_ENVIRONMENTS[^\n]*= )\{\n.*?\n\}\n",
        lambda match: f"{match[1]}{{\n{rows}}}\n",
        path.read_text(encoding="utf-8"),
        count=1,
        flags=re.DOTALL,
    )
    if not count:
        raise Unavailable("the workload's manifest has no table ACTOR_ENVIRONMENTS")
    path.write_text(text, encoding="utf-8")


def _copy(project: Path, directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(project, directory, ignore=shutil.ignore_patterns("build", ".venv"))
    return directory


def constrain(project: Path, directory: Path, constraints: list[str]) -> Path:
    """Copy a project and lock the copy again under constraints; everything else stays locked as it was."""
    _copy(project, directory)
    path = directory / "pyproject.toml"
    text = path.read_text(encoding="utf-8")
    listing = ", ".join(f'"{constraint}"' for constraint in constraints)
    path.write_text(
        text.replace("[tool.uv]\n", f"[tool.uv]\nconstraint-dependencies = [{listing}]\n", 1), encoding="utf-8"
    )
    uv_lock(uv_program(), directory)
    return directory


def changed_artifacts(before: Plan, after: Plan) -> tuple[list[Artifact], list[Artifact]]:
    """Return the files that only one of two plans has."""
    old, new = set(before.artifacts), set(after.artifacts)
    return sorted(old - new), sorted(new - old)


def locked_version(plan: Plan, name: str) -> str | None:
    """Return the one version that a plan has of a distribution; None when it has none or several."""
    versions = {artifact.version for artifact in plan.artifacts if artifact.name == name}
    return versions.pop() if len(versions) == 1 else None


def add_actor(project: Path, directory: Path, extras: tuple[str, ...]) -> Path:
    """Copy a project and add one actor to its manifest's table."""
    _copy(project, directory)
    write_actors(directory, {**actors(directory), ADDED_ACTOR: list(extras)})
    return directory


def own_project(directory: Path) -> Path:
    """Copy this repository's tracked files and lock the copy: a project that is a package itself."""
    shutil.rmtree(directory, ignore_errors=True)
    listing = run(["git", "-C", REPOSITORY, "ls-files", "-z"], timeout=60).stdout
    for name in filter(None, listing.split("\0")):
        if name.startswith(("tests/", "bench/")) or not (REPOSITORY / name).is_file():
            continue
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(REPOSITORY / name, directory / name)
    if (REPOSITORY / "uv.lock").is_file():
        shutil.copyfile(REPOSITORY / "uv.lock", directory / "uv.lock")
    uv_lock(uv_program(), directory)
    return directory


def edit_source(project: Path, number: int) -> Path:
    """Change one line of one source file of the copied repository."""
    path = project / "src" / "greenroom" / "__init__.py"
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("# edit ")]
    path.write_text("\n".join([*lines, f"# edit {number} of process {os.getpid()}", ""]), encoding="utf-8")
    return path
