"""Building the image: the build context, the secrets, and one `docker buildx build`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import netrc
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from greenroom.console import say
from greenroom.container import split_reference
from greenroom.engine import Engine
from greenroom.errors import BuildError, UsageError
from greenroom.files import cache_dir, scratch_directory
from greenroom.git_sources import git_environment, pack_repositories
from greenroom.locks import held
from greenroom.plan import Plan, check_wrapper_names
from greenroom.process import ProcessError, is_dry_run, run
from greenroom.progress import BuildProgress
from greenroom.project import Project
from greenroom.wheel_store import describe, keep, key_of, read_entry

BUILD_TIMEOUT = 4 * 3600.0
"""Seconds for one image; real projects fetch and install tens of gigabytes."""

Secrets = Mapping[str, Path | str]
"""Secret id → the file that it is, or its text."""

EXPORT_TIMEOUT = 1800.0
"""Seconds for taking compiled wheels out of the builder."""
COMPILED_WHEELS = "compiled-wheels"
"""The Dockerfile's stage, and the directory, of compiled wheels that are known."""

GIT_SOURCES = "git-sources"
"""The Dockerfile's stage, and the directory, of git repositories that the host has fetched."""

_VARIABLE = "GREENROOM_SECRET_{}"
_SYSTEM_CA = Path("/etc/ssl/certs/ca-certificates.crt")
_CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE")
_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")


def pipeline_directory() -> Path:
    """Return the directory of the Dockerfile and the build's scripts: in a checkout, else in the distribution."""
    checkout = Path(__file__).parents[2] / "docker"
    return checkout if (checkout / "Dockerfile").is_file() else Path(__file__).parent / "docker"


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """What one build is made of.

    Attributes:
        project: the project.
        plan: what the image is to hold.
        base_image: a reference that the engine has.
        tag: what the built image is tagged.
        urls: where the plan's files come from; decides which credentials the build sees.
        no_cache: run every step again.
        rebuild_sdists: build every sdist again as well, which the cache of wheels would spare.
        bytecode: compile every source once, for faster imports.
        compile_image: where source-built stages compile, a reference that the engine has; unused without any.
        compile_environment: that image's `greenroom.container.environment_digest`.
        exclude_newer: the limit on the age of build requirements, as uv takes it.
        store: the store of compiled wheels.
    """

    project: Project
    plan: Plan
    base_image: str
    tag: str
    urls: Mapping[str, str]
    no_cache: bool = False
    rebuild_sdists: bool = False
    bytecode: bool = True
    compile_image: str = ""
    compile_environment: str = ""
    exclude_newer: str = ""
    store: Path | None = None


