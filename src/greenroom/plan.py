"""The plan: which venvs an image holds, and exactly what is in each. Pure: no file, process or clock.

Everything later (build, stamps, verification) is derived from a `Plan`, and a plan is derived from
the manifest's rows and the lock's closures only.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from greenroom.errors import BuildError, UsageError
from greenroom.lock import Artifact, Closure, Local
from greenroom.manifest import Row
from greenroom.source_builds import BuildSettings, SourceBuild, SourceBuildRules, check_stages, plan_builds
from greenroom.stamps import set_name
from greenroom.target import Target

SCHEMA = 1
NO_RULES = SourceBuildRules()


@dataclass(frozen=True, kw_only=True)
class PlannedActor:
    """An actor that gets a venv, in this image or in another.

    Attributes:
        fqn: its class's fully-qualified name.
        stage: the image stage that can finish its venv.
        extras: the extras it needs, in declared order.
        environment_set: the name of its set.
        included: whether this image holds its venv.
        reason: why, in a few words.
    """

    fqn: str
    stage: str
    extras: tuple[str, ...]
    environment_set: str
    included: bool
    reason: str

    @property
    def class_name(self) -> str:
        """The last part of its fully-qualified name."""
        return self.fqn.rsplit(".", 1)[-1]


@dataclass(frozen=True, kw_only=True)
class EnvironmentSet:
    """Actors with equal extras share one directory of installed distributions.

    Attributes:
        name: its extras, sorted and joined by "+"; stable when the lock changes.
        extras: sorted.
        files: filenames of the artifacts installed into it, sorted.
    """

    name: str
    extras: tuple[str, ...]
    files: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, order=True)
class PlannedLocal:
    """A distribution that lies in the project's directory.

    Attributes:
        source: it.
        mounted: where in the image its sources will be mounted; "" when it is installed.
        sets: the environment sets that need it, sorted.
    """

    source: Local
    mounted: str
    sets: tuple[str, ...]

    @property
    def identity(self) -> str:
        """What it is in a closure."""
        return f"{self.source.version} mounted:{self.mounted}" if self.mounted else self.source.identity


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What an image holds.

    Attributes:
        schema: version of this form.
        stage: the stage asked for, or "all".
        skip: extras left out, sorted.
        target: the image's interpreter and platform.
        project: (name, version) of the project when it is installed into every set, else None.
        project_mounted: where in the image its sources will be mounted; "" when it is installed.
        actors: every actor with a venv, sorted by name, left-out ones included.
        sets: the environment sets of the included actors, sorted by name.
        artifacts: every file that some set needs, sorted by filename.
        source_stages: the stages that compile something, in their order.
        builds: what is built from source, sorted by filename.
        locals: what lies in the project's directory, sorted; the project itself aside.
    """

    schema: int
    stage: str
    skip: tuple[str, ...]
    target: Target
    project: tuple[str, str] | None
    project_mounted: str
    actors: tuple[PlannedActor, ...]
    sets: tuple[EnvironmentSet, ...]
    artifacts: tuple[Artifact, ...]
    source_stages: tuple[str, ...]
    builds: tuple[SourceBuild, ...]
    locals: tuple[PlannedLocal, ...]

    @property
    def included(self) -> tuple[PlannedActor, ...]:
        """The actors whose venvs the image holds."""
        return tuple(actor for actor in self.actors if actor.included)

    @property
    def digest(self) -> str:
        """`sha256:` and the hash of the plan's content; it depends on nothing else."""
        return digest(dataclasses.asdict(self))

    @property
    def slot_artifacts(self) -> tuple[Artifact, ...]:
        """The artifacts that slots hold: all but what source-built stages compile."""
        compiled = {build.filename for build in self.builds if build.stage}
        return tuple(artifact for artifact in self.artifacts if artifact.filename not in compiled)

    @property
    def last_place(self) -> int:
        """Which source-built stage the image ends with, counted from 1 in their order; 0 when nothing is compiled."""
        return max((self.source_stages.index(build.stage) + 1 for build in self.builds if build.stage), default=0)

    @property
    def finishing_stages(self) -> dict[str, str]:
        """Set → the source-built stage that finishes its venv; "" when no compiled distribution is in it."""
        stages = {build.filename: build.stage for build in self.builds if build.stage}
        result = {}
        for environment_set in self.sets:
            own = {stages[filename] for filename in environment_set.files if filename in stages}
            result[environment_set.name] = max(own, key=self.source_stages.index, default="")
        return result

    def set_of(self, name: str) -> EnvironmentSet:
        """Return the environment set of a name; KeyError when there is none."""
        for environment_set in self.sets:
            if environment_set.name == name:
                return environment_set
        raise KeyError(name)

    def closure(self, name: str) -> dict[str, str]:
        """Return the distributions of a set: name → version, the project itself included."""
        files = set(self.set_of(name).files)
        versions = {artifact.name: artifact.version for artifact in self.artifacts if artifact.filename in files}
        versions |= {local.source.name: local.source.version for local in self.locals if name in local.sets}
        if self.project:
            versions[self.project[0]] = self.project[1]
        return dict(sorted(versions.items()))

    def to_json(self) -> str:
        """Return the plan with its digest as JSON."""
        return json.dumps({**dataclasses.asdict(self), "digest": self.digest}, indent=1, sort_keys=True) + "\n"


