"""Building the image: the build context, the secrets, and one `docker buildx build`."""

from __future__ import annotations

import dataclasses
import hashlib
import netrc
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

from greenroom.container import split_reference
from greenroom.engine import Engine
from greenroom.errors import BuildError, UsageError
from greenroom.files import cache_dir
from greenroom.locks import held
from greenroom.plan import Plan, check_wrapper_names
from greenroom.process import ProcessError, is_dry_run, run
from greenroom.progress import BuildProgress
from greenroom.project import Project

BUILD_TIMEOUT = 4 * 3600.0
"""Seconds for one image; real projects fetch and install tens of gigabytes."""

Secrets = Mapping[str, Path | str]
"""Secret id → the file that it is, or its text."""

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
    """

    project: Project
    plan: Plan
    base_image: str
    tag: str
    urls: Mapping[str, str]
    no_cache: bool = False
    rebuild_sdists: bool = False
    bytecode: bool = True


def build_image(engine: Engine, request: BuildRequest) -> BuildProgress:
    """Build an image.

    Args:
        engine: where.
        request: what.

    Returns:
        The steps of the build, with what was cached.

    Raises:
        BuildError: a step failed; it is named with what it said, or two actors want one wrapper.
    """
    check_wrapper_names(request.plan)
    with tempfile.TemporaryDirectory(prefix="greenroom-") as directory:
        aside = Path(directory)
        context = aside / "greenroom"
        copy_pipeline(context)
        secrets = read_secrets(os.environ, request.urls.values())
        arguments = build_arguments(request, context, secrets)
        with BuildProgress() as progress:
            try:
                with_secrets(engine, secrets).cli(
                    *arguments, changes=True, timeout=BUILD_TIMEOUT, on_stderr=progress.feed
                )
            except ProcessError as error:
                said = progress.failure() or f"docker buildx build: {error.reason}"
                # A line of our own scripts already ends with the likely cause and the next step.
                complete = " | next: " in said
                raise BuildError(
                    said,
                    cause="" if complete else "the step's own message says it",
                    next_step=""
                    if complete
                    else "correct it and run the same command again: finished steps are cached",
                ) from error
    return progress


def build_arguments(request: BuildRequest, context: Path, secrets: Secrets) -> list[str]:
    """Return the arguments of the docker CLI for a build; changes nothing."""
    plan, project = request.plan, request.project
    values = {
        "BASE_IMAGE": request.base_image,
        "MANIFEST": project.manifest_in_context,
        "STAGE": plan.stage,
        "SKIP_EXTRAS": " ".join(plan.skip),
        "SOURCE": "." if project.is_package else "pyproject.toml",
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
    arguments = ["buildx", "build", "--builder", "default", "--progress", "rawjson", "--network", "host", "--load"]
    arguments += ["--file", str(context / "docker" / "Dockerfile"), "--target", "release", "--tag", request.tag]
    arguments += ["--build-context", f"greenroom={context}"]
    for name, value in values.items():
        arguments += ["--build-arg", f"{name}={value}"]
    arguments += secret_arguments(secrets)
    if request.no_cache:
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
        commit = run(["git", "-C", root, "rev-parse", "HEAD"], timeout=30).stdout.strip()
        dirty = run(["git", "-C", root, "status", "--porcelain"], timeout=60).stdout.strip()
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
    """Yield the tag that an image has until it is verified; move `tag` to the image only if nothing was raised.

    A failed verification leaves the unverified tag, for a look at the image, and `tag` where it was.
    """
    name, label = split_reference(tag)
    aside = f"{name}:{label}-unverified"
    # Two builds of one tag would move each other's unverified image between its verification and its tag.
    name_of_lock = hashlib.sha256(f"{engine.host} {aside}".encode()).hexdigest()[:16]
    with held(cache_dir() / "locks" / f"tag-{name_of_lock}.lock", BuildError):
        yield aside
        engine.cli("tag", aside, tag, changes=True)
        engine.cli("rmi", aside, changes=True)
    assert is_dry_run() or engine.client().images.get(tag)