def check_visible(plan: Plan) -> None:
    """Check that a build sees what the plan takes from the project's directory.

    Raises:
        UsageError: the Dockerfile's ignore file leaves it out.
    """
    ignored = (pipeline_directory() / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    for local in plan.locals:
        if not local.mounted and any(
            fnmatch(PurePosixPath(local.source.path).parts[0], pattern)
            for pattern in ignored
            if pattern[:1] not in {"", "#", "*"}
        ):
            raise UsageError(
                f"{local.source.name} lies at {local.source.path}, and every build leaves that path out",
                cause="directories of this name hold tests or what was built",
                next_step=f"move {local.source.name} elsewhere in the project",
            )


def build_image(engine: Engine, request: BuildRequest, progress: BuildProgress) -> str:
    """Build an image.

    Args:
        engine: where.
        request: what.
        progress: collects the steps, for a look at them whether the build succeeds or not.

    Returns:
        The image's id; "" in a dry run. The tag may be another build's by the time that this one returns.

    What source-built stages had to compile is in the store of compiled wheels afterwards.

    Raises:
        BuildError: a step failed; it is named with what it said, or two actors want one wrapper.
    """
    check_wrapper_names(request.plan)
    with scratch_directory() as aside:
        context = aside / "greenroom"
        copy_pipeline(context)
        wanted = compiled_wheels(request)
        known = _stored(None if request.rebuild_sdists else request.store, wanted, aside / COMPILED_WHEELS)
        pack_repositories(request.urls, aside / GIT_SOURCES)
        secrets = read_secrets(os.environ, request.urls.values())
        arguments = build_arguments(request, context, secrets)
        prepared = with_secrets(engine, secrets)
        with progress:
            try:
                prepared.cli(
                    *arguments, "--iidfile", aside / "id", changes=True, timeout=BUILD_TIMEOUT, on_stderr=progress.feed
                )
            except ProcessError as error:
                told = progress.failure()
                said = told or f"docker buildx build: {error.reason}"
                # A line of our own scripts already ends with the likely cause and the next step.
                complete = " | next: " in said
                likely = "the step's own message says it" if told else "it was killed, as when memory is short"
                raise BuildError(
                    said,
                    cause="" if complete else likely,
                    next_step=""
                    if complete
                    else "correct it and run the same command again: finished steps are cached",
                ) from error
        if request.store and not request.rebuild_sdists and wanted.keys() - known:
            out = aside / "compiled"
            # All of its steps have just run, so they are cached: this takes out what they made.
            prepared.cli(*build_arguments(request, context, secrets, export=out), changes=True, timeout=EXPORT_TIMEOUT)
            _keep_compiled(request.store, wanted, out)
        return "" if is_dry_run() else (aside / "id").read_text().strip()


def compiled_wheels(request: BuildRequest) -> dict[str, dict[str, Any]]:
    """Return what source-built stages compile: key → what decides the wheel (see `greenroom.wheel_store`)."""
    artifacts = {artifact.filename: artifact for artifact in request.plan.artifacts}
    wanted = [
        describe(
            artifacts[build.filename],
            build.settings,
            requires=[artifacts[name] for name in build.requires],
            exclude_newer=request.exclude_newer,
            target=request.plan.target,
            uv=version("uv"),
            environment=request.compile_environment,
        )
        for build in request.plan.builds
        if build.stage
    ]
    return {key_of(made_from): made_from for made_from in wanted}


def _stored(store: Path | None, wanted: Collection[str], context: Path) -> set[str]:
    """Copy the wanted entries of a store into a build context; return their keys."""
    context.mkdir()
    found = set()
    for key in wanted:
        if store and (store / key).is_dir():
            try:
                read_entry(store / key)
            except ValueError as error:
                say(f"warning: {error}: it is compiled again")
                continue
            shutil.copytree(store / key, context / key)
            found.add(key)
    return found


def _keep_compiled(store: Path, wanted: Mapping[str, Mapping[str, Any]], out: Path) -> None:
    for listing in sorted(out.glob("*/slot.json")):
        for entry in json.loads(listing.read_text(encoding="utf-8")):
            if entry["key"] not in wanted:
                continue
            try:
                kept = keep(store, listing.with_name(entry["wheel"]), wanted[entry["key"]])
            except (OSError, ValueError) as error:
                # The image has it; the next builder will have to compile it again.
                say(f"warning: {entry['wheel']} is not kept in the store of compiled wheels: {error}")
            else:
                say(f"{entry['name']} {entry['version']} is in the store of compiled wheels now: {kept.wheel}")


def build_arguments(request: BuildRequest, context: Path, secrets: Secrets, *, export: Path | None = None) -> list[str]:
    """Return the arguments of the docker CLI for a build; changes nothing.

    Args:
        request: what is built.
        context: the directory with the pipeline's files; compiled wheels that are known are beside it.
        secrets: from `read_secrets`.
        export: where the wheels of source-built stages go; None for a build of the image.
    """
    plan, project = request.plan, request.project
    values = {
        "BASE_IMAGE": request.base_image,
        "COMPILE_IMAGE": request.compile_image if plan.last_place else request.base_image,
        "COMPILE_ENVIRONMENT": request.compile_environment if plan.last_place else "",
        "FINISHED": f"source-built-{plan.last_place}" if plan.last_place else "deps",
        "MANIFEST": project.manifest_in_context,
        "STAGE": plan.stage,
        "SKIP_EXTRAS": " ".join(plan.skip),
        "SOURCE": "." if project.is_package or plan.locals else "pyproject.toml",
        "VENV_DIR": project.venv_dir,
        "BYTECODE": "1" if request.bytecode else "0",
        "REBUILD_SDISTS": "1" if request.rebuild_sdists else "0",
        "PLAN_DIGEST": plan.digest,
        "MANIFEST_DIGEST": "sha256:" + hashlib.sha256(project.manifest.read_bytes()).hexdigest(),
        "UV_VERSION": version("uv"),
        "PYTHON_VERSION": plan.target.python,
        "IMAGE_TITLE": project.name,
        "IMAGE_VERSION": project.version,
        "IMAGE_REVISION": source_revision(project.root),
        "IMAGE_CREATED": creation_time(os.environ),
    }
    arguments = ["buildx", "build", "--builder", "default", "--progress", "rawjson", "--network", "host"]
    arguments += ["--file", str(context / "docker" / "Dockerfile")]
    if export:
        arguments += ["--target", "compiled", "--output", f"type=local,dest={export}"]
    else:
        arguments += ["--target", "release", "--tag", request.tag, "--load"]
    arguments += ["--build-context", f"greenroom={context}"]
    if plan.last_place:
        arguments += ["--build-context", f"{COMPILED_WHEELS}={context.with_name(COMPILED_WHEELS)}"]
    if any(artifact.kind == "git" for artifact in plan.artifacts):
        arguments += ["--build-context", f"{GIT_SOURCES}={context.with_name(GIT_SOURCES)}"]
    for name, value in values.items():
        arguments += ["--build-arg", f"{name}={value}"]
    arguments += secret_arguments(secrets)
    if request.no_cache and not export:
        arguments.append("--no-cache")
    return [*arguments, str(project.root)]


def copy_pipeline(context: Path) -> None:
    """Copy the Dockerfile, the build's scripts and the modules they share with the host into a build context."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(pipeline_directory(), context / "docker", ignore=ignore)
    package = context / "src" / "greenroom"
    package.mkdir(parents=True)
    for module in sorted(Path(__file__).parent.glob("*.py")):
        shutil.copyfile(module, package / module.name)


def read_secrets(environ: Mapping[str, str], urls: Iterable[str]) -> Secrets:
    """Return the build's secrets.

    Args:
        environ: tells where the CA bundle, the netrc and the default index are, in the variables of uv, pip,
            requests and curl.
        urls: addresses that the build fetches; only these hosts' credentials are passed on.

    Returns:
        Secret id → the file that it is, or its text.

    Raises:
        BuildError: the netrc cannot be read.
    """
    secrets: dict[str, Path | str] = {}
    bundles = [Path(environ[name]) for name in _CA_VARIABLES if environ.get(name)] + [_SYSTEM_CA]
    for bundle in bundles:
        if bundle.is_file():
            secrets["ca"] = bundle
            break
    index = next((environ[name] for name in _INDEX_VARIABLES if environ.get(name)), "")
    if index:
        secrets["index"] = index
    hosts = {urlsplit(url).hostname for url in [*urls, index]} - {None}
    if lines := list(_credentials(Path(environ.get("NETRC") or Path.home() / ".netrc"), hosts)):
        secrets["netrc"] = "\n".join(lines) + "\n"
    return secrets


def secret_arguments(secrets: Secrets) -> list[str]:
    """Return the docker CLI's arguments for secrets.

    Texts come by environment variable (see `with_secrets`) and not by file: a run that is killed leaves nothing
    behind.
    """
    arguments = []
    for name, value in sorted(secrets.items()):
        source = f"src={value}" if isinstance(value, Path) else f"env={_VARIABLE.format(name.upper())}"
        arguments += ["--secret", f"id={name},{source}"]
    return arguments


def with_secrets(engine: Engine, secrets: Secrets) -> Engine:
    """Return the engine with an environment that hands secrets which are no files to its docker CLI."""
    texts = {_VARIABLE.format(name.upper()): value for name, value in secrets.items() if isinstance(value, str)}
    return dataclasses.replace(engine, environment={**engine.environment, **texts})


def _credentials(path: Path, hosts: set[str | None]) -> Iterator[str]:
    if not path.is_file():
        return
    try:
        entries = netrc.netrc(path).hosts
    except (netrc.NetrcParseError, OSError) as error:
        # The parser's own message quotes the word at fault, which may be a part of a password.
        where = f"line {error.lineno} is malformed" if isinstance(error, netrc.NetrcParseError) else error.strerror
        raise BuildError(f"{path} cannot be read: {where}", next_step="correct it, or point NETRC elsewhere") from None
    for host, (login, _, password) in entries.items():
        if host in hosts:
            words = ["machine", host, "login", login, "password", password or ""]
            yield " ".join(word if re.fullmatch(r'[^\s"\\#]+', word) else _quoted(word) for word in words)


def _quoted(word: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", word) + '"'


def source_revision(root: Path) -> str:
    """Return the commit of a checkout, with "-dirty" when files differ; "" outside of git."""
    try:
        commit = run(["git", "-C", root, "rev-parse", "HEAD"], env=git_environment(), timeout=30).stdout.strip()
        dirty = run(["git", "-C", root, "status", "--porcelain"], env=git_environment(), timeout=60).stdout.strip()
    except ProcessError:
        return ""
    return commit + ("-dirty" if dirty else "")


def creation_time(environ: Mapping[str, str]) -> str:
    """Return the time for the image's label: `SOURCE_DATE_EPOCH` when set, else now (RFC 3339, UTC).

    Raises:
        UsageError: the variable is no number.
    """
    epoch = environ.get("SOURCE_DATE_EPOCH", "")
    if epoch and not epoch.isdecimal():
        raise UsageError(f"SOURCE_DATE_EPOCH={epoch!r} is no number of seconds", next_step="correct it or unset it")
    moment = datetime.fromtimestamp(int(epoch), UTC) if epoch else datetime.now(UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def unverified_tag(engine: Engine, tag: str) -> Iterator[str]:
    """Yield the tag that an image has until it is verified (see `accept`).

    A failed verification leaves it, for a look at the image, and `tag` where it was.
    """
    name, label = split_reference(tag)
    aside = f"{name}:{label}-unverified"
    # Two builds of one tag would move each other's unverified image between its verification and its tag.
    name_of_lock = hashlib.sha256(f"{engine.host} {aside}".encode()).hexdigest()[:16]
    with held(cache_dir() / "locks" / f"tag-{name_of_lock}.lock", BuildError):
        if not is_dry_run():
            _remove_reader(engine, aside)
        yield aside


def _remove_reader(engine: Engine, image: str) -> None:
    """Remove the container, never started, through which a killed command has looked at an image from outside."""
    flags = ["--all", "--filter", f"ancestor={image}", "--filter", "status=created"]
    for row in engine.cli("ps", *flags, "--format", "{{.ID}} {{.Command}}").stdout.splitlines():
        identifier, _, program = row.partition(" ")
        if program == '"/nonexistent"':
            engine.cli("rm", identifier, changes=True)


def accept(engine: Engine, image_id: str, aside: str, tag: str) -> None:
    """Give a verified image its tag, and take its unverified one away.

    Args:
        engine: where it is.
        image_id: the image that was verified, whatever other users' builds have done to the tags meanwhile.
        aside: its unverified tag.
        tag: its tag.
    """
    engine.cli("tag", image_id or aside, tag, changes=True)
    engine.cli("rmi", aside, changes=True)
