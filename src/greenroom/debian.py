"""Debian packages used without installing them.

- The mirror is the host's own: what its apt is configured to use, with the suite's name exchanged.
- Lists, downloads and configuration live in a private directory. The system's apt state and its list of
  installed packages are read at most, never written.
- Packages are unpacked aside and renamed into place together with a stamp that names every file, so
  that a half-unpacked or damaged directory is recognized and made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from greenroom.console import say
from greenroom.files import write_aside
from greenroom.locks import held
from greenroom.process import Completed, ProcessError, is_dry_run, run

SUPPORTED_HOSTS = ("bookworm", "trixie")
"""Code names of the Debian releases whose libraries and kernels the private engine was measured on."""

KEYRINGS = (
    Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    # Its name since Debian 13, where the one above may be a link to it.
    Path("/usr/share/keyrings/debian-archive-keyring.pgp"),
)

STAMP = ".greenroom-complete"
UPDATE_TIMEOUT = 180.0
DOWNLOAD_TIMEOUT = 300.0
ATTEMPTS = 2


class PackagesError(Exception):
    """Packages cannot be had. Callers turn it into the error of what they wanted the packages for.

    Args:
        what: what happened.
        cause: the likely cause.
        next_step: what helps.
    """

    def __init__(self, what: str, *, cause: str = "", next_step: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.cause = cause
        self.next_step = next_step


@dataclass(frozen=True, kw_only=True)
class Package:
    """One file to download, as `apt-get download --print-uris` names it."""

    file: str
    size: int
    digest: str


def host_codename() -> str | None:
    """Return the code name of the host's Debian release, or None on a host that is not a supported Debian.

    Derivatives have other libraries below the same tools, so `ID_LIKE` does not count (os-release(5)).
    """
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return None
    codename = release.get("VERSION_CODENAME", "")
    return codename if release.get("ID") == "debian" and codename in SUPPORTED_HOSTS else None


def usable() -> str | None:
    """Return why Debian's packages cannot be used on this host, or None when they can."""
    if host_codename() is None:
        return "this host is not Debian 12 or 13"
    if os.geteuid() != 0:
        return f"uid {os.geteuid()} is not root"
    missing = [tool for tool in ("apt-get", "dpkg") if shutil.which(tool) is None]
    return f"{' and '.join(missing)} not found" if missing else None


def keyring() -> Path:
    """Return the host's keyring of Debian's archive keys.

    Raises:
        PackagesError: there is none.
    """
    for path in KEYRINGS:
        if path.is_file():
            return path
    raise PackagesError(
        f"{KEYRINGS[0]} is missing",
        cause="Debian's archive keys are not installed",
        next_step="apt-get install debian-archive-keyring",
    )


def source_lines(targets: str, *, host: str, suite: str, signed_by: Path) -> tuple[str, ...]:
    """Derive a suite's apt sources from those of the host.

    Args:
        targets: lines of "<repository> <release> <component>", as `apt-get indextargets` prints them.
        host: code name of the host's release.
        suite: code name wanted instead.
        signed_by: keyring that must have signed the suite.

    Returns:
        One-line entries (sources.list(5)) for the suite's main component: itself, and its updates and security
        updates where the host uses its own. `target=Packages` leaves out whatever else the host's
        configuration would fetch.
    """
    lines = []
    for target in targets.splitlines():
        repository, release, component = target.rsplit(" ", 2)
        base, _, pocket = release.partition("-")
        if base == host and pocket in ("", "updates", "security") and component == "main":
            wanted = f"{suite}-{pocket}" if pocket else suite
            lines.append(f"deb [signed-by={signed_by} target=Packages] {repository} {wanted} main")
    return tuple(dict.fromkeys(lines))


