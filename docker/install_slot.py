"""Install one slot's wheels into every set that needs them: install_slot.py <slot directory> <venv directory> <label>

Runs in one image layer, without a network. uv installs each wheel once, into a scratch venv inside the
layer; its files, named by its RECORD, are then hardlinked into each set. The scratch venv is relocatable,
so scripts are the same bytes in every set and can be shared too. The work is that of the slot: no walk
over what earlier slots installed.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bytecode import compile_sources
from venv_tree import SCRATCH, SETS, fail, link_file, remove_scratch, settle, settle_parents

UV_TIMEOUT = 900


def uv(*args: str, cache: Path) -> None:
    """Run the mounted uv offline, with its cache inside the layer so that hardlinks are possible."""
    env = {
        **os.environ,
        "UV_CACHE_DIR": str(cache),
        "UV_LINK_MODE": "hardlink",
        "UV_NO_CONFIG": "1",
        "UV_NO_INSTALLER_METADATA": "1",
        "UV_NO_PROGRESS": "1",
        "UV_OFFLINE": "1",
        "UV_PYTHON_DOWNLOADS": "never",
    }
    program = str(Path(__file__).with_name("uv"))
    done = subprocess.run(
        [program, *args], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=UV_TIMEOUT
    )
    if done.returncode != 0:
        fail(f"uv {args[0]} failed ({done.returncode}): {done.stderr.strip()}")


def copy_empty_venv(venv: Path) -> None:
    """Make an empty relocatable venv: a copy of the one that uv made when the tools were installed."""
    shutil.copytree(Path(__file__).with_name("empty-venv"), venv, symlinks=True)


def rounds(entries: list[dict[str, Any]], contents: Mapping[str, frozenset[str]]) -> list[list[dict[str, Any]]]:
    """Split entries so that what a round installs can be in one venv.

    Args:
        entries: the slot's wheels.
        contents: wheel → the paths in it.

    Returns:
        Rounds that hold neither two versions of one distribution nor two wheels with a path in common: those may belong
        into different sets, each with its own file.
    """
    result: list[list[dict[str, Any]]] = []
    for entry in entries:
        for group in result:
            if all(
                other["name"] != entry["name"] and contents[other["wheel"]].isdisjoint(contents[entry["wheel"]])
                for other in group
            ):
                group.append(entry)
                break
        else:
            result.append([entry])
    return result


def paths_in(wheel: Path) -> frozenset[str]:
    """Return the paths of the files in a wheel; none for one that cannot be read, which uv then says."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return frozenset(name for name in archive.namelist() if not name.endswith("/"))
    except zipfile.BadZipFile:
        return frozenset()


def dist_info_of(site_packages: Path) -> dict[str, Path]:
    """Return normalised distribution name → its .dist-info directory."""
    found: dict[str, Path] = {}
    for directory in site_packages.glob("*.dist-info"):
        found[re.sub(r"[-_.]+", "-", directory.name.split("-")[0]).lower()] = directory
    return found


def recorded_files(venv: Path, dist_info: Path, owner: str) -> list[str]:
    """Return the files that a distribution's RECORD names, RECORD included, relative to its venv.

    The step ends when the RECORD names a file that is not there, or not in the venv.
    """
    base = dist_info.parent.relative_to(venv)
    with (dist_info / "RECORD").open(newline="", encoding="utf-8") as file:
        files = [os.path.normpath(base / row[0]) for row in csv.reader(file) if row]
    for name in files:
        if name.startswith(("../", "/")) or not os.path.lexists(venv / name):
            fail(f"{owner} records {name}, which is not in its venv")
    return files


@dataclass(frozen=True, kw_only=True)
class Installed:
    """A distribution in the scratch venv: its owner's name and version, the venv, its files, and who needs it."""

    owner: str
    venv: str
    files: list[str]
    sets: list[str]


def install(entries: list[dict[str, Any]], slot: Path, scratch: Path, label: str) -> list[Installed]:
    """Install a slot's wheels into scratch venvs, each once, and settle their files."""
    cache = scratch / "cache"
    result: list[Installed] = []
    contents = {entry["wheel"]: paths_in(slot / entry["wheel"]) for entry in entries}
    for number, group in enumerate(rounds(entries, contents)):
        venv = scratch / f"venv{number}"
        copy_empty_venv(venv)
        wheels = [str(slot / entry["wheel"]) for entry in group]
        uv("pip", "install", "--quiet", "--no-deps", "--no-index", "--python", str(venv), *wheels, cache=cache)
        (site_packages,) = venv.glob("lib/python3.*/site-packages")
        dist_infos = dist_info_of(site_packages)
        for entry in group:
            owner = f"{entry['name']} {entry['version']}"
            if entry["name"] not in dist_infos:
                fail(f"slot {label}: {entry['wheel']} did not install a distribution named {entry['name']}")
            files = recorded_files(venv, dist_infos[entry["name"]], owner)
            if os.environ.get("BYTECODE", "1") == "1":
                files += compile_sources(str(venv), files)
            for name in files:
                settle(f"{venv}/{name}")
            result.append(Installed(owner=owner, venv=str(venv), files=files, sets=entry["sets"]))
            print(f"greenroom: slot {label}: {owner} into {len(entry['sets'])} sets, {len(files)} files", flush=True)
    return result


def link_into(target: str, distributions: list[Installed]) -> None:
    """Hardlink distributions into one set and settle every directory that this touched."""
    directories: set[str] = set()
    for distribution in distributions:
        for name in distribution.files:
            link_file(f"{distribution.venv}/{name}", f"{target}/{name}", distribution.owner)
            directories.add(os.path.dirname(name))
    for directory in list(directories):
        while directory := os.path.dirname(directory):
            directories.add(directory)
    for directory in directories:
        settle(f"{target}/{directory}")
    settle(target)


def fill(entries: list[dict[str, Any]], slot: Path, venv_dir: Path, label: str) -> None:
    """Install a slot's wheels and link them into their sets, several sets at a time: each has its own directories."""
    installed = install(entries, slot, venv_dir / SCRATCH, label)
    names = sorted({name for distribution in installed for name in distribution.sets})
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        # What was unpacked has names in the scratch venv by now; its names in uv's cache go while sets are filled.
        pool.submit(shutil.rmtree, venv_dir / SCRATCH / "cache", ignore_errors=True)
        for future in [
            pool.submit(
                link_into,
                str(venv_dir / SETS / name),
                [distribution for distribution in installed if name in distribution.sets],
            )
            for name in names
        ]:
            future.result()
    remove_scratch(venv_dir)
    settle(str(venv_dir / SETS))
    settle_parents(venv_dir)


def main() -> None:
    slot, venv_dir, label = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    os.umask(0o022)
    entries = json.loads((slot / "slot.json").read_text())
    started = time.monotonic()
    if entries:
        print(f"greenroom: slot {label} gets {len(entries)} distributions", flush=True)
        try:
            fill(entries, slot, venv_dir, label)
        except (OSError, subprocess.TimeoutExpired) as error:
            fail(f"slot {label}: {error}")
    if entries:
        largest = max(entries, key=lambda entry: (slot / entry["wheel"]).stat().st_size)
        names = f"{largest['name']} {largest['version']}" + (f" and {len(entries) - 1} more" if entries[1:] else "")
        print(f"greenroom: slot {label} has {names}, in {time.monotonic() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
