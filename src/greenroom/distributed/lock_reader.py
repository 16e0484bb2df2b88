"""What `uv.lock` says of some extras, read without uv: nodes that run actors may have the lock and no uv.

Planning asks uv itself (`greenroom.lock`); this reading serves the comparison of finished venvs with a lock, and its
tests hold it equal to uv's. It needs `packaging`, which Ray brings into every venv.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = 1
"""Version of uv.lock's format that is understood."""
_SELECTED_EXTRA = re.compile(r"extra\s*(==|!=)\s*'([^']*)'")
# uv writes an extra of a conflict as `extra-<length of the package's name>-<package>-<extra>` into markers.
_ALWAYS, _NEVER = "python_version >= '0'", "python_version < '0'"


@dataclass(frozen=True, kw_only=True)
class Locked:
    """A locked distribution.

    Attributes:
        version: "" when the project computes it while it is built.
        hashes: of all its files ("sha256:…"); none for what comes from a directory or a repository.
        source: where such a one comes from, with its commit; "" for what comes from an index.
    """

    version: str
    hashes: frozenset[str]
    source: str = ""


class UnreadableLockError(Exception):
    """The lock is not one that can be read here; the message says why."""


def read_lock(path: Path) -> dict[str, Any]:
    """Return the lock as data.

    Raises:
        UnreadableLockError: it is missing, is no lock, or has a format that is not understood.
    """
    try:
        lock = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnreadableLockError(f"{path} cannot be read: {error}") from error
    if lock.get("version") != FORMAT:
        raise UnreadableLockError(f"{path} has format {lock.get('version')!r}, not {FORMAT}")
    return lock


def locked_closure(
    lock: Mapping[str, Any], extras: Sequence[str], environment: Mapping[str, str] | None = None
) -> dict[str, Locked]:
    """Return what the project and some of its extras lock to.

    Args:
        lock: from `read_lock`.
        extras: the extras, normalised.
        environment: for markers; that of the running interpreter when None.

    Returns:
        Distribution → what is locked, default dependency groups included, as uv installs them. The project itself is
        in it when it is a package, without hashes.

    Raises:
        UnreadableLockError: the lock does not declare an extra, or lacks a distribution that it needs.
    """
    packages: dict[str, list[Mapping[str, Any]]] = {}
    for package in lock.get("package", []):
        packages.setdefault(package["name"], []).append(package)
    project = _project(packages)
    markers = _Markers(project["name"], extras, environment)
    if undeclared := sorted(set(extras) - set(project.get("metadata", {}).get("provides-extras", []))):
        raise UnreadableLockError(f"uv.lock does not know the extra {', '.join(undeclared)}")
    found: dict[str, Locked] = {}
    seen: set[tuple[int, str]] = set()
    waiting: list[tuple[Mapping[str, Any], str]] = [(project, ""), *((project, extra) for extra in extras)]
    while waiting:
        package, extra = waiting.pop()
        if (id(package), extra) in seen:
            continue
        seen.add((id(package), extra))
        if package is not project or "virtual" not in project["source"]:
            found[package["name"]] = _locked(package)
        edges = package.get("optional-dependencies", {}).get(extra, []) if extra else package.get("dependencies", [])
        if package is project and not extra:
            edges = [*edges, *_edges_of_default_groups(project)]
        for edge in edges:
            if markers.hold(edge.get("marker")):
                needed = _target(packages, edge, markers)
                waiting += [(needed, ""), *((needed, name) for name in edge.get("extra", []))]
    return found


def _project(packages: Mapping[str, list[Mapping[str, Any]]]) -> Mapping[str, Any]:
    for candidates in packages.values():
        for package in candidates:
            source = package.get("source", {})
            if "." in (source.get("editable"), source.get("virtual"), source.get("directory")):
                return package
    raise UnreadableLockError("uv.lock does not hold the project itself")


def _edges_of_default_groups(project: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    groups = project.get("dev-dependencies", {})
    # What uv installs when nobody says otherwise: the group dev.
    chosen = project.get("default-groups", ["dev"])
    return [edge for name, edges in groups.items() if chosen == "all" or name in chosen for edge in edges]


def _target(
    packages: Mapping[str, list[Mapping[str, Any]]], edge: Mapping[str, Any], markers: _Markers
) -> Mapping[str, Any]:
    candidates = [
        package
        for package in packages.get(edge["name"], [])
        if edge.get("version") in (None, package.get("version")) and edge.get("source") in (None, package.get("source"))
    ]
    if len(candidates) > 1:
        # Versions for different Pythons or platforms name the markers of the resolution that they belong to.
        candidates = [item for item in candidates if any(map(markers.hold, item.get("resolution-markers", [None])))]
    if len(candidates) != 1:
        raise UnreadableLockError(f"uv.lock has {len(candidates)} candidates for {edge['name']}")
    return candidates[0]


def _locked(package: Mapping[str, Any]) -> Locked:
    files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
    hashes = frozenset(file["hash"] for file in files if "hash" in file)
    source = {} if "registry" in package["source"] else package["source"]
    return Locked(
        version=str(package.get("version", "")),
        hashes=hashes,
        source=json.dumps(source, sort_keys=True) if source else "",
    )


class _Markers:
    """Evaluates markers of a lock, those of conflicting extras included."""

    def __init__(self, project: str, extras: Sequence[str], environment: Mapping[str, str] | None) -> None:
        self._selected = {f"extra-{len(project)}-{project}-{extra}" for extra in extras}
        self._environment = dict(environment or {})
        self._known: dict[str, bool] = {}

    def hold(self, marker: str | None) -> bool:
        """Return whether a marker holds; no marker always does."""
        if marker is None:
            return True
        if marker not in self._known:
            # Imported here: an interpreter that never compares a lock needs the standard library alone.
            from packaging.markers import Marker

            plain = _SELECTED_EXTRA.sub(self._decided, marker)
            self._known[marker] = Marker(plain).evaluate(self._environment)
        return self._known[marker]

    def _decided(self, match: re.Match[str]) -> str:
        return _ALWAYS if (match[2] in self._selected) == (match[1] == "==") else _NEVER
