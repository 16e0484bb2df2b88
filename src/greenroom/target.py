"""The interpreter and platform that an image runs: what wheels and markers are chosen for.

It is never the host's: a plan made on macOS for a Debian image must equal the one made in the image.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.tags import Tag, compatible_tags, cpython_tags

from greenroom.errors import UsageError

BOOTSTRAP_PYTHON = "3.13.5"
BOOTSTRAP_GLIBC = "2.41"
_LEGACY_ALIASES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
"""glibc 2.x minor → the older name of the same platform (PEP 600)."""
_LINUX_MACHINES = {"arm64": "aarch64", "AMD64": "x86_64"}
"""What other systems call a processor → what Linux calls it."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """An image's interpreter and platform.

    Attributes:
        python: full version, such as "3.13.5".
        implementation: `sys.implementation.name`; only "cpython" is supported.
        machine: as `platform.machine()` says it, such as "x86_64".
        glibc: version of the C library, such as "2.41".
    """

    python: str
    implementation: str
    machine: str
    glibc: str

    @classmethod
    def from_probe(cls, facts: Mapping[str, str]) -> Target:
        """Make a target from what `greenroom.probe` printed.

        Raises:
            UsageError: the image's interpreter or C library is not one that wheels can be chosen for.
        """
        target = cls(**facts)
        if target.implementation != "cpython" or not target.glibc:
            raise UsageError(
                f"the image runs {target.implementation} {target.python} on glibc {target.glibc or '(none)'}",
                cause="greenroom chooses wheels for CPython on glibc only",
                next_step="choose another --base-image",
            )
        return target

    @property
    def python_minor(self) -> str:
        """The version's first two parts, such as "3.13"."""
        return ".".join(self.python.split(".")[:2])

    def marker_environment(self) -> dict[str, str]:
        """Return the environment for marker evaluation (PEP 508).

        The kernel's release and version are those of whatever machine runs the image, so they are empty.
        """
        return {
            "implementation_name": self.implementation,
            "implementation_version": self.python,
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": self.python,
            "python_version": self.python_minor,
            "sys_platform": "linux",
        }

    def tags(self) -> list[Tag]:
        """Return the wheel tags it accepts, best first."""
        major, minor = (int(part) for part in self.python_minor.split("."))
        interpreter = f"cp{major}{minor}"
        platforms = _platforms(self.machine, self.glibc)
        return [
            *cpython_tags((major, minor), abis=[interpreter], platforms=platforms),
            *compatible_tags((major, minor), interpreter=interpreter, platforms=platforms),
        ]


def _platforms(machine: str, glibc: str) -> list[str]:
    """Return the platform tags of a glibc system, best first as in `packaging.tags`: its own, then the newest.

    PEP 600; x86 starts at 2.5, others at 2.17.
    """
    newest = int(glibc.split(".")[1])
    oldest = 5 if machine in {"x86_64", "i686"} else 17
    names = [f"linux_{machine}"]
    for minor in range(newest, oldest - 1, -1):
        names.append(f"manylinux_2_{minor}_{machine}")
        if minor in _LEGACY_ALIASES:
            names.append(f"{_LEGACY_ALIASES[minor]}_{machine}")
    return names


def bootstrap_target(python: str = BOOTSTRAP_PYTHON) -> Target:
    """Return the target of the default base image: Debian 13's CPython and glibc, on this host's processor.

    Args:
        python: the version of another CPython, for a base image that has it.
    """
    machine = platform.machine()
    return Target(
        python=python, implementation="cpython", machine=_LINUX_MACHINES.get(machine, machine), glibc=BOOTSTRAP_GLIBC
    )
