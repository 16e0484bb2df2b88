"""Environments as actors: created from their own venvs, asked, and shut down whatever they do. Real Ray, real venvs."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from tests.cluster.support import Nodes, finished
from tests.image.support import COMPILED

from greenroom.distributed import smoke
from greenroom.environments import utils
from greenroom.environments.utils import create_env, shutdown_environments


@pytest.fixture(scope="module")
def shared_venvs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where this module's venvs go: they are made once."""
    with pytest.MonkeyPatch.context() as patch:
        directory = tmp_path_factory.mktemp("venvs")
        patch.setenv("GREENROOM_LOCAL_VENV_DIR", str(directory))
        yield directory


# What is compiled takes ten minutes on a machine that never did; the smoke test of an image with it asks that one.
@pytest.mark.parametrize("name", sorted({*utils.ENV_REGISTRY} - {COMPILED}))
def test_an_environment_answers_from_its_own_venv(nodes: Nodes, shared_venvs: Path, tmp_path: Path, name: str) -> None:
    question = smoke.questions(tmp_path)[name]
    handle = create_env(name, question.config, actor_options={"num_cpus": 0})
    where = ray.get(handle.where.remote(), timeout=60)
    fqn = utils.ENV_REGISTRY[name]["actor_class_fqn"]
    from greenroom.actor_environments import ACTOR_ENVIRONMENTS

    own = ACTOR_ENVIRONMENTS[fqn] is not None
    assert (Path(where["prefix"]) in finished(shared_venvs)) == own
    assert smoke.ask(handle, question) is None
    shutdown_environments({name: handle})
    assert not alive(where["pid"])


def alive(pid: int, patience: float = 20.0) -> bool:
    """Return whether a process is still there after a while."""
    deadline = time.monotonic() + patience
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > deadline:
            return True
        time.sleep(0.1)
    return False


def test_a_batch_with_a_bad_item_is_answered_item_by_item(nodes: Nodes, shared_venvs: Path) -> None:
    handle = create_env("math", {"seconds": 2}, actor_options={"num_cpus": 0})
    logs = [smoke.conversation(text) for text in (r"\boxed{1/2}", "no box", r"\boxed{0.5}", r"\boxed{\frac{1}{2}")]
    metadata: list[dict[str, Any]] = [
        {"expected_answer": "0.5"},
        {"expected_answer": "0.5"},
        {},
        {"expected_answer": "0.5"},
    ]
    batch = ray.get(handle.step.remote(logs, metadata), timeout=60)
    assert batch.rewards == (1.0, 0.0, 0.0, 0.0)
    assert [failure is None for failure in batch.failures] == [True, True, False, True]
    _, metrics = ray.get(handle.global_post_process_and_metrics.remote(batch), timeout=60)
    assert metrics["failure_fraction"] == 0.25
    shutdown_environments({"math": handle})


