"""Building wheels from source: an sdist or a tree in, one wheel out. Used by the steps that fetch and that compile."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from greenroom.errors import BuildError
from greenroom.process import ProcessError, run
from greenroom.source_builds import BuildSettings
from network import index_environment
from venv_tree import EPOCH

BUILD_TIMEOUT = 3 * 3600.0
"""Seconds that one wheel may take; inference engines take hours."""
SILENCE = 15.0
"""Seconds between two lines about a build that goes on."""
IN_ISOLATION = BuildSettings()
_UV = Path(sys.executable).with_name("uv")


def limit_age(exclude_newer: str) -> None:
    """Let uv take no build requirement that is newer than the project's lock may have, so that a build can be repeated."""
    if exclude_newer:
        os.environ["UV_EXCLUDE_NEWER"] = exclude_newer


class Named(Protocol):
    """What a wheel is to be of: an artifact of the lock, or what lies in the project's directory."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...


def build_once(done: Path, source: Path, wanted: Named, settings: BuildSettings, requires: Sequence[Path] = ()) -> Path:
    """Build a wheel, unless a directory has it already.

    Args:
        done: the directory that holds the wheel and nothing else; it is renamed into place when the wheel is whole.
        source, wanted, settings, requires: as for `build_wheel`.

    Returns:
        The wheel's path.

    Raises:
        BuildError: as `build_wheel`.
    """
    if not done.is_dir():
        done.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=done.parent, prefix=f".{done.name}."))
        try:
            print(f"greenroom: build {wanted.name} {wanted.version} from {source.name}", flush=True)
            build_wheel(source, aside, wanted, settings, requires)
            aside.rename(done)
        except OSError:
            # Another build that shares the cache may have been faster.
            if not done.is_dir():
                raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    (wheel,) = done.glob("*.whl")
    return wheel


def build_wheel(
    source: Path, out: Path, wanted: Named, settings: BuildSettings = IN_ISOLATION, requires: Sequence[Path] = ()
) -> Path:
    """Build the wheel of an sdist or a source tree.

    Args:
        source: the sdist's file or the source tree.
        out: the directory that receives the wheel and nothing else.
        wanted: the distribution's name and version.
        settings: how it is built.
        requires: wheels for its build environment, when that is not isolated.

    Returns:
        The wheel's path.

    Raises:
        BuildError: the build failed, and its last lines are in the message; or it made another distribution or version.
    """
    name, given = wanted.name, source
    # A compiler may use every core; how many there are is no property of the wheel.
    parallel = {"CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1), "MAX_JOBS": str(os.cpu_count() or 1)}
    env = {
        **parallel,
        **index_environment(os.environ),
        "SOURCE_DATE_EPOCH": str(EPOCH),
        "UV_PYTHON_DOWNLOADS": "never",
        # What reads its version from git's history finds none here (setuptools-scm's documentation).
        "SETUPTOOLS_SCM_PRETEND_VERSION": wanted.version,
        **dict(settings.variables),
    }
    with _scratch(wanted) as scratch:
        source = _unpacked(source, scratch / "source") if source.is_file() else source
        command: list[str | Path] = [_UV, "build", "--wheel", "--no-create-gitignore", "--out-dir", out]
        for key, value in settings.config_settings:
            command += ["--config-setting", f"{key}={value}"]
        if settings.isolated:
            command += ["--python", sys.executable]
        else:
            python = _environment(scratch / "environment", requires, env)
            # Build backends look for programs of their requirements, such as ninja.
            env["PATH"] = f"{python.parent}:{env['PATH']}"
            command += ["--no-build-isolation", "--python", python]
        if settings.requirements:
            config = scratch / "uv.toml"
            config.write_text(
                f"extra-build-dependencies = {{ {json.dumps(name)} = {json.dumps(settings.requirements)} }}\n"
            )
            command += ["--config-file", config]
        try:
            run([*command, source], cwd=out, env=env, timeout=BUILD_TIMEOUT, on_stderr=(lines := _Lines(name)).take)
        except ProcessError as error:
            raise _failure(name, given, lines.last() or error.reason) from error
    (wheel,) = out.glob("*.whl")
    found, version, _, _ = parse_wheel_filename(wheel.name)
    if found != name or version != Version(wanted.version):
        raise BuildError(
            f"{given.name} made {wheel.name}, and the lock says {name} {wanted.version}",
            cause="its version is computed, from git's history or a file that changed since",
            next_step="uv lock, or set its version in [tool.uv.extra-build-variables]",
        )
    return wheel


@contextmanager
def _scratch(wanted: Named) -> Iterator[Path]:
    """Yield an empty directory whose path depends on nothing but the distribution: compilers write paths into files."""
    directory = Path(tempfile.gettempdir(), "greenroom-build", f"{wanted.name}-{wanted.version}")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _unpacked(sdist: Path, directory: Path) -> Path:
    """Unpack an sdist; return its one directory.

    Raises:
        BuildError: it is no archive, or not one of an sdist.
    """
    try:
        if tarfile.is_tarfile(sdist):
            with tarfile.open(sdist) as archive:
                archive.extractall(directory, filter="data")
        else:
            with zipfile.ZipFile(sdist) as zipped:
                zipped.extractall(directory)
        (tree,) = directory.iterdir()
    except (tarfile.TarError, zipfile.BadZipFile, ValueError, OSError) as error:
        raise BuildError(
            f"{sdist.name} cannot be unpacked: {error}",
            cause="it is no sdist, which holds one directory",
            next_step="lock another release of it",
        ) from error
    return tree


def _environment(venv: Path, wheels: Sequence[Path], env: dict[str, str]) -> Path:
    """Make the environment of a build that is not isolated; return its interpreter."""
    run([_UV, "venv", "--quiet", "--no-project", "--python", sys.executable, venv], env=env)
    python = venv / "bin" / "python"
    if wheels:
        run([_UV, "pip", "install", "--quiet", "--no-deps", "--no-index", "--python", python, *wheels], env=env)
    return python


class _Lines:
    """What a build prints: the last lines for its failure, and one now and then while it goes on."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._text = ""
        self._last: list[str] = []
        self._shown = time.monotonic()

    def take(self, chunk: bytes) -> None:
        """Take what it printed, cut anywhere."""
        *lines, self._text = (self._text + chunk.decode(errors="replace")).split("\n")
        self._last = [*self._last, *(line.rstrip() for line in lines if line.strip())][-80:]
        if self._last and time.monotonic() - self._shown > SILENCE:
            self._shown = time.monotonic()
            print(f"greenroom: {self._name}: {self._last[-1].strip()[:150]}", flush=True)

    def last(self) -> str:
        """Return its last lines, without uv's own account of the failure and the build backend's stack."""
        lines = [line for line in [*self._last, self._text.rstrip()] if line]
        told, in_stack = [], False
        for line in lines:
            if line.startswith("Traceback ") or (in_stack and line.startswith(" ")):
                in_stack = True
            elif not re.match(r" *(error|cause|hint): |Building wheel\.\.\.", line):
                in_stack = False
                told.append(line.strip())
        return "\n".join((told or lines)[-10:])


def _failure(name: str, source: Path, said: str) -> BuildError:
    if "certificate" in said:
        return BuildError(
            f"{name} cannot be built from {source.name}: {said}",
            cause="the certificate of the index is not trusted here",
            next_step="point SSL_CERT_FILE at a bundle, or pass --secret id=ca,src=BUNDLE to docker",
        )
    return BuildError(
        f"{name} cannot be built from {source.name}: {said}",
        cause="its build needs something that the image lacks, or the settings for it are wrong",
        next_step=f"find a release of {name} with a wheel, or compile it in a stage: [tool.greenroom.source-built]",
    )
