"""Sources mounted over an image that was made from others: the import fails and names what differs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from tests.image.support import NOBODY, REPO, VENV_DIR, Built, Images

from greenroom.process import Completed

MATH = "greenroom.environments.math_environment.MathEnvironment"
RETRIEVER = "greenroom.environments.retriever.RetrieverEnvironment"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of the sources that the default image is made from."""
    root = tmp_path / "sources"
    shutil.copytree(REPO / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "uv.lock"):
        shutil.copyfile(REPO / name, root / name)
    # The container's user is nobody in particular.
    for path in (tmp_path, root, *root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for parent in tmp_path.parents:
        if str(parent).startswith("/tmp/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    return root


def import_in(images: Images, image: str, sources: Path, code: str = "import greenroom", **variables: str) -> Completed:
    """Import greenroom from mounted sources in an image, in the math actor's venv."""
    flags = ["run", "--rm", "--network", "none", "--read-only", "--user", NOBODY, "--volume", f"{sources}:/sources:ro"]
    for name, value in {"PYTHONPATH": "/sources/src", "HOME": "/nonexistent", **variables}.items():
        flags += ["--env", f"{name}={value}"]
    flags += ["--entrypoint", f"{VENV_DIR}/{MATH}/bin/python", image, "-B", "-c", code]
    return images.engine.cli(*flags, changes=True, timeout=120, check=False)


def bump(sources: Path, package: str, version: str) -> str:
    """Lock another version of a package, as far as the lock's reader looks; return the one it was."""
    lock = sources / "uv.lock"
    pattern = rf'(name = "{package}"\nversion = ")([^"]*)"'
    found = re.search(pattern, lock.read_text())
    assert found
    lock.write_text(re.sub(pattern, rf'\g<1>{version}"', lock.read_text(), count=1))
    return found[2]


def test_the_sources_that_it_was_made_from(default_image: Built, images: Images, sources: Path) -> None:
    done = import_in(images, default_image.tag, sources, "import greenroom; print(greenroom.__file__)")
    assert (done.returncode, done.stdout.strip()) == (0, "/sources/src/greenroom/__init__.py"), done.stderr


def test_another_lock_is_refused_by_the_names_of_venvs_and_distributions(
    default_image: Built, images: Images, sources: Path
) -> None:
    was = bump(sources, "bm25s", "9.9")
    done = import_in(images, default_image.tag, sources)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("greenroom.distributed.drift.DriftError: ")
    assert f"{RETRIEVER}: bm25s {was} is built, 9.9 is locked" in last
    assert MATH not in last, "only what is affected is named"
    assert " | next: build the image again, or set GREENROOM_ALLOW_DRIFT=1" in last


def test_it_is_a_warning_when_that_is_asked_for(default_image: Built, images: Images, sources: Path) -> None:
    was = bump(sources, "bm25s", "9.9")
    done = import_in(images, default_image.tag, sources, GREENROOM_ALLOW_DRIFT="1")
    assert done.returncode == 0
    assert f"greenroom: warning: the venvs in {VENV_DIR} are not what /sources says: " in done.stderr
    assert f"bm25s {was} is built, 9.9 is locked" in done.stderr


def test_another_manifest_is_refused(default_image: Built, images: Images, sources: Path) -> None:
    manifest = sources / "src/greenroom/actor_environments.py"
    text = manifest.read_text()
    assert '"greenroom.environments.retriever.RetrieverEnvironment": ["retriever"]' in text
    manifest.write_text(text.replace('RetrieverEnvironment": ["retriever"]', 'RetrieverEnvironment": ["math"]'))
    done = import_in(images, default_image.tag, sources)
    assert done.returncode == 1
    assert f"{RETRIEVER}: built with the extras retriever, not math" in done.stderr.splitlines()[-1]


def test_the_registry_starts_what_agrees_from_the_image(default_image: Built, images: Images, sources: Path) -> None:
    bump(sources, "bm25s", "9.9")
    code = (
        "from greenroom.distributed.ray_actor_environment_registry import get_actor_python_env as get; "
        f"print(get('{MATH}')); print(get('{RETRIEVER}'))"
    )
    done = import_in(images, default_image.tag, sources, code, GREENROOM_ALLOW_DRIFT="1")
    assert done.stdout.splitlines() == [
        f"{VENV_DIR}/{MATH}/bin/python",
        "uv run --locked --extra retriever --directory /sources",
    ], done.stderr
