"""The target that an interpreter's own facts give accepts what that interpreter accepts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import packaging.markers
import packaging.tags
import pytest

from greenroom import probe
from greenroom.errors import UsageError
from greenroom.process import run
from greenroom.target import Target, bootstrap_target

KERNEL_FIELDS = {"platform_release", "platform_version"}


def test_tags_are_those_of_the_running_interpreter() -> None:
    assert Target.from_probe(probe.probe()).tags() == list(packaging.tags.sys_tags())


def test_markers_are_those_of_the_running_interpreter_but_for_its_kernel() -> None:
    mine = Target.from_probe(probe.probe()).marker_environment()
    theirs: dict[str, object] = {**packaging.markers.default_environment()}
    assert set(mine) == set(theirs)
    assert {key: value for key, value in mine.items() if key not in KERNEL_FIELDS} == {
        key: value for key, value in theirs.items() if key not in KERNEL_FIELDS
    }
    assert {mine[key] for key in KERNEL_FIELDS} == {""}


def test_the_probe_is_a_script_of_its_own() -> None:
    """As images run it: isolated, from standard input."""
    done = run([sys.executable, "-I", "-"], stdin=Path(probe.__file__).read_bytes())
    assert json.loads(done.stdout) == probe.probe()


REFUSED = [
    {"implementation": "pypy"},
    {"implementation": "graalpy"},
    {"glibc": ""},
]


@pytest.mark.parametrize("facts", REFUSED)
def test_other_interpreters_and_libraries_are_refused(facts: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="CPython on glibc only") as caught:
        Target.from_probe({**probe.probe(), **facts})
    assert caught.value.exit_code == 2


# Each: machine, glibc, a tag that is accepted, and one that is not.
PLATFORMS = [
    ("x86_64", "2.41", "manylinux_2_41_x86_64", "manylinux_2_42_x86_64"),
    ("x86_64", "2.41", "manylinux1_x86_64", "manylinux_2_4_x86_64"),
    ("x86_64", "2.41", "manylinux2014_x86_64", "manylinux2014_aarch64"),
    ("x86_64", "2.17", "manylinux2014_x86_64", "manylinux_2_28_x86_64"),
    ("x86_64", "2.41", "linux_x86_64", "musllinux_1_2_x86_64"),
    ("aarch64", "2.36", "manylinux_2_17_aarch64", "manylinux2010_aarch64"),
    ("aarch64", "2.36", "manylinux2014_aarch64", "manylinux_2_37_aarch64"),
]


@pytest.mark.parametrize(("machine", "glibc", "accepted", "refused"), PLATFORMS)
def test_platforms(machine: str, glibc: str, accepted: str, refused: str) -> None:
    target = Target(python="3.13.5", implementation="cpython", machine=machine, glibc=glibc)
    platforms = {tag.platform for tag in target.tags()}
    assert accepted in platforms
    assert refused not in platforms


INTERPRETERS = [
    ("cp313-cp313-linux_x86_64", True),
    ("cp39-abi3-linux_x86_64", True),
    ("py3-none-any", True),
    ("py313-none-any", True),
    ("cp312-cp312-linux_x86_64", False),
    ("cp314-abi3-linux_x86_64", False),
    ("cp313-cp313t-linux_x86_64", False),
    ("py2-none-any", False),
]


@pytest.mark.parametrize(("tag", "accepted"), INTERPRETERS)
def test_interpreters(target: Target, tag: str, accepted: bool) -> None:
    assert packaging.tags.parse_tag(tag).isdisjoint(target.tags()) is not accepted


# What hosts call their processor → what a Linux image on it says.
MACHINES = [
    ("x86_64", "x86_64"),
    ("aarch64", "aarch64"),
    ("arm64", "aarch64"),
    ("AMD64", "x86_64"),
    ("ppc64le", "ppc64le"),
]


@pytest.mark.parametrize(("host", "image"), MACHINES)
def test_the_bootstrapped_base_is_linux_on_the_hosts_processor(
    monkeypatch: pytest.MonkeyPatch, host: str, image: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: host)
    assert bootstrap_target().machine == image
