"""The console script `greenroom`: the tasks of `greenroom.tasks` as a program.

The distribution's plain form is what actors import and does not bring the host's tools; then this says so.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from greenroom.errors import UsageError

_NEEDS_PIPELINE = {"docker", "filelock", "invoke", "packaging", "rich", "uv"}


def main(argv: Sequence[str] | None = None) -> None:
    """Run `greenroom` and exit with the code of what happened.

    Args:
        argv: the arguments with the program's name first; the process's when None.
    """
    try:
        from greenroom.program import GreenroomProgram
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _NEEDS_PIPELINE:
            raise
        failure = UsageError(
            f"the host's tools are not installed ({error.name} is missing)",
            next_step="pip install 'greenroom[pipeline]'",
        )
        print(f"greenroom: {failure.one_line()}", file=sys.stderr)
        sys.exit(failure.exit_code)
    GreenroomProgram().run(list(argv if argv is not None else sys.argv))
