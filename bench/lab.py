"""The laboratory: container engines of our own, below one directory, that may be pruned and are removed at the end.

Each engine has its own cache directory and data root. What the user's own private engine has already
unpacked or bootstrapped (packages, base image) is taken over instead of fetched again; that engine is
only read from.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from greenroom import engine_state, private_engine
from greenroom.base_image import ensure_base_image
from greenroom.console import say
from greenroom.engine import Engine, find_engine, start_engine, stop_engine
from greenroom.errors import GreenroomError
from greenroom.files import cache_dir
from greenroom.process import ProcessError, end_process_group

BASE = "greenroom-base:trixie"
BASE_SETTING = "bootstrap:trixie"
SAVE_TIMEOUT = 900.0
PRUNE_TIMEOUT = 300.0


class Unavailable(Exception):
    """A figure cannot be measured here; the message says why."""


class Lab:
    """Engines by name, started when first asked for.

    Args:
        directory: everything of the laboratory is below it.
        keep: leave the engines' data for the next run; it is removed otherwise.
    """

    def __init__(self, directory: Path, *, keep: bool = False) -> None:
        self.directory = directory
        self.keep = keep
        self._user_cache = cache_dir()
        self._engines: dict[str, Engine] = {}
        self._based: set[str] = set()
        self._children: list[subprocess.Popen[bytes]] = []

    def engine(self, name: str = "first", *, base: bool = True) -> Engine:
        """Return a running engine.

        Args:
            name: which; each has a data root of its own.
            base: give it the base image.
        """
        if name not in self._engines:
            if reason := private_engine.unusable():
                raise Unavailable(
                    f"the bench prunes its engine, so it needs a private one, which cannot start: {reason}"
                )
            with self._cache_of(name):
                _take_over_packages(self._user_cache / "engine", self.directory / name / "engine")
                self._engines[name] = start_engine()
        engine = self._engines[name]
        if base and name not in self._based:
            with self._cache_of(name):
                self._give_base(engine)
            self._based.add(name)
        return engine

    def adopt(self, child: subprocess.Popen[bytes]) -> None:
        """End a process that leads its own group when the laboratory closes."""
        self._children.append(child)

    def versions(self) -> dict[str, str]:
        """Return the versions of the engine and of its builder; nothing when none was started."""
        for engine in self._engines.values():
            server = engine.cli("version", "--format", "{{.Server.Version}}", timeout=60).stdout.strip()
            driver = engine.cli("info", "--format", "{{.Driver}}", timeout=60).stdout.strip()
            buildx = engine.cli("buildx", "version", timeout=60).stdout.split()
            return {"engine": server, "storage_driver": driver, "buildx": " ".join(buildx[1:2])}
        return {}

    def close(self) -> None:
        """Stop every engine of this laboratory and, unless they are kept, remove their data."""
        for child in self._children:
            end_process_group(child)
        for name in self._engines:
            with self._cache_of(name):
                stop_engine()
        if not self.keep and self.directory.is_dir():
            if mounts := [point for name in self._engines for point in self._mounts(name)]:
                say(f"{mounts[0]} is still mounted: the laboratory's data stays")
                return
            shutil.rmtree(self.directory)

    @contextlib.contextmanager
    def _cache_of(self, name: str) -> Iterator[None]:
        """Let greenroom's functions see an engine's own cache directory."""
        before = os.environ.get("GREENROOM_CACHE_DIR")
        os.environ["GREENROOM_CACHE_DIR"] = str(self.directory / name)
        try:
            yield
        finally:
            if before is None:
                del os.environ["GREENROOM_CACHE_DIR"]
            else:
                os.environ["GREENROOM_CACHE_DIR"] = before

    def _mounts(self, name: str) -> list[Path]:
        with self._cache_of(name):
            return engine_state.own_mounts(engine_state.layout())

    def _give_base(self, engine: Engine) -> None:
        if not has_image(engine, BASE):
            archive = self.directory / "base.tar"
            if self._based:
                # Every engine has the very same base, whatever became of its recipe meanwhile.
                self._engines[min(self._based)].cli("save", "--output", archive, BASE, timeout=SAVE_TIMEOUT)
            else:
                self._save_users_base(archive)
            if archive.is_file():
                engine.cli("load", "--quiet", "--input", archive, changes=True, timeout=SAVE_TIMEOUT)
                archive.unlink()
        # Nothing to do when the loaded image is of the present recipe; bootstraps it otherwise.
        ensure_base_image(engine, BASE_SETTING)

    def _save_users_base(self, archive: Path) -> None:
        own = os.environ.pop("GREENROOM_CACHE_DIR", None)
        os.environ["GREENROOM_CACHE_DIR"] = str(self._user_cache)
        try:
            find_engine(start=False).cli("save", "--output", archive, BASE, timeout=SAVE_TIMEOUT)
        except (GreenroomError, ProcessError):
            archive.unlink(missing_ok=True)
        finally:
            del os.environ["GREENROOM_CACHE_DIR"]
            if own is not None:
                os.environ["GREENROOM_CACHE_DIR"] = own


def _take_over_packages(source: Path, target: Path) -> None:
    """Hardlink what is unpacked already; `ensure_unpacked` then finds it complete and fetches nothing."""
    target.mkdir(parents=True, exist_ok=True)
    for record in source.glob("*.current"):
        name = record.read_text().splitlines()[0]
        packages = target / "packages" / name
        if not packages.exists() and (source / "packages" / name).is_dir():
            shutil.copytree(source / "packages" / name, packages, symlinks=True, copy_function=_link)
            shutil.copyfile(record, target / record.name)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def has_image(engine: Engine, tag: str) -> bool:
    """Return whether an engine has an image."""
    return engine.cli("image", "inspect", "--format", "{{.Id}}", tag, check=False, timeout=60).returncode == 0


def forget(engine: Engine, tags: Sequence[str]) -> None:
    """Remove images and the whole build cache, cache mounts included, so that the next build is cold."""
    for tag in tags:
        if has_image(engine, tag):
            engine.cli("rmi", "--force", tag, changes=True, timeout=PRUNE_TIMEOUT)
    engine.cli("builder", "prune", "--all", "--force", changes=True, timeout=PRUNE_TIMEOUT)


def settle_disk() -> None:
    """Write everything back first, so that no run pays for what an earlier one left to write."""
    os.sync()
    time.sleep(0.5)
