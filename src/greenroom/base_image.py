"""The base image: a reference that the engine has or can pull, or a Debian that is bootstrapped from packages.

- `bootstrap:<suite>` is made once by mmdebstrap from the mirror that the host's apt uses, and reused as long as
  its recipe (packages, options, suite) is the same. The same packages give the same bytes.
- `bootstrap:<suite>+compilers` is the same with compilers for C and C++: for what source-built stages compile.
- It is loaded under a name of its own and tagged last: a tag never stands for a half-loaded image.
- Nothing of the host is baked: no name resolution, no certificate, no machine id.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import io
import json
import os
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from greenroom import debian
from greenroom.console import say
from greenroom.container import check_reference
from greenroom.engine import Engine
from greenroom.engine_state import layout
from greenroom.errors import BaseImageError, UsageError
from greenroom.locks import held
from greenroom.process import ProcessError, is_dry_run, run
from greenroom.project import DEFAULT_BASE_IMAGE

PREFIX = "bootstrap:"
SUITES = ("trixie",)
REPOSITORY = "greenroom-base"
RECIPE_LABEL = "org.greenroom.bootstrap"

INCLUDE = ("ca-certificates", "python3", "python3-venv")
COMPILERS = "compilers"
COMPILER_PACKAGES = ("build-essential", "cmake", "git", "ninja-build", "pkg-config", "python3-dev")
# Documentation and translations; licences stay. dpkg's patterns: the last match wins (dpkg(1), --path-exclude).
PATHS = (
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/lintian/*",
    "path-exclude=/usr/share/bug/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
)
# What installing leaves behind: lists, caches, and what says when or where it ran. apt's source stays, without a
# password that the host's may hold.
CLEAN = (
    'rm -rf "$1"/var/log/* "$1"/var/cache/* "$1"/var/lib/systemd "$1"/var/lib/apt/lists/* "$1"/tmp/* "$1"/run/*',
    'rm -f "$1"/etc/machine-id "$1"/var/lib/dbus/machine-id',
    # Empty, not absent: an engine mounts its own over them, and would make and remove them in every build step,
    # which dates /etc in every layer.
    'for file in hostname hosts resolv.conf; do rm -f "$1/etc/$file" && : > "$1/etc/$file"; done',
    'rm -f "$1"/etc/apt/apt.conf.d/99mmdebstrap "$1"/etc/passwd- "$1"/etc/group- "$1"/etc/shadow- "$1"/etc/gshadow-',
    'rm -f "$1"/var/lib/dpkg/*-old "$1"/var/lib/apt/extended_states',
    'mkdir -p "$1"/var/cache/apt/archives/partial "$1"/var/lib/apt/lists/partial "$1"/var/log/apt',
    r'sed -i -e "s#://[^/@ ]*@#://#" -e "/^$/d" "$1"/etc/apt/sources.list',
)
# When Debian 13 was released. Every file is dated then or earlier (reproducible-builds.org, SOURCE_DATE_EPOCH).
EPOCH = 1754697600
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

BOOTSTRAP_TIMEOUT = 900.0
LOAD_TIMEOUT = 300.0
PULL_TIMEOUT = 120.0


def check_base(reference: str) -> str:
    """Return the reference of a base image if it is well-formed.

    Raises:
        UsageError: it is not.
    """
    return reference if reference.startswith(PREFIX) else check_reference(reference)


def ensure_base_image(engine: Engine, reference: str) -> str:
    """Make sure that the engine has the base image.

    Args:
        engine: where it is needed.
        reference: an image reference, `bootstrap:<suite>` or `bootstrap:<suite>+compilers`.

    Returns:
        The local reference for `--build-arg BASE_IMAGE`.

    Raises:
        BaseImageError: it is not here and cannot be pulled or bootstrapped.
        UsageError: `bootstrap:` names a suite that is not supported.
    """
    if not reference.startswith(PREFIX):
        return _pulled(engine, reference)
    suite, plus, kind = reference.removeprefix(PREFIX).partition("+")
    if suite not in SUITES or (plus and kind != COMPILERS):
        raise UsageError(
            f"base image {reference}: {suite + plus + kind or 'no suite'} is not a suite that can be bootstrapped",
            next_step=f"--base-image {' or '.join(PREFIX + name for name in SUITES)}",
        )
    recipe = Recipe(suite=suite, compilers=bool(kind))
    if _label(engine, recipe.tag) == recipe.key:
        return recipe.tag
    with held(layout().directory / "bootstrap.lock", BaseImageError):
        # Another command may have made it while this one waited.
        if _label(engine, recipe.tag) != recipe.key:
            _bootstrap(engine, recipe)
    return recipe.tag


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is bootstrapped.

    Attributes:
        suite: the suite's code name.
        compilers: whether compilers are in it.
    """

    suite: str
    compilers: bool = False

    @property
    def tag(self) -> str:
        """The image's tag."""
        return f"{REPOSITORY}:{self.suite}" + (f"-{COMPILERS}" if self.compilers else "")

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages beyond the essential ones."""
        return INCLUDE + (COMPILER_PACKAGES if self.compilers else ())

    @property
    def key(self) -> str:
        """A key of everything here that decides what the image holds, but for packages' versions."""
        recipe = json.dumps([self.suite, self.packages, PATHS, CLEAN, EPOCH, PATH, _argv(Path("tar"), self)])
        return hashlib.sha256(recipe.encode()).hexdigest()[:16]


