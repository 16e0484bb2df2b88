"""The kinds of failure, and the process exit code of each.

Every failure that a user can meet is one of these classes. `greenroom` prints it as one line (what
happened, the likely cause, the next command) and exits with the class's code; `--debug` adds the
traceback.
"""

from __future__ import annotations


class GreenroomError(Exception):
    """A failure with a documented exit code.

    Args:
        what: what happened, naming the actor, package, file or image.
        cause: the most likely cause.
        next_step: the command or edit that helps.
    """

    exit_code = 1

    def __init__(self, what: str, *, cause: str = "", next_step: str = "") -> None:
        self.what = what
        self.cause = cause
        self.next_step = next_step
        super().__init__(self.one_line())

    def one_line(self) -> str:
        """Return the failure as one line: what happened, the likely cause, the next command."""
        parts = [self.what.strip().rstrip(".")]
        if self.cause:
            parts.append(f"likely cause: {self.cause.strip().rstrip('.')}")
        if self.next_step:
            parts.append(f"next: {self.next_step.strip().rstrip('.')}")
        return " | ".join(" ".join(part.split()) for part in parts)


class ImageDiffersError(GreenroomError):
    """The image is not what the plan says."""

    exit_code = 1


class UsageError(GreenroomError):
    """Bad arguments, settings or manifest."""

    exit_code = 2


class EngineError(GreenroomError):
    """No container engine answers and none can be started."""

    exit_code = 3


class BuildError(GreenroomError):
    """A build step failed."""

    exit_code = 4


class LockError(GreenroomError):
    """The lock is missing, stale, or no longer the reviewed one."""

    exit_code = 5


class BaseImageError(GreenroomError):
    """The base image cannot be had."""

    exit_code = 6


class PublishError(GreenroomError):
    """A registry or a push failed."""

    exit_code = 7


ERROR_CLASSES: tuple[type[GreenroomError], ...] = (
    ImageDiffersError,
    UsageError,
    EngineError,
    BuildError,
    LockError,
    BaseImageError,
    PublishError,
)
