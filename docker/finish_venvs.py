"""Finish venvs, the last step of a stage: finish_venvs.py <plan directory> <venv directory> <label>

Gives every set of that stage its interpreter, checks that it holds exactly its closure, then writes its stamp; gives
every actor its path and its `python-<ClassName>` wrapper. A set without a stamp is not finished.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from install_slot import Installed, copy_empty_venv, dist_info_of, link_into
from venv_tree import SCRATCH, SETS, fail, remove_scratch, settle, settle_parents

STAMP = "greenroom-stamp.json"
BIN = Path("/usr/local/bin")
SITE_PACKAGES = Path(f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages")


def skeleton(venv_dir: Path) -> Installed:
    """Make an empty relocatable venv, the same for every set."""
    venv = venv_dir / SCRATCH / "venv"
    copy_empty_venv(venv)
    files = [path for path in sorted(venv.rglob("*")) if path.is_symlink() or path.is_file()]
    names = [str(path.relative_to(venv)) for path in files]
    for name in names:
        settle(f"{venv}/{name}")
    return Installed(owner="the venv itself", venv=str(venv), files=names, sets=[])


def check_closure(directory: Path, closure: dict[str, str], name: str) -> None:
    """Check that a set holds exactly its closure; end the build when it does not."""
    found = set(dist_info_of(directory / SITE_PACKAGES))
    missing = sorted(set(closure) - found)
    unexpected = sorted(found - set(closure))
    if missing or unexpected:
        fail(f"set {name}: missing {', '.join(missing) or 'nothing'}; unexpected {', '.join(unexpected) or 'nothing'}")


def write_wrapper(class_name: str, interpreter: Path) -> None:
    """Write the wrapper that runs an actor's interpreter."""
    wrapper = BIN / f"python-{class_name}"
    wrapper.write_text(f'#!/bin/sh\nexec "{interpreter}" "$@"\n')
    wrapper.chmod(0o755)
    settle(str(wrapper))


def finish(plan: dict[str, Any], stamps: Path, venv_dir: Path, label: str) -> None:
    """Finish every set and actor of a part of the plan."""
    actors = plan["actors"]
    template = skeleton(venv_dir)
    for name in plan["sets"]:
        directory = venv_dir / SETS / name
        # A set may lock to nothing at all: no slot has made its directories then.
        (directory / SITE_PACKAGES).mkdir(parents=True, exist_ok=True)
        link_into(str(directory), [template])
        for parent in (SITE_PACKAGES, *SITE_PACKAGES.parents):
            settle(str(directory / parent))
        stamp_text = (stamps / f"{name}.json").read_text()
        check_closure(directory, json.loads(stamp_text)["closure"], name)
        (directory / STAMP).write_text(stamp_text)
        settle(f"{directory}/{STAMP}")
        settle(str(directory))
    remove_scratch(venv_dir)
    for number, actor in enumerate(actors, 1):
        path = venv_dir / actor["fqn"]
        path.symlink_to(Path(SETS) / actor["environment_set"])
        settle(str(path))
        write_wrapper(actor["fqn"].rsplit(".", 1)[-1], path / "bin" / "python")
        print(
            f"greenroom: {label}: venv {number} of {len(actors)}: {actor['fqn']} ({actor['environment_set']})",
            flush=True,
        )
    if (venv_dir / SETS).is_dir():
        settle(str(venv_dir / SETS))
    settle_parents(venv_dir)
    settle_parents(BIN)


def main() -> None:
    plan_dir, venv_dir, label = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    os.umask(0o022)
    part = json.loads((plan_dir / "finish.json").read_text())
    if not part["sets"]:
        # This image holds none of the stage's venvs: its layer stays empty.
        return
    venv_dir.mkdir(parents=True, exist_ok=True)
    BIN.mkdir(parents=True, exist_ok=True)
    try:
        finish(part, plan_dir / "stamps", venv_dir, label)
    except (OSError, subprocess.TimeoutExpired) as error:
        fail(f"finishing the venvs: {error}")


if __name__ == "__main__":
    main()
