"""Every registered environment, created from its own venv and asked something with a known answer.

    python -m greenroom.distributed.smoke

Runs in an image, in the interpreter that is to be the driver's: starts a Ray cluster there, creates the environments,
steps each once, shuts them down in order, and looks for processes that are left. One line of JSON for each environment,
and a last one for the whole, go to stdout; everything else to stderr. Exit 1 when anything was not as it should be.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from greenroom.distributed.ray_actor_environment_registry import ActorEnvironmentError, get_actor_python_env
from greenroom.distributed.tiny_language_model import alphabet_model
from greenroom.distributed.tiny_reward_model import token_count_model
from greenroom.environments.interfaces import Message
from greenroom.environments.utils import ENV_REGISTRY, create_env, shutdown_environments

STEP_TIMEOUT = 120.0
SHUTDOWN_TIMEOUT = 20.0
LEFT_OVER_PATIENCE = 15.0
"""Seconds that processes may take to end after Ray has been shut down."""
OBJECT_STORE_BYTES = 100_000_000
LOOPBACK = "127.0.0.2"
"""Where the cluster lives, so that it needs no network. Ray replaces 127.0.0.1 by an outer address, which is not there."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What an environment is asked, and the reward that the right answer brings.

    Attributes:
        config: the environment's keyword arguments.
        reply: the reply that it judges.
        metadata: the state of the conversation.
        reward: what it must give.
        observation: what its answer must contain.
    """

    config: Mapping[str, Any]
    reply: str
    metadata: Mapping[str, Any]
    reward: float
    observation: str = ""


def questions(directory: Path) -> dict[str, Question]:
    """Return a question for each environment of this project.

    Args:
        directory: where files that an environment needs are written.
    """
    model = directory / "tokens.onnx"
    model.write_bytes(token_count_model(width=8))
    speaker = directory / "alphabet.gguf"
    speaker.write_bytes(alphabet_model())
    square = [[1, 2, 3], [4, 5, 6], [7, 0, 8]]
    code = "```python\nprint(int(input()) * 2)\n```"
    return {
        "math": Question(
            config={}, reply=r"It is \boxed{\frac{2}{4}}.", metadata={"expected_answer": "0.5"}, reward=1.0
        ),
        "math_multi_reward": Question(
            config={"weights": {"correct": 1.0, "format": 0.5, "reward_model": 0.25}, "reward_model": str(model)},
            reply="six",
            metadata={"expected_answer": "6"},
            # Neither correct nor boxed; the conversation has two tokens.
            reward=0.5,
        ),
        "code": Question(config={}, reply=code, metadata={"cases": [{"stdin": "21", "expected": "42"}]}, reward=1.0),
        "code_jaccard": Question(config={}, reply="a + b", metadata={"reference": "a - b"}, reward=0.5),
        "sliding_puzzle": Question(
            config={}, reply="<action>left</action>", metadata={"board": square, "moves": 0}, reward=1.0
        ),
        "gymnasium": Question(
            # One step down from above the goal: the lake is not slippery.
            config={
                "config": {
                    "_target_": "gymnasium.make",
                    "id": "FrozenLake-v1",
                    "desc": ["SF", "FG"],
                    "is_slippery": False,
                }
            },
            reply="<action>1</action>",
            metadata={"seed": 7, "actions": [2]},
            reward=1.0,
        ),
        "retriever": Question(
            config={"documents": ["dogs bark", "the cat sat"]},
            reply="<search>cat</search>",
            metadata={},
            reward=0.0,
            observation="[1] the cat sat",
        ),
        "reward_model": Question(config={"model_path": str(model)}, reply="one two three", metadata={}, reward=4.0),
        "llamacpp": Question(
            # What follows the last byte of "user:" and so on.
            config={"model_path": str(speaker), "max_tokens": 5, "context": 256},
            reply="abc",
            metadata={},
            reward=0.0,
            observation=";<=>?",
        ),
    }


def conversation(reply: str) -> list[Message]:
    """Return a conversation of one token and a reply."""
    return [{"role": "user", "content": "?"}, {"role": "assistant", "content": reply}]


def ask(handle: Any, question: Question) -> str | None:
    """Ask an environment; return what is wrong with its answer, or None."""
    import ray

    batch = ray.get(handle.step.remote([conversation(question.reply)], [question.metadata]), timeout=STEP_TIMEOUT)
    if batch.failures[0] is not None:
        return f"it could not judge a reply: {batch.failures[0]}"
    if abs(batch.rewards[0] - question.reward) > 1e-6:
        return f"reward {batch.rewards[0]} for a reply that earns {question.reward}"
    if question.observation not in batch.observations[0]["content"]:
        return f"it answers {batch.observations[0]['content']!r}, without {question.observation!r}"
    return None


def check_environment(name: str, question: Question | None, handles: dict[str, Any]) -> dict[str, Any]:
    """Create an environment, see that it runs in its own venv, and ask it.

    Args:
        name: its registered name.
        question: what to ask; None to create it only.
        handles: receives its handle, to be shut down later.

    Returns:
        What became of it: `environment`, `problem` (None when all is well), and for one that was created `venv`, `pid`
        and `seconds`.
    """
    import ray

    fqn = ENV_REGISTRY[name]["actor_class_fqn"]
    report: dict[str, Any] = {"environment": name, "actor": fqn, "problem": None}
    try:
        executable = get_actor_python_env(fqn)
    except ActorEnvironmentError as error:
        return {**report, "left_out": str(error)}
    began = time.monotonic()
    try:
        handles[name] = create_env(name, question.config if question else {}, actor_options={"num_cpus": 0})
        where = ray.get(handles[name].where.remote(), timeout=STEP_TIMEOUT)
        report |= {"venv": where["prefix"], "pid": where["pid"]}
        if where["executable"] != executable:
            report["problem"] = f"it runs in {where['executable']}, not in {executable}"
        elif question is not None:
            report["problem"] = ask(handles[name], question)
    except Exception as error:
        # Whatever it was: the other environments are still to be checked.
        report["problem"] = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return {**report, "seconds": round(time.monotonic() - began, 2)}


def processes() -> dict[int, str]:
    """Return the processes that this one can see, itself and the first one left out: id → command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) in (1, os.getpid()):
            continue
        try:
            found[int(entry.name)] = (
                (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            )
        except OSError:
            # It has ended meanwhile.
            continue
    return found


def left_over(before: Mapping[int, str], patience: float = LEFT_OVER_PATIENCE) -> dict[int, str]:
    """Return the processes that are there now, were not before, and do not end in time."""
    deadline = time.monotonic() + patience
    while True:
        left = {pid: command for pid, command in processes().items() if pid not in before}
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)


def run(names: Sequence[str]) -> int:
    """Check environments.

    Args:
        names: registered names.

    Returns:
        The exit code.
    """
    import ray

    before = processes()
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="smoke-") as directory:
        asked = questions(Path(directory))
        ray.init(
            num_cpus=2,
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            configure_logging=False,
            log_to_driver=False,
            _node_ip_address=LOOPBACK,
            _temp_dir=str(Path(directory) / "ray"),
        )
        handles: dict[str, Any] = {}
        try:
            for name in names:
                report = check_environment(name, asked.get(name), handles)
                print(json.dumps(report), flush=True)
                if report["problem"]:
                    problems.append(f"{name}: {report['problem']}")
        finally:
            shutdown_environments(handles, timeout=SHUTDOWN_TIMEOUT)
            ray.shutdown()
    left = left_over(before)
    problems += [f"process {pid} is left: {command[:200] or 'a zombie'}" for pid, command in left.items()]
    print(json.dumps({"ok": not problems, "problems": problems}), flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(run(list(ENV_REGISTRY)))
