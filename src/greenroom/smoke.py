"""Trying an image as a node would use it: a Ray cluster in a container creates every registered environment.

The container has no network but loopback, is not root, and has a read-only root with room in memory for what Ray
writes. What runs in it is `greenroom.distributed.smoke`, from the image itself.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

from greenroom.console import say
from greenroom.container import READER_UID
from greenroom.engine import Engine
from greenroom.errors import ImageDiffersError, UsageError
from greenroom.plan import Plan
from greenroom.process import ProcessError, is_dry_run

SMOKE_TIMEOUT = 900.0
SHARED_MEMORY = "512m"
"""For Ray's object store, which is shared memory; the engine's default of 64 MB is too little for Ray."""
MODULE = "greenroom.distributed.smoke"


@dataclass(frozen=True, kw_only=True)
class SmokeReport:
    """What became of each environment.

    Attributes:
        image: the image.
        environments: one entry for each registered environment, as `greenroom.distributed.smoke` reports it.
        problems: everything that was not as it should be.
    """

    image: str
    environments: tuple[dict[str, Any], ...]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was wrong."""
        return not self.problems

    def to_json(self) -> dict[str, object]:
        """Return the report as a JSON value (schema 1)."""
        return {
            "schema": 1,
            "image": self.image,
            "ok": self.ok,
            "environments": list(self.environments),
            "problems": list(self.problems),
        }


def smoke_image(engine: Engine, image: str, plan: Plan, venv_dir: str) -> SmokeReport:
    """Try an image.

    Args:
        engine: where it is.
        image: its reference.
        plan: what it holds; the first actor's interpreter is the driver's.
        venv_dir: where its venvs are.

    Returns:
        The report.

    Raises:
        UsageError: the plan has no venv, or no venv with greenroom's runtime library and Ray.
        ImageDiffersError: the container did not come to an end of its own.
    """
    needed = {"greenroom", "ray"}
    drivers = [actor for actor in plan.included if needed <= plan.closure(actor.environment_set).keys()]
    if not drivers:
        raise UsageError(
            f"{image} cannot be tried: no venv of it holds {' and '.join(sorted(needed))}",
            cause="the project's actors do not use greenroom's runtime library",
            next_step="add greenroom[ray] to their extras, or leave --smoke out",
        )
    interpreter = f"{venv_dir}/{drivers[0].fqn}/bin/python"
    name = f"greenroom-smoke-{uuid.uuid4().hex[:12]}"
    command = ["run", "--rm", "--name", name, "--init", "--network", "none", "--read-only", "--user", READER_UID]
    command += ["--tmpfs", "/tmp:rw,exec,size=2g", "--shm-size", SHARED_MEMORY, "--workdir", "/tmp"]
    for variable, value in {
        "HOME": "/tmp",
        # No name belongs to this user id, and Ray asks for one.
        "USER": "smoke",
        "LANG": "C.UTF-8",
        "VENV_DIR": venv_dir,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }.items():
        command += ["--env", f"{variable}={value}"]
    say(f"smoke {image}: a Ray cluster in a container, driver {drivers[0].fqn}")
    try:
        done = engine.cli(
            *command, "--entrypoint", interpreter, image, "-m", MODULE, changes=True, timeout=SMOKE_TIMEOUT, check=False
        )
    except ProcessError as error:
        raise _no_end(image, error.reason, str(error.completed.last_lines(3))) from error
    finally:
        # Gone by itself, unless the client was ended before the container was.
        engine.cli("rm", "--force", name, changes=True, check=False)
    if is_dry_run():
        return SmokeReport(image=image, environments=(), problems=())
    try:
        *environments, total = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        problems = tuple(map(str, total["problems"]))
    except (ValueError, KeyError) as error:
        raise _no_end(image, f"exit code {done.returncode}", done.last_lines(3)) from error
    included = {actor.fqn for actor in plan.included}
    own = [row for row in environments if row["actor"] in included]
    if not own:
        raise UsageError(
            f"{image} cannot be tried: none of its actors is a registered environment",
            cause="the project registers its environments itself",
            next_step="start its actors with greenroom.environments.utils.create_env in a test of its own",
        )
    # Left out although the image should have its venv.
    problems += tuple(f"{row['environment']}: {row['left_out']}" for row in own if "left_out" in row)
    return SmokeReport(image=image, environments=tuple(environments), problems=problems)


def refuse_smoke(report: SmokeReport) -> None:
    """Raise when something was wrong.

    Raises:
        ImageDiffersError: it was.
    """
    if not report.ok:
        more = f" and {len(report.problems) - 1} more, listed above" if report.problems[1:] else ""
        raise ImageDiffersError(
            f"smoke test of {report.image}: {report.problems[0]}{more}",
            cause="an actor's code does not work with the distributions that its venv holds",
            next_step=f"greenroom smoke --image {report.image} --json shows every environment",
        )


def _no_end(image: str, reason: str, said: str) -> ImageDiffersError:
    return ImageDiffersError(
        f"smoke test of {image} did not come to its end: {reason}: {said or 'it said nothing'}",
        cause="Ray does not start in the image, or an actor takes the interpreter down",
        next_step=f"docker run --rm -it --entrypoint bash {image}, and {MODULE} by hand",
    )
