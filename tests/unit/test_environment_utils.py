"""Environments by name: the registry's names, dividing work, and shutting local objects down."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenroom.actor_environments import ACTOR_ENVIRONMENTS
from greenroom.environments import utils


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, utils.EnvRegistryEntry]]:
    """The registry; what a test registers is gone afterwards."""
    before = dict(utils.ENV_REGISTRY)
    yield utils.ENV_REGISTRY
    utils.ENV_REGISTRY.clear()
    utils.ENV_REGISTRY.update(before)


def test_every_environment_of_the_manifest_is_registered() -> None:
    assert {entry["actor_class_fqn"] for entry in utils.ENV_REGISTRY.values()} == set(ACTOR_ENVIRONMENTS)


def test_registering(registry: dict[str, utils.EnvRegistryEntry]) -> None:
    utils.register_env("mine", "my.module.MyEnvironment")
    assert registry["mine"] == {"actor_class_fqn": "my.module.MyEnvironment"}
    with pytest.raises(ValueError, match=r"'mine' is registered already, as my\.module\.MyEnvironment"):
        utils.register_env("mine", "my.module.Other")


def test_an_unknown_environment_raises_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown environment 'maths'; known: code, code_jaccard, .*math, "):
        utils.create_env("maths", {})


@pytest.mark.parametrize(
    ("elements", "workers", "expected"),
    [
        (5, 3, [[1, 2], [3, 4], [5]]),
        (5, 4, [[1, 2], [3, 4], [5], []]),
        (2, 4, [[1], [2], [], []]),
        (0, 2, [[], []]),
        (4, 1, [[1, 2, 3, 4]]),
        (3, 3, [[1], [2], [3]]),
    ],
)
def test_dividing(elements: int, workers: int, expected: list[list[int]]) -> None:
    assert utils.chunk_list_to_workers(list(range(1, elements + 1)), workers) == expected


@given(elements=st.lists(st.integers()), workers=st.integers(1, 50))
def test_dividing_keeps_order_and_count(elements: list[int], workers: int) -> None:
    chunks = utils.chunk_list_to_workers(elements, workers)
    assert len(chunks) == workers
    assert [element for chunk in chunks for element in chunk] == elements
    lengths = [len(chunk) for chunk in chunks]
    assert lengths == sorted(lengths, reverse=True)
    if len(elements) <= workers:
        assert max(lengths) <= 1


@pytest.mark.parametrize("workers", [0, -1])
def test_no_worker_is_an_error(workers: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        utils.chunk_list_to_workers([1], workers)


# --- shutting local objects down


class Local:
    def __init__(self, *, hangs: threading.Event | None = None, fails: bool = False, exits: bool = False) -> None:
        self.asked = 0
        self._hangs = hangs
        self._fails = fails
        self._exits = exits

    def shutdown(self) -> None:
        self.asked += 1
        if self._exits:
            raise SystemExit("out")
        if self._hangs:
            self._hangs.wait(60)
        if self._fails:
            raise RuntimeError("cannot")


def test_one_that_hangs_or_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    release = threading.Event()
    hanging, failing, fine = Local(hangs=release), Local(fails=True), Local()
    began = time.monotonic()
    utils.shutdown_environments({"hangs": hanging, "fails": failing}, None, {"fine": fine, "none": None}, timeout=0.5)
    assert time.monotonic() - began < 5
    release.set()
    assert (hanging.asked, failing.asked, fine.asked) == (1, 1, 1)
    assert "environment hangs did not shut down in time: it is left alone" in caplog.text
    assert "environment fails failed to shut down: RuntimeError('cannot')" in caplog.text
    assert "environment fine has shut down" in caplog.text
    utils.shutdown_environments({"exits": Local(exits=True)})
    assert "environment exits failed to shut down: SystemExit('out')" in caplog.text


def test_the_deadline_is_shared(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    began = time.monotonic()
    utils.shutdown_environments({str(number): Local(hangs=release) for number in range(6)}, timeout=0.5)
    assert time.monotonic() - began < 3
    release.set()


def test_each_is_asked_once_however_many_maps_hold_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    environment = Local()
    utils.shutdown_environments({"train": environment}, {"validation": environment, "train": environment})
    assert environment.asked == 1
    assert "environment train, validation has shut down" in caplog.text


def test_without_a_timeout_it_waits() -> None:
    release = threading.Event()
    environment = Local(hangs=release)
    threading.Timer(0.5, release.set).start()
    began = time.monotonic()
    utils.shutdown_environments({"slow": environment}, timeout=None)
    assert time.monotonic() - began >= 0.4


def test_nothing_to_shut_down() -> None:
    utils.shutdown_environments()
    utils.shutdown_environments(None, {})
    assert utils.DEFAULT_ENV_SHUTDOWN_TIMEOUT_SECONDS == 10.0
