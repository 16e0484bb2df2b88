"""What is built from source, and how: the project's own settings, as uv knows them, and which stage compiles what.

`[tool.greenroom.source-built]` gives the stages of the manifest that compile something: stage → its distributions.
`[tool.greenroom.mounted]` gives those that are not installed but found where their sources will be mounted.
Everything else is uv's: `extra-build-variables`, `extra-build-dependencies`, `config-settings`,
`config-settings-package`, `no-build-isolation`, `no-build-isolation-package`, `no-binary`, `no-binary-package` and
`exclude-newer` of `[tool.uv]` mean here what they mean to uv. Pure but for reading the file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from greenroom.errors import UsageError
from greenroom.lock import Artifact

PLACES = 3
"""Source-built stages that an image can have: each is a step of the Dockerfile, and three layers of the image's 127."""


@dataclass(frozen=True, kw_only=True, order=True)
class BuildSettings:
    """How one distribution is built from source.

    Attributes:
        variables: of the build's environment, sorted by name.
        config_settings: what its build backend is told (PEP 517), sorted.
        requirements: build requirements beyond its own, sorted.
        isolated: whether it is built in an environment that holds its build requirements alone. Else that
            environment holds what its venvs hold.
    """

    variables: tuple[tuple[str, str], ...] = ()
    config_settings: tuple[tuple[str, str], ...] = ()
    requirements: tuple[str, ...] = ()
    isolated: bool = True


@dataclass(frozen=True, kw_only=True)
class SourceBuildRules:
    """What a project says about building from source; nothing by default.

    Attributes:
        stages: stage → the distributions that it compiles, in the order of the stages.
        uv: the table `[tool.uv]`.
        mounted: distribution in the project's directory → the directory of the image where its sources will be mounted.
    """

    stages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    uv: Mapping[str, Any] = field(default_factory=dict)
    mounted: Mapping[str, str] = field(default_factory=dict)

    @property
    def exclude_newer(self) -> str:
        """What uv is told about the age of build requirements; "" for nothing."""
        return str(self.uv.get("exclude-newer", ""))

    def stage_of(self, name: str) -> str:
        """Return the stage that compiles a distribution; "" when none does."""
        return next((stage for stage, names in self.stages.items() if name in names), "")

    def wants_source(self, name: str) -> bool:
        """Say whether a distribution is built from source although a wheel may be there."""
        return bool(self.stage_of(name)) or bool(self.uv.get("no-binary")) or name in self._names("no-binary-package")

    def settings_of(self, name: str, versions: Mapping[str, str]) -> BuildSettings:
        """Return how a distribution is built.

        Args:
            name: the distribution.
            versions: those of its venv, for build requirements that are to match them.

        Raises:
            UsageError: a build requirement that is to match the venv's is not in the venv.
        """
        own = self._of("config-settings-package", name)
        settings = {**self.uv.get("config-settings", {}), **own}
        pairs = [
            (key, str(value).lower() if isinstance(value, bool) else str(value))
            for key, values in sorted(settings.items())
            for value in (values if isinstance(values, list) else [values])
        ]
        return BuildSettings(
            variables=tuple(
                sorted((key, str(value)) for key, value in self._of("extra-build-variables", name).items())
            ),
            config_settings=tuple(pairs),
            requirements=tuple(
                sorted(_requirement(item, name, versions) for item in self._of("extra-build-dependencies", name) or [])
            ),
            isolated=self.isolates(name),
        )

    def isolates(self, name: str) -> bool:
        """Say whether a distribution is built in an environment that holds its build requirements alone."""
        return not (self.uv.get("no-build-isolation") or name in self._names("no-build-isolation-package"))

    def _names(self, key: str) -> set[str]:
        return {canonicalize_name(name) for name in self.uv.get(key, [])}

    def _of(self, key: str, name: str) -> Any:
        """Return what a table of `[tool.uv]` says of a distribution, whatever its spelling there."""
        return next((value for item, value in self.uv.get(key, {}).items() if canonicalize_name(item) == name), {})


@dataclass(frozen=True, kw_only=True, order=True)
class SourceBuild:
    """A distribution that the build makes a wheel of.

    Attributes:
        filename: of its artifact.
        stage: the source-built stage that compiles it; "" for one that is built where wheels are fetched.
        settings: how it is built.
        requires: filenames of the artifacts that are in its build environment, when that is not isolated.
    """

    filename: str
    stage: str
    settings: BuildSettings
    requires: tuple[str, ...]


def _requirement(item: object, name: str, versions: Mapping[str, str]) -> str:
    if not isinstance(item, dict):
        return str(item)
    requirement = str(item["requirement"])
    if not item.get("match-runtime"):
        return requirement
    needed = canonicalize_name(requirement)
    if needed not in versions:
        raise UsageError(
            f"{name} is to be built with the {requirement} of its venv, which has none",
            cause="match-runtime in [tool.uv.extra-build-dependencies] names what no extra needs",
            next_step=f"add {requirement} to the extra that needs {name}",
        )
    return f"{requirement}=={versions[needed]}"