def host_source_lines(suite: str) -> tuple[str, ...]:
    """Return `source_lines` of a suite for this host's mirror.

    Raises:
        PackagesError: the host is not a supported Debian, or its apt names no mirror of its release.
    """
    host = host_codename()
    if host is None:
        raise PackagesError("no Debian mirror is known", cause="this host is not Debian 12 or 13")
    # Without --no-release-info apt lists only what `apt-get update` has fetched already.
    argv = ["apt-get", "indextargets", "--no-release-info", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)"]
    try:
        targets = run([*argv, "Created-By: Packages"], timeout=30).stdout
    except ProcessError as error:
        raise PackagesError("the host's apt does not tell its mirror", cause=error.completed.last_lines(1)) from error
    lines = source_lines(targets, host=host, suite=suite, signed_by=keyring())
    if not lines:
        raise PackagesError(
            f"the host's apt has no source for {host} main",
            cause="/etc/apt/sources.list and sources.list.d name no Debian mirror",
            next_step="add the mirror to the host's apt sources",
        )
    return lines


class PrivateApt:
    """An apt of one suite whose configuration, lists and cache are below one directory.

    Args:
        directory: the directory; its owner alone may read it, since a mirror's address may hold a password.
        suite: the suite's code name.
    """

    def __init__(self, directory: Path, suite: str) -> None:
        self.directory = directory / suite
        self.suite = suite

    def update(self) -> None:
        """Fetch the suite's package list.

        Raises:
            PackagesError: the mirror does not answer or is not signed.
        """
        base = self.directory
        if not is_dry_run():
            for path in ("state/lists/partial", "cache/archives/partial"):
                (base / path).mkdir(parents=True, exist_ok=True)
            base.chmod(0o700)
        write_aside(base / "sources.list", "\n".join(host_source_lines(self.suite)) + "\n", mode=0o600)
        # An empty list of installed packages: what the host has installed does not matter here.
        write_aside(base / "status", "")
        write_aside(base / "apt.conf", self._configuration())
        self._apt("update", timeout=UPDATE_TIMEOUT)

    def resolve(self, packages: Sequence[str]) -> tuple[Package, ...]:
        """Return the newest files of packages, without those that they depend on; sorted by file name.

        Raises:
            PackagesError: the suite does not have one of them.
        """
        return parse_uris(self._apt("download", "--print-uris", *packages, changes=False).stdout)

    def download(self, packages: Sequence[str], into: Path) -> None:
        """Download packages, checked against the signed list, into a directory.

        Raises:
            PackagesError: it failed.
        """
        self._apt("download", *packages, cwd=into, timeout=DOWNLOAD_TIMEOUT)

    def _configuration(self) -> str:
        base = self.directory
        return f"""\
// Hooks of the host's configuration act on the host's own apt state.
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Pre-Invoke;
#clear DPkg::Post-Invoke;
Dir::State "{base}/state";
Dir::State::lists "{base}/state/lists";
Dir::State::status "{base}/status";
Dir::Cache "{base}/cache";
Dir::Cache::archives "{base}/cache/archives";
Dir::Etc::sourcelist "{base}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::Log "{base}";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::http::Timeout "30";
Acquire::https::Timeout "30";
APT::Update::Error-Mode "any";
// apt's unprivileged user cannot write below a private directory.
APT::Sandbox::User "root";
"""

    def _apt(self, *args: str, changes: bool = True, cwd: Path | None = None, timeout: float = 60.0) -> Completed:
        argv = ["apt-get", "-q", "-c", str(self.directory / "apt.conf"), *args]
        env = {**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return run(argv, changes=changes, cwd=cwd, env=env, timeout=timeout)
            except ProcessError as error:
                lines = error.completed.stderr.splitlines()
                told = [line for line in lines if line.startswith("E:")] or lines[-1:]
                say(f"apt-get {args[0]} ({self.suite}): {error.reason}, attempt {attempt} of {ATTEMPTS}")
        # apt's words name the mirror's whole address.
        words = re.sub(r"://[^/@\s]*@", "://", " ".join(told))
        raise PackagesError(
            f"apt-get {args[0]} for {self.suite} failed: {words}",
            cause="the mirror that the host's apt uses does not answer or lacks the suite",
            next_step="apt-get update",
        )


def parse_uris(output: str) -> tuple[Package, ...]:
    """Read `apt-get download --print-uris`: lines of 'uri' file size digest (apt-get(8))."""
    packages = []
    for line in output.splitlines():
        if line.startswith("'"):
            file, size, digest = line.rsplit(" ", 3)[1:]
            packages.append(Package(file=file, size=int(size), digest=digest))
    return tuple(sorted(packages, key=lambda package: package.file))


def is_complete(directory: Path) -> bool:
    """Return whether an unpacked directory still holds every file that its stamp names, in its full size."""
    try:
        files: dict[str, int] = json.loads((directory / STAMP).read_text())
        return all((directory / name).lstat().st_size == size for name, size in files.items())
    except (OSError, ValueError, AttributeError):
        return False


def ensure_unpacked(directory: Path, name: str, wanted: Mapping[str, Sequence[str]]) -> Path:
    """Make sure that packages are unpacked, once, below a directory; nothing is fetched when they are.

    Args:
        directory: where the private apt and the unpacked packages live.
        name: what these packages are for.
        wanted: package names by suite.

    Returns:
        The directory that the packages were unpacked into; its name ends in a key of their versions.

    Raises:
        PackagesError: they cannot be had.
    """
    with held(directory / "packages.lock", PackagesError):
        return _ensure_unpacked(directory, name, wanted)


def _ensure_unpacked(directory: Path, name: str, wanted: Mapping[str, Sequence[str]]) -> Path:
    request = json.dumps(wanted, sort_keys=True)
    if (found := unpacked(directory, name, request)) and is_complete(found):
        return found
    apts = {suite: PrivateApt(directory / "apt", suite) for suite in wanted}
    for apt in apts.values():
        say(f"packages for the {name}: reading the package list of {apt.suite}")
        apt.update()
    if is_dry_run():
        for suite, packages in wanted.items():
            apts[suite].download(packages, directory)
        run(["dpkg", "-x", "*.deb", directory / "packages" / name], changes=True)
        return directory / "packages" / name
    files = [file for suite, packages in wanted.items() for file in apts[suite].resolve(packages)]
    key = hashlib.sha256("\n".join(f"{file.file} {file.digest}" for file in files).encode()).hexdigest()[:16]
    target = directory / "packages" / f"{name}-{key}"
    if not is_complete(target):
        size = sum(file.size for file in files)
        say(f"packages for the {name}: downloading {len(files)} ({size / 1e6:.1f} MB)")
        _unpack(target, wanted, apts)
    write_aside(directory / f"{name}.current", f"{target.name}\n{request}\n")
    return target


def unpacked(directory: Path, name: str, request: str | None = None) -> Path | None:
    """Return the directory that `ensure_unpacked` returned last, complete or not; None when there is none.

    Args:
        directory: as for `ensure_unpacked`.
        name: likewise.
        request: what was wanted, as `ensure_unpacked` records it; None for whatever it was.
    """
    try:
        key, recorded = (directory / f"{name}.current").read_text().splitlines()
    except (OSError, ValueError):
        return None
    return directory / "packages" / key if request in (None, recorded) else None


def library_environment(root: Path) -> dict[str, str]:
    """Return an environment in which the unpacked programs find their libraries."""
    directories = [str(path) for base in ("lib", "usr/lib") for path in sorted((root / base).glob("*-linux-gnu"))]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(directories)}


def _unpack(target: Path, wanted: Mapping[str, Sequence[str]], apts: Mapping[str, PrivateApt]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    for left_over in target.parent.glob(".aside-*"):
        shutil.rmtree(left_over)
    aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=".aside-"))
    try:
        debs, root = aside / "debs", aside / "root"
        debs.mkdir()
        root.mkdir()
        for suite, packages in wanted.items():
            apts[suite].download(packages, debs)
        for deb in sorted(debs.glob("*.deb")):
            try:
                run(["dpkg", "-x", deb, root], changes=True, timeout=120)
            except ProcessError as error:
                raise PackagesError(
                    f"{deb.name} cannot be unpacked: {error.completed.last_lines(1)}",
                    cause="the disk is full",
                    next_step=f"df {target.parent}",
                ) from error
        files = {
            str(path.relative_to(root)): path.lstat().st_size
            for path in sorted(root.rglob("*"))
            if path.is_symlink() or path.is_file()
        }
        write_aside(root / STAMP, json.dumps(files, indent=0))
        if target.exists():
            shutil.rmtree(target)
        root.rename(target)
    finally:
        shutil.rmtree(aside)