def _pulled(engine: Engine, reference: str) -> str:
    if _inspect(engine, reference, "{{.Id}}"):
        return reference
    say(f"pulling the base image {reference}")
    try:
        engine.cli("pull", "--quiet", reference, changes=True, timeout=PULL_TIMEOUT)
    except ProcessError as error:
        told = error.completed.last_lines(1) or error.reason
        raise BaseImageError(
            f"base image {reference} is not here and cannot be pulled: {told}",
            cause="its registry cannot be reached, or the name is wrong or needs a login",
            next_step=f"--base-image {DEFAULT_BASE_IMAGE}, or docker load the image",
        ) from error
    return reference


def _inspect(engine: Engine, reference: str, template: str) -> str | None:
    """Return what the engine tells of an image, or None when it does not have it."""
    try:
        told = engine.cli("image", "inspect", "--format", template, reference, check=False, timeout=60)
    except ProcessError as error:
        raise BaseImageError(
            f"the engine does not tell whether it has {reference}: {error.reason}",
            cause="it is stopped or overloaded",
            next_step="greenroom engine status",
        ) from error
    return told.stdout.strip() if told.returncode == 0 else None


def _label(engine: Engine, tag: str) -> str | None:
    return _inspect(engine, tag, f'{{{{index .Config.Labels "{RECIPE_LABEL}"}}}}')


def _argv(tar: Path, recipe: Recipe) -> list[str]:
    return [
        "--mode=root",
        "--format=tar",
        # Essential packages and apt: a stage that compiles needs a way to get its compiler.
        "--variant=apt",
        # Engines bring their own /dev.
        "--skip=output/dev",
        f"--include={','.join(recipe.packages)}",
        *(f"--dpkgopt={path}" for path in PATHS),
        '--aptopt=Acquire::Retries "3"',
        '--aptopt=APT::Install-Recommends "false"',
        *(f"--customize-hook={line}" for line in CLEAN),
        recipe.suite,
        str(tar),
    ]


def _bootstrap(engine: Engine, recipe: Recipe) -> None:
    suite, tag = recipe.suite, recipe.tag
    if reason := debian.usable():
        raise BaseImageError(
            f"base image {PREFIX}{suite} cannot be bootstrapped",
            cause=reason,
            next_step="--base-image with an image that is here or can be pulled",
        )
    directory = layout().directory
    try:
        tool = debian.ensure_unpacked(directory, "bootstrap", {suite: ("mmdebstrap",)}) / "usr/bin/mmdebstrap"
        sources = debian.host_source_lines(suite)
    except debian.PackagesError as error:
        raise BaseImageError(
            f"base image {PREFIX}{suite}: {error.what}", cause=error.cause, next_step=error.next_step
        ) from error
    began = time.monotonic()
    with _scratch(directory) as scratch:
        tar = scratch / "root.tar"
        say(f"bootstrapping the base image {tag} from packages (about a minute, once)")
        build_tar(tool, tar, recipe, sources)
        if not is_dry_run():
            say(f"loading {tag} ({tar.stat().st_size / 1e6:.0f} MB, made in {time.monotonic() - began:.0f} s)")
        _load(engine, tar, recipe)
    if not is_dry_run():
        say(f"base image {tag} is ready after {time.monotonic() - began:.0f} s")


