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
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

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


def rounds(entries: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Split entries so that no round holds two versions of one distribution: a venv holds only one."""
    result: list[list[dict[str, Any]]] = []
    for entry in entries:
        for group in result:
            if all(other["name"] != entry["name"] for other in group):
                group.append(entry)
                break
        else:
            result.append([entry])
    return result


def dist_info_of(site_packages: Path) -> dict[str, Path]:
    """Return normalised distribution name → its .dist-info directory."""
    found: dict[str, Path] = {}
    for directory in site_packages.glob("*.dist-info"):
        found[re.sub(r"[-_.]+", "-", directory.name.split("-")[0]).lower()] = directory
    return found


def recorded_files(dist_info: Path) -> list[Path]:
    """Return the files that a distribution's RECORD names, RECORD included."""
    with (dist_info / "RECORD").open(newline="", encoding="utf-8") as file:
        return [Path(os.path.normpath(dist_info.parent / row[0])) for row in csv.reader(file) if row]


def install(entries: list[dict[str, Any]], slot: Path, venv_dir: Path, label: str) -> None:
    """Install a slot's wheels and link them into their sets."""
    scratch = venv_dir / SCRATCH
    touched: set[Path] = set()
    for number, group in enumerate(rounds(entries)):
        venv = scratch / f"venv{number}"
        uv(
            "venv",
            "--quiet",
            "--relocatable",
            "--no-project",
            "--python",
            sys.executable,
            str(venv),
            cache=scratch / "cache",
        )
        wheels = [str(slot / entry["wheel"]) for entry in group]
        uv(
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            "--python",
            str(venv),
            *wheels,
            cache=scratch / "cache",
        )
        (site_packages,) = venv.glob("lib/python3.*/site-packages")
        dist_infos = dist_info_of(site_packages)
        for entry in group:
            if entry["name"] not in dist_infos:
                fail(f"slot {label}: {entry['wheel']} did not install a distribution named {entry['name']}")
            files = recorded_files(dist_infos[entry["name"]])
            owner = f"{entry['name']} {entry['version']}"
            for file in files:
                if not os.path.lexists(file) or venv not in file.parents:
                    fail(f"slot {label}: {owner} records {file}, which is not in its venv")
                settle(file)
            for name in entry["sets"]:
                target = venv_dir / SETS / name
                for file in files:
                    path = target / file.relative_to(venv)
                    link_file(file, path, owner)
                    touched.add(path.parent)
            print(f"greenroom: slot {label}: {owner} into {len(entry['sets'])} sets, {len(files)} files", flush=True)
    remove_scratch(venv_dir)
    for directory in list(touched):
        while directory != venv_dir:
            touched.add(directory)
            directory = directory.parent
    for directory in touched:
        settle(directory)
    settle_parents(venv_dir)


def main() -> None:
    slot, venv_dir, label = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    os.umask(0o022)
    entries = json.loads((slot / "slot.json").read_text())
    started = time.monotonic()
    if entries:
        try:
            install(entries, slot, venv_dir, label)
        except (OSError, subprocess.TimeoutExpired) as error:
            fail(f"slot {label}: {error}")
    print(f"greenroom: slot {label}: {len(entries)} distributions in {time.monotonic() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