def test_an_item_that_hangs_is_ended_in_time_and_the_next_is_judged(nodes: Nodes, shared_venvs: Path) -> None:
    handle = create_env("math", {"seconds": 2}, actor_options={"num_cpus": 0})
    # More digits than any machine holds: parsing them is one long call that no signal interrupts.
    texts = [r"\boxed{9^{9^{9^{9^{9}}}}}", r"\boxed{\frac{1}{2}}", r"\boxed{1000000!!}", r"\boxed{0.5}"]
    metadata = [{"expected_answer": "0.5"}] * len(texts)
    began = time.monotonic()
    batch = ray.get(handle.step.remote([smoke.conversation(text) for text in texts], metadata), timeout=120)
    assert time.monotonic() - began < 60
    assert batch.rewards == (0.0, 1.0, 0.0, 1.0)
    assert [str(failure) for failure in batch.failures][::2] == ["TimeoutError: no verdict within 2 s"] * 2
    judges = children_of(ray.get(handle.where.remote(), timeout=60)["pid"])
    assert len(judges) == 1
    shutdown_environments({"math": handle})
    assert not alive(judges[0])


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started and that are there."""
    text = "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(child) for child in text.split()]


def test_an_environment_whose_constructor_fails_says_so(nodes: Nodes, shared_venvs: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)environment 'retriever' .* was not created: .*no documents to index"):
        create_env("retriever", {"documents": []}, actor_options={"num_cpus": 0})


def test_secrets_of_the_driver_stay_there(nodes: Nodes, shared_venvs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "secret")
    options = {"num_cpus": 0, "runtime_env": {"env_vars": {"GIVEN": "1"}}}
    handle = create_env("code_jaccard", {}, actor_options=options)
    variables = read_environment(ray.get(handle.where.remote(), timeout=60)["pid"])
    assert variables["GIVEN"] == "1" and "SOME_TOKEN" not in variables
    shutdown_environments({"code_jaccard": handle})


def read_environment(pid: int) -> dict[str, str]:
    """Return the variables that a process was started with."""
    data = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    return dict(line.partition("=")[::2] for line in data.split("\0") if line)


# --- shutting down

# Actors' processes cannot import this module: its classes travel whole.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Stubborn:
    """An actor that does what it is told to on shutdown."""

    def __init__(self, behaviour: str, trace: str) -> None:
        self._behaviour = behaviour
        self._trace = trace

    def pid(self) -> int:
        return os.getpid()

    def shutdown(self) -> None:
        with Path(self._trace).open("a") as file:
            file.write("asked\n")
        if self._behaviour == "hangs":
            time.sleep(600)
        if self._behaviour == "raises":
            raise RuntimeError("it will not")


def start(behaviour: str, trace: Path) -> Any:
    return ray.remote(num_cpus=0)(Stubborn).remote(behaviour, str(trace))


def test_actors_are_asked_once_awaited_and_killed(
    nodes: Nodes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="greenroom.environments.utils")
    behaviours = ["fine", "hangs", "raises"]
    handles = {name: start(name, tmp_path / name) for name in behaviours}
    pids = {name: ray.get(handle.pid.remote(), timeout=60) for name, handle in handles.items()}
    dead = start("fine", tmp_path / "dead")
    ray.get(dead.pid.remote(), timeout=60)
    ray.kill(dead)
    # The same actor under another name, by a handle that travelled.
    (again,) = ray.get(ray.put([handles["fine"]]), timeout=60)

    began = time.monotonic()
    shutdown_environments({**handles, "dead": dead}, None, {"again": again}, timeout=4)

    assert time.monotonic() - began < 20
    assert {name: (tmp_path / name).read_text() for name in behaviours} == dict.fromkeys(behaviours, "asked\n")
    assert not any(alive(pid) for pid in pids.values())
    assert "environment fine, again has shut down" in caplog.text
    assert "environment hangs did not shut down in time: it is killed" in caplog.text
    assert "environment raises failed to shut down: it will not" in caplog.text
    assert "environment dead was dead already" in caplog.text


class Picky:
    """An actor that cannot be asked as others are."""

    def pid(self) -> int:
        return os.getpid()

    def shutdown(self, reason: str) -> None:
        raise AssertionError(reason)


class WithoutShutdown:
    """An actor that has no shutdown() at all."""

    def pid(self) -> int:
        return os.getpid()


def test_one_that_cannot_even_be_asked_is_killed_and_the_others_are_asked(
    nodes: Nodes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd: dict[str, Any] = {kind.__name__: ray.remote(num_cpus=0)(kind).remote() for kind in (Picky, WithoutShutdown)}
    pids: list[int] = [ray.get(handle.pid.remote(), timeout=60) for handle in odd.values()]
    fine = start("fine", tmp_path / "fine")
    shutdown_environments({**odd, "fine": fine}, timeout=10)
    assert (tmp_path / "fine").read_text() == "asked\n"
    assert not any(alive(pid) for pid in pids)
    assert "environment Picky cannot be asked to shut down, it is killed: " in caplog.text
    assert "environment WithoutShutdown cannot be asked to shut down, it is killed: " in caplog.text


class Owner:
    """A local object that owns an actor."""

    def __init__(self, trace: Path) -> None:
        self.actor = start("fine", trace)

    def shutdown(self) -> None:
        ray.get(self.actor.shutdown.remote(), timeout=30)
        ray.kill(self.actor)


def test_a_local_object_ends_its_own_actors(nodes: Nodes, tmp_path: Path) -> None:
    owner = Owner(tmp_path / "owned")
    pid = ray.get(owner.actor.pid.remote(), timeout=60)
    shutdown_environments({"owner": owner, "other": start("fine", tmp_path / "other")})
    assert (tmp_path / "owned").read_text() == (tmp_path / "other").read_text() == "asked\n"
    assert not alive(pid)