def digest(value: object) -> str:
    """Return `sha256:` and the hash of a JSON value in its canonical form."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def make_plan(
    *,
    rows: Collection[Row],
    selected: Iterable[Row],
    closures: Mapping[str, Closure],
    target: Target,
    stage: str,
    skip: Sequence[str],
    rules: SourceBuildRules = NO_RULES,
) -> Plan:
    """Make a plan.

    Args:
        rows: every row of the manifest.
        selected: the rows that it lists for this stage and skip list.
        closures: set name → closure, for the selected rows' sets.
        target: the image's interpreter and platform.
        stage: the stage asked for, or "all".
        skip: extras left out, normalised.
        rules: what is built from source, and how.

    Returns:
        The plan.

    Raises:
        UsageError: two sets disagree about the project's version, or about the file behind a filename; or a source-built
            stage does not fit the manifest or the lock.
    """
    kept = {row.fqn for row in selected}
    actors = tuple(
        PlannedActor(
            fqn=row.fqn,
            stage=row.stage,
            extras=row.extras,
            environment_set=set_name(row.extras),
            included=row.fqn in kept,
            reason=_reason(row, included=row.fqn in kept, stage=stage, skip=skip),
        )
        for row in sorted(rows, key=lambda row: row.fqn)
    )
    sets: dict[str, EnvironmentSet] = {}
    artifacts: dict[str, Artifact] = {}
    projects: set[tuple[str, str] | None] = set()
    locals_: dict[Local, list[str]] = {}
    for actor in actors:
        name = actor.environment_set
        if not actor.included or name in sets:
            continue
        closure = closures[name]
        projects.add(closure.project)
        for local in closure.locals:
            locals_.setdefault(local, []).append(name)
        for artifact in closure.artifacts:
            if artifacts.setdefault(artifact.filename, artifact) != artifact:
                raise UsageError(
                    f"the lock has two different files named {artifact.filename}",
                    cause="two extras take it from two indexes",
                    next_step="give each extra that needs it the same index, or build them into two images with --skip",
                )
        sets[name] = EnvironmentSet(
            name=name,
            extras=tuple(sorted(set(actor.extras))),
            files=tuple(artifact.filename for artifact in closure.artifacts),
        )
    if len(projects) > 1:
        raise UsageError(f"the lock gives the project several versions: {sorted(map(str, projects))}")
    check_stages(rules, {row.stage for row in rows})
    project = next(iter(projects), None)
    itself = [Local(name=project[0], version=project[1], path=".", kind="directory", sha256="")] if project else []
    _check_locals(rules, [*locals_, *itself])
    return Plan(
        schema=SCHEMA,
        stage=stage,
        skip=tuple(skip),
        target=target,
        project=project,
        project_mounted=rules.mounted.get(project[0], "") if project else "",
        actors=actors,
        sets=tuple(sets[name] for name in sorted(sets)),
        artifacts=tuple(artifacts[filename] for filename in sorted(artifacts)),
        source_stages=tuple(rules.stages),
        builds=plan_builds(
            rules,
            {name: [artifacts[filename] for filename in item.files] for name, item in sorted(sets.items())},
            {actor.environment_set: actor.stage for actor in actors if actor.included},
        ),
        locals=tuple(
            PlannedLocal(source=local, mounted=rules.mounted.get(local.name, ""), sets=tuple(sorted(names)))
            for local, names in sorted(locals_.items())
        ),
    )


def _check_locals(rules: SourceBuildRules, sources: Iterable[Local]) -> None:
    """Refuse what lies in the project's directory and cannot be built there.

    Raises:
        UsageError: a build wants to see its venv, or two sources make a wheel of one name.
    """
    places: dict[tuple[str, str], Local] = {}
    for source in sources:
        other = places.setdefault((source.name, source.version), source)
        if other != source:
            raise UsageError(
                f"{source.name} {source.version} lies at {other.path} and at {source.path}: they make one wheel",
                cause="two extras take it from two directories",
                next_step="give the two different versions, or build them into two images with --skip",
            )
        if source.kind != "wheel" and not rules.isolates(source.name) and source.name not in rules.mounted:
            raise UsageError(
                f"{source.name} at {source.path} cannot be built without isolation",
                cause="[tool.uv] no-build-isolation names it, and what lies in the project is built before its venvs are",
                next_step=f"name what its build needs in [tool.uv.extra-build-dependencies] {source.name}",
            )


def _reason(row: Row, *, included: bool, stage: str, skip: Sequence[str]) -> str:
    if included:
        return f"needs {' + '.join(row.extras)}" if row.extras else "needs a venv without extras"
    if skipped := [extra for extra in row.extras if extra in skip]:
        return f"skips {', '.join(skipped)}"
    if stage not in {"all", row.stage}:
        return f"stage {row.stage}, not {stage}"
    return "the manifest leaves it out"


def check_wrapper_names(plan: Plan) -> None:
    """Check that no two actors of the image want the same `python-<ClassName>` wrapper.

    Raises:
        BuildError: two do; both are named.
    """
    owner: dict[str, str] = {}
    for actor in plan.included:
        first = owner.setdefault(actor.class_name, actor.fqn)
        if first != actor.fqn:
            raise BuildError(
                f"{first} and {actor.fqn} both want the wrapper python-{actor.class_name}",
                cause="two actor classes of the same name",
                next_step="rename one class, or build them into two images with --stage or --skip",
            )


def expected_stamp(plan: Plan, name: str, *, uv_version: str) -> dict[str, object]:
    """Return the stamp that the finished venv of a set carries: its key, complete.

    Args:
        plan: the plan.
        name: the set.
        uv_version: of the uv that installed it.

    Returns:
        A JSON value. Its `closure` gives each distribution's version and its file's hash. `builds`, which is there when
        a distribution is built in a way of its own, gives the digest of how.
    """
    environment_set = plan.set_of(name)
    files = set(environment_set.files)
    closure = {artifact.name: artifact.identity for artifact in plan.artifacts if artifact.filename in files}
    closure |= {local.source.name: local.identity for local in plan.locals if environment_set.name in local.sets}
    if plan.project:
        mounted = f" mounted:{plan.project_mounted}" if plan.project_mounted else ""
        closure[canonicalize_name(plan.project[0])] = plan.project[1] + mounted
    names = {artifact.filename: artifact.name for artifact in plan.artifacts}
    builds = {
        names[build.filename]: digest(dataclasses.asdict(build.settings))
        for build in plan.builds
        if build.filename in files and build.settings != BuildSettings()
    }
    return {
        **({"builds": builds} if builds else {}),
        "schema": SCHEMA,
        "set": environment_set.name,
        "extras": list(environment_set.extras),
        "closure": closure,
        "closure_digest": digest(closure),
        "python": plan.target.python,
        "platform": f"linux {plan.target.machine} glibc {plan.target.glibc}",
        "uv": uv_version,
        "complete": True,
    }