def build_tar(tool: Path, tar: Path, recipe: Recipe, sources: tuple[str, ...]) -> None:
    """Bootstrap a suite into a tar file; the same packages give the same bytes.

    Args:
        tool: the mmdebstrap program.
        tar: the file to write.
        recipe: what is bootstrapped.
        sources: its apt sources, one line each.

    Raises:
        BaseImageError: it failed.
    """
    # mmdebstrap starts its filter for tar files, a Python program beside it, by name.
    path = f"{tool.parent}:{os.environ.get('PATH', PATH)}:{Path(sys.executable).parent}"
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH), "LC_ALL": "C.UTF-8", "TMPDIR": str(tar.parent), "PATH": path}
    try:
        # Sources by standard input: an address may hold a password, which an argument would show to everyone.
        argv = ["perl", str(tool), *_argv(tar, recipe), "-"]
        listing = "".join(f"{line}\n" for line in sources)
        run(argv, changes=True, env=env, stdin=listing.encode(), timeout=BOOTSTRAP_TIMEOUT)
    except ProcessError as error:
        lines = error.completed.stderr.splitlines()
        told = [line for line in lines if line.startswith("E:")][-2:] or lines[-2:]
        raise BaseImageError(
            f"base image {PREFIX}{recipe.suite} cannot be bootstrapped: {error.reason}: {' / '.join(told)}",
            cause="the mirror that the host's apt uses does not answer, or mounting is not allowed here",
            next_step="apt-get update, or --base-image with an image that is here",
        ) from error


def image_config(suite: str, key: str, layer_digest: str, architecture: str) -> bytes:
    """Return the configuration of a bootstrapped image (OCI image specification, config.md).

    `docker import` would record the present time, so that the same tar gave another image each time.

    Args:
        suite: the suite's code name.
        key: its recipe key.
        layer_digest: SHA-256 of the tar, in hexadecimal.
        architecture: the image's architecture.
    """
    created = datetime.datetime.fromtimestamp(EPOCH, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    config = {
        "architecture": architecture,
        "os": "linux",
        "created": created,
        "config": {
            "Env": [f"PATH={PATH}", "LANG=C.UTF-8"],
            "Cmd": ["/bin/bash"],
            "Labels": {RECIPE_LABEL: key},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
        "history": [{"created": created, "created_by": f"mmdebstrap {suite}"}],
    }
    return json.dumps(config, sort_keys=True).encode()


def _load(engine: Engine, root: Path, recipe: Recipe) -> None:
    """Load the root's tar as an image with one layer, under a name of its own, then give it its tag."""
    tag = recipe.tag
    aside = f"{tag}-{recipe.key}-aside"
    archive = root.with_name("image.tar")
    if not is_dry_run():
        _write_archive(archive, root, recipe.suite, aside, recipe.key)
    try:
        engine.cli("load", "--quiet", "--input", archive, changes=True, timeout=LOAD_TIMEOUT)
        engine.cli("tag", aside, tag, changes=True, timeout=60)
        engine.cli("image", "rm", aside, changes=True, timeout=60)
    except ProcessError as error:
        raise BaseImageError(
            f"the engine cannot load {tag}: {error.completed.last_lines(1) or error.reason}",
            cause="its disk is full",
            next_step="docker system df",
        ) from error


def _write_archive(archive: Path, root: Path, suite: str, name: str, key: str) -> None:
    """Write what `docker load` reads: a layer, a configuration and a manifest that names both."""
    with root.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    architecture = run(["dpkg", "--print-architecture"], timeout=30).stdout.strip()
    config = image_config(suite, key, digest, architecture)
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(archive, "w") as tar:
        for member, data in (("config.json", config), ("manifest.json", manifest)):
            info = tarfile.TarInfo(member)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        tar.add(root, "layer.tar")


@contextlib.contextmanager
def _scratch(directory: Path) -> Iterator[Path]:
    if is_dry_run():
        yield directory / "scratch"
        return
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix="bootstrap-") as scratch:
        yield Path(scratch)
