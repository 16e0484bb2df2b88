"""Real Ray clusters of several nodes on this machine, and small locked projects whose venvs they make."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.support import Nodes, start_nodes, write_locked_project

from greenroom.ready_lock import update_lock


@pytest.fixture(scope="session", autouse=True)
def own_lock() -> None:
    """This repository's lock is generated, and may be missing or of an older pyproject.toml."""
    root = Path(__file__).parents[2]
    update_lock(root)


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A locked project of two extras, each one small wheel."""
    return write_locked_project(tmp_path_factory.mktemp("locked"))


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """A cluster that a module's tests share: a head that takes no work, and three nodes that do."""
    yield from start_nodes(3)


@pytest.fixture
def own_nodes() -> Iterator[Nodes]:
    """A cluster of three working nodes for one test, which may kill them."""
    yield from start_nodes(3)


@pytest.fixture
def venv_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's venvs go, on every node."""
    directory = tmp_path / "venvs"
    monkeypatch.setenv("GREENROOM_LOCAL_VENV_DIR", str(directory))
    return directory