def read_rules(pyproject: Path) -> SourceBuildRules:
    """Read a project's rules.

    Args:
        pyproject: its `pyproject.toml`.

    Raises:
        UsageError: `[tool.greenroom.source-built]` is malformed, or names more stages than an image has places for.
    """
    tool = tomllib.loads(pyproject.read_text(encoding="utf-8")).get("tool", {})
    uv = tool.get("uv", {})
    _check_uv(uv)
    table = tool.get("greenroom", {}).get("source-built", {})
    well_formed = isinstance(table, dict) and all(
        isinstance(names, list) and names and all(isinstance(name, str) for name in names) for names in table.values()
    )
    if not well_formed:
        raise UsageError(
            "[tool.greenroom.source-built] is not a table of lists",
            next_step='write: stage = ["distribution"], with a stage of the manifest',
        )
    if len(table) > PLACES:
        raise UsageError(
            f"[tool.greenroom.source-built] has {len(table)} stages; an image has places for {PLACES}",
            next_step="let one stage compile several distributions",
        )
    stages = {stage: tuple(canonicalize_name(name) for name in names) for stage, names in table.items()}
    listed = [name for names in stages.values() for name in names]
    if twice := sorted({name for name in listed if listed.count(name) > 1}):
        raise UsageError(
            f"[tool.greenroom.source-built] lists {', '.join(twice)} twice",
            next_step="compile each distribution in one stage",
        )
    return SourceBuildRules(stages=stages, uv=uv, mounted=_mounted(tool.get("greenroom", {})))


def _check_uv(uv: Mapping[str, Any]) -> None:
    """Check the shape of the settings that are read here; uv checks the rest.

    Raises:
        UsageError: one has another.
    """
    tables = ("extra-build-variables", "extra-build-dependencies", "config-settings-package")
    inner = {"extra-build-dependencies": list}
    wrong = [key for key in ("no-binary-package", "no-build-isolation-package") if not _is_list(uv.get(key, []))]
    wrong += [key for key in ("config-settings", *tables) if not isinstance(uv.get(key, {}), dict)]
    wrong += [
        key
        for key in tables
        if key not in wrong and not all(isinstance(each, inner.get(key, dict)) for each in uv.get(key, {}).values())
    ]
    if wrong:
        raise UsageError(f"[tool.uv] {wrong[0]} is not what uv takes", next_step="uv lock --check")


def _is_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def check_mounted(rules: SourceBuildRules, known: Collection[str]) -> None:
    """Check that what is to be mounted lies in the project's directory.

    Args:
        rules: the project's.
        known: what the lock takes from there.

    Raises:
        UsageError: something does not, and would be installed.
    """
    if unknown := sorted(set(rules.mounted) - set(known)):
        raise UsageError(
            f"[tool.greenroom.mounted] names {', '.join(unknown)}, which the lock does not take from the project",
            cause="it is misspelled, or comes from an index or a repository",
            next_step=f"use one of: {', '.join(sorted(known)) or '(nothing lies in the project)'}",
        )


def _mounted(settings: Mapping[str, Any]) -> dict[str, str]:
    table = settings.get("mounted", {})
    paths = table.values() if isinstance(table, dict) else [None]
    # One line of a path file, which the interpreter would run if it began with a word of its own.
    if not all(isinstance(path, str) and re.fullmatch(r"/[^\x00-\x1f]+", path) for path in paths):
        raise UsageError(
            "[tool.greenroom.mounted] is not a table of absolute paths",
            next_step='write: distribution = "/where/its/sources/will/be"',
        )
    return {canonicalize_name(name): path for name, path in table.items()}


def check_stages(rules: SourceBuildRules, known: Collection[str]) -> None:
    """Check that the source-built stages are stages of the manifest.

    Raises:
        UsageError: one is not.
    """
    if unknown := [stage for stage in rules.stages if stage not in known]:
        raise UsageError(
            f"[tool.greenroom.source-built] names {', '.join(unknown)}, which is no stage of the manifest",
            cause="the stage is misspelled or was renamed",
            next_step=f"use one of: {', '.join(sorted(known))}",
        )


def plan_builds(
    rules: SourceBuildRules, sets: Mapping[str, Sequence[Artifact]], stage_of: Mapping[str, str]
) -> tuple[SourceBuild, ...]:
    """Plan what is built from source.

    Args:
        rules: the project's.
        sets: environment set → its artifacts.
        stage_of: environment set → the stage that finishes it.

    Returns:
        The builds, sorted by filename.

    Raises:
        UsageError: a venv of another stage needs what a stage compiles, no venv needs it, or a build requirement that is
            to match a venv's is not there.
    """
    users: dict[Artifact, list[str]] = {}
    for name, artifacts in sets.items():
        for artifact in artifacts:
            if artifact.kind != "wheel":
                users.setdefault(artifact, []).append(name)
    builds = tuple(sorted(_plan_build(rules, artifact, names, sets, stage_of) for artifact, names in users.items()))
    built = {artifact.name for artifact in users}
    for stage, listed in rules.stages.items():
        absent = [name for name in listed if name not in built]
        if absent and stage in stage_of.values():
            raise UsageError(
                f"[tool.greenroom.source-built] {stage} compiles {', '.join(absent)}, which no venv of that stage needs",
                cause="the distribution is misspelled, or no longer in the lock",
                next_step="greenroom plan, then correct the table",
            )
    return builds


def _plan_build(
    rules: SourceBuildRules,
    artifact: Artifact,
    users: Sequence[str],
    sets: Mapping[str, Sequence[Artifact]],
    stage_of: Mapping[str, str],
) -> SourceBuild:
    stage = rules.stage_of(artifact.name)
    if others := [name for name in users if stage and stage_of[name] != stage]:
        raise UsageError(
            f"{artifact.name} is compiled in stage {stage}, and the venvs of {', '.join(others)} need it too",
            cause=f"the manifest finishes those in stage {stage_of[others[0]]}, which does not wait for it",
            next_step=f"give the actors of {others[0]} the stage {stage} in the manifest",
        )
    # Sets share the wheel, so they share its build environment: that of the first one.
    environment = sets[users[0]]
    settings = rules.settings_of(artifact.name, {other.name: other.version for other in environment})
    requires = [] if settings.isolated else [other.filename for other in environment if other.kind == "wheel"]
    return SourceBuild(filename=artifact.filename, stage=stage, settings=settings, requires=tuple(requires))
