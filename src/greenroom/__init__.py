"""greenroom: container images with exactly one prebuilt virtual environment for each Ray actor.

The distribution has two halves. What actors and drivers import (`greenroom.environments`, `greenroom.distributed`)
needs the standard library and Ray. The pipeline (`greenroom[pipeline]`: manifest, plan, build, verify) runs on the
host and, where a step needs the same logic, inside the image's build.

Importing it from sources that are mounted over an image's own fails when the image's venvs were made from others:
see `greenroom.distributed.drift`.
"""

from pathlib import Path as _Path

from greenroom.stamps import SETS as _SETS
from greenroom.stamps import prebuilt_directory as _prebuilt_directory

_SOURCE = _Path(__file__).parents[2]

# Two look-ups where there is nothing to compare: on a developer's machine, in the image's own venvs, in a build.
if (_prebuilt_directory() / _SETS).is_dir() and (_SOURCE / "pyproject.toml").is_file():
    from greenroom.distributed.drift import check_drift as _check_drift

    _check_drift(_prebuilt_directory(), _SOURCE)
