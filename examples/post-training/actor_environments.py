"""Which Ray actor runs with which extras: data for importers, a script for everything else.

As a script this file lists the virtual environments to build:

    python actor_environments.py [<stage>|all] [<skip extra> ...]

One line per virtual environment, sorted by class: `<class>`, `<stage>`, `<--extra a --extra b>`, separated by tabs.
Left out are actors that run in the driver's interpreter (`None`) and actors that declare a skipped extra. The third
column is empty for an actor that needs a virtual environment without extras. An unknown stage or skip word prints
one line on stderr, nothing on stdout, and exits 2.

The file imports the standard library only and runs alone, on Python 3.8 and later: image layers run it where the
rest of the project does not exist.
"""

from __future__ import annotations

import os
import re
import sys

# Fully-qualified class name -> extras in the order in which they are given to uv; None: no virtual environment.
ACTOR_ENVIRONMENTS: dict[str, list[str] | None] = {
    "nemo_rl.models.generation.vllm.vllm_worker.VllmGenerationWorker": ["vllm", "nemo_gym"],
    "nemo_rl.models.generation.vllm.vllm_worker_async.VllmAsyncGenerationWorker": ["vllm", "nemo_gym"],
    "nemo_rl.models.generation.sglang.sglang_worker.SGLangGenerationWorker": ["sglang"],
    "nemo_rl.models.generation.dynamo.dynamo_worker.DynamoVllmWorker": None,
    "nemo_rl.models.policy.workers.dtensor_policy_worker.DTensorPolicyWorker": ["fsdp"],
    "nemo_rl.models.policy.workers.dtensor_policy_worker_v2.DTensorPolicyWorkerV2": ["automodel"],
    "nemo_rl.models.value.workers.dtensor_value_worker_v2.DTensorValueWorkerV2": ["automodel"],
    "nemo_rl.models.policy.workers.megatron_policy_worker.MegatronPolicyWorker": ["mcore"],
    "nemo_rl.models.value.workers.megatron_value_worker.MegatronValueWorker": ["mcore"],
    "nemo_rl.data.energon.sft_worker.SFTMegatronPolicyWorker": ["mcore"],
    "nemo_rl.models.generation.trtllm.trtllm_worker_async.TrtllmAsyncGenerationWorker": ["trtllm"],
    "nemo_rl.environments.math_environment.MathEnvironment": None,
    "nemo_rl.environments.math_environment.MathMultiRewardEnvironment": None,
    "nemo_rl.environments.vlm_environment.VLMEnvironment": None,
    "nemo_rl.environments.code_environment.CodeEnvironment": None,
    "nemo_rl.environments.reward_model_environment.RewardModelEnvironment": None,
    "nemo_rl.environments.code_jaccard_environment.CodeJaccardEnvironment": None,
    "nemo_rl.environments.games.sliding_puzzle.SlidingPuzzleEnv": None,
    "nemo_rl.algorithms.async_utils.AsyncTrajectoryCollector": ["vllm"],
    "nemo_rl.algorithms.async_utils.ReplayBuffer": ["vllm"],
    "nemo_rl.experience.sync_rollout_actor.SyncRolloutActor": ["vllm"],
    "nemo_rl.experience.rollout_reassembler_actor.RolloutReassemblerActor": ["nemo_gym"],
    "nemo_rl.environments.tools.retriever.RAGEnvironment": None,
    "nemo_rl.environments.nemo_gym.NemoGym": ["nemo_gym"],
    "nemo_rl.modelopt.models.generation.vllm_quant_worker.VllmQuantGenerationWorker": ["modelopt", "vllm"],
    "nemo_rl.modelopt.models.generation.vllm_quant_worker.VllmQuantAsyncGenerationWorker": ["modelopt", "vllm"],
    "nemo_rl.modelopt.models.policy.workers.dtensor_quant_policy_worker.DTensorQuantPolicyWorker": [
        "modelopt",
        "automodel",
    ],
    "nemo_rl.modelopt.models.policy.workers.dtensor_quant_policy_worker_v2.DTensorQuantPolicyWorkerV2": [
        "modelopt",
        "automodel",
    ],
    "nemo_rl.modelopt.models.policy.workers.megatron_quant_policy_worker.MegatronQuantPolicyWorker": [
        "modelopt",
        "mcore",
    ],
}

# Extra -> the later image stage in which it is built from source, in the order of those stages. Every virtual
# environment without such an extra is finished in the stage "deps".
SOURCE_BUILT_STAGES: dict[str, str] = {"trtllm": "trtllm"}

DEPS_STAGE = "deps"
ALL_STAGES = "all"


class UnknownWordError(ValueError):
    """A stage or skip word that this manifest does not know; the message names the known ones."""


def normalised(extra: str) -> str:
    """Return an extra's name as packaging tools compare it: lower-case, runs of `-`, `_` and `.` as one `-`."""
    return re.sub(r"[-_.]+", "-", extra).lower()


def stage_of(extras: list[str]) -> str:
    """Return the stage that finishes a virtual environment with these extras: the last one that builds any of them."""
    stage = DEPS_STAGE
    names = {normalised(extra) for extra in extras}
    for extra, source_built_stage in SOURCE_BUILT_STAGES.items():
        if normalised(extra) in names:
            stage = source_built_stage
    return stage


def rows(stage: str = ALL_STAGES, skip: list[str] | None = None) -> list[tuple[str, str, list[str]]]:
    """Select the virtual environments to build.

    Args:
        stage: a stage's name, or "all".
        skip: extras; an actor that declares one of them is left out. Names are compared normalised and whole.

    Returns:
        (class, stage, extras in declared order), sorted by class.

    Raises:
        UnknownWordError: no such stage, or no actor declares such an extra.
    """
    stages = [ALL_STAGES, DEPS_STAGE, *dict.fromkeys(SOURCE_BUILT_STAGES.values())]
    if stage not in stages:
        raise UnknownWordError(f"unknown stage {stage!r}; known stages: {', '.join(stages)}")
    declared = {normalised(extra) for extras in ACTOR_ENVIRONMENTS.values() for extra in extras or []}
    skipped = set()
    for word in skip or []:
        if normalised(word) not in declared:
            raise UnknownWordError(f"unknown extra to skip {word!r}; known extras: {', '.join(sorted(declared))}")
        skipped.add(normalised(word))
    selected = []
    for actor, extras in sorted(ACTOR_ENVIRONMENTS.items()):
        if extras is None or not skipped.isdisjoint(map(normalised, extras)):
            continue
        actor_stage = stage_of(extras)
        if stage in (ALL_STAGES, actor_stage):
            selected.append((actor, actor_stage, extras))
    return selected


def main(arguments: list[str]) -> int:
    """Print the selected rows.

    Args:
        arguments: the stage (none: "all"), then extras to skip.

    Returns:
        The exit code: 0, 1 when nobody reads stdout (any more), 2 for an unknown stage or skip word.
    """
    stage, *skip = arguments or [ALL_STAGES]
    try:
        selected = rows(stage, skip)
    except UnknownWordError as error:
        print(f"actor_environments: {error}", file=sys.stderr)
        return 2
    lines = [
        "\t".join((actor, actor_stage, " ".join(f"--extra {extra}" for extra in extras))) + "\n"
        for actor, actor_stage, extras in selected
    ]
    if sys.stdout is None:  # started with a closed stdout
        return 1
    try:
        # At once, so that a reader never sees a part of the rows before an error.
        sys.stdout.write("".join(lines))
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes again at exit: give it somewhere to write, or it prints a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
