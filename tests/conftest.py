"""Fixtures that cost time, made once: the engine, the default image, a tiny project and its image."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.image.support import COMPILED, REPO, Built, Images, build, greenroom, succeeded, write_project

from greenroom.engine import Engine, engine_status, find_engine, stop_engine

# A shell's background job ignores interrupts, and so would every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """The engine of this machine; stopped at the end unless it was answering before."""
    answered = engine_status()["answers"]
    yield find_engine()
    if not answered:
        stop_engine()


@pytest.fixture(scope="session")
def images(engine: Engine) -> Iterator[Images]:
    """The images that the tests make, removed at the end."""
    made = Images(engine=engine)
    yield made
    made.remove()


@pytest.fixture(scope="session")
def default_image(images: Images) -> Built:
    """This repository's image without what is compiled, built and verified by the console script."""
    # This repository's lock is generated, and may be missing or of an older pyproject.toml.
    succeeded(greenroom("lock"))
    return build(images, "default", REPO, "--skip", COMPILED)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A locked project of five actors in four sets, one of them without any distribution. Copy it to change it."""
    project = write_project(
        tmp_path_factory.mktemp("projects") / "tiny",
        actors={
            "tiny.Alone": [],
            "tiny.Both": ["left", "right"],
            "tiny.Driver": None,
            "tiny.Left": ["left"],
            "tiny.LeftToo": ["left"],
            "tiny.Right": ["right"],
        },
        extras={"left": ["six==1.17.0", "idna"], "right": ["six", "toolz"]},
    )
    succeeded(greenroom("lock", "--project", project))
    return project


@pytest.fixture(scope="session")
def tiny_image(images: Images, tiny: Path) -> Built:
    """The tiny project's image."""
    return build(images, "tiny", tiny)
