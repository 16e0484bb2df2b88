"""Pushing an image: as the engine has it (gzip layers), or with zstd layers, which nodes unpack faster.

- What is pushed is an image's id, not a tag that could move meanwhile. Layers and configuration go first. The last
  request, and the only one that names the tag, is the manifest's: the registry stores it by its digest and then
  moves the tag to it. (A push by digest before that would leave nothing else in the registry, nor could the engine
  do it.)
- So a push that is interrupted moves no tag, and run again it skips the layers that the registry has, as far as the
  engine or skopeo remembers them. Who pushes ends with us, even when we are killed: the engine when its caller has
  gone, skopeo by a signal of the kernel's. Nobody moves the tag later on.
- The engine's classic image store writes gzip only. skopeo (the host's, else Debian's package, unpacked and
  not installed) compresses the engine's archive of the image anew.
- Logins are those of `docker login`, in both ways. Certificates are checked with what the engine trusts, and by
  skopeo with the CA bundle that builds get; both read `/etc/docker/certs.d`. Registries on this machine's loopback
  interface need none, as engines have it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from rich.console import Console

from greenroom import debian
from greenroom.build import read_secrets
from greenroom.console import say
from greenroom.container import split_reference
from greenroom.engine import Engine
from greenroom.errors import PublishError, UsageError
from greenroom.files import cache_dir
from greenroom.locks import held
from greenroom.process import ProcessError, is_dry_run, run

COMPRESSIONS = ("gzip", "zstd")
PUSH_TIMEOUT = 4 * 3600.0
"""Seconds for one image."""

SKOPEO_PACKAGES = {
    "bookworm": ("skopeo", "libgpgme11", "libassuan0", "libgpg-error0", "libdevmapper1.02.1"),
    "trixie": ("skopeo", "libgpgme11t64", "libassuan9", "libgpg-error0"),
}
"""Debian release → skopeo and the libraries that a small system lacks; its C library is the host's."""

# prctl(2): PR_SET_PDEATHSIG is 1, SIGKILL is 9, and the program that is executed next inherits it. Who forked may have
# been killed before.
_ENDS_WITH_US = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""

_DIGEST = re.compile(r"\bdigest: (sha256:[0-9a-f]{64})\b")
_LOOPBACK = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?/")


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """What a registry has now.

    Attributes:
        reference: the tag that was moved.
        digest: of the manifest; `reference` names another image one day, the digest never.
        compression: of the layers.
    """

    reference: str
    digest: str
    compression: str


def check_destination(reference: str, compression: str) -> None:
    """Check what is asked for before anything is built.

    Raises:
        UsageError: the destination names a digest, or the compression is unknown.
    """
    if compression not in COMPRESSIONS:
        raise UsageError(f"unknown compression {compression!r}", next_step=f"use {' or '.join(COMPRESSIONS)}")
    if "@" in reference or reference.startswith("sha256:"):
        raise UsageError(f"{reference} names a digest", next_step="push to a name and a tag, such as registry/name:tag")


def push_image(engine: Engine, image_id: str, reference: str, compression: str) -> Pushed:
    """Push an image and move a tag to it.

    Args:
        engine: where the image is.
        image_id: its id: what was verified, whatever became of its tags meanwhile.
        reference: registry, name and tag.
        compression: one of `COMPRESSIONS`.

    Raises:
        PublishError: the registry does not answer, refuses, or a layer does not arrive.
    """
    say(f"push {image_id[:19]} to {reference} with {compression} layers")
    push = _push_by_engine if compression == "gzip" else _push_by_skopeo
    pushed = Pushed(reference=reference, digest=push(engine, image_id, reference), compression=compression)
    say(f"{reference} is {pushed.digest}")
    return pushed


def _push_by_engine(engine: Engine, image_id: str, reference: str) -> str:
    from docker.errors import DockerException, StreamParseError
    from urllib3.exceptions import HTTPError

    engine.cli("tag", image_id, reference, changes=True)
    if is_dry_run():
        print(f"docker push {reference}")
        return ""
    name, tag = split_reference(reference)
    try:
        with PushProgress() as progress:
            for message in engine.client(timeout=PUSH_TIMEOUT).api.push(name, tag, stream=True, decode=True):
                progress.take(message)
    except (DockerException, StreamParseError, HTTPError, OSError) as error:
        raise _failed(reference, str(error)) from error
    if progress.error or not progress.digest:
        raise _failed(reference, progress.error or "the engine tells no digest")
    if (now := engine.client().images.get(reference).id) != image_id:
        raise PublishError(
            f"{reference} was moved to {now} while {image_id} was pushed",
            cause="another push to the same tag, on the same engine",
            next_step="push again when it has ended",
        )
    return progress.digest


def _push_by_skopeo(engine: Engine, image_id: str, reference: str) -> str:
    program, environment = _skopeo()
    if is_dry_run():
        print(f"docker save {image_id} | {program} copy - docker://{reference}")
        return ""
    with _scratch() as directory:
        archive, digest = directory / "image.tar", directory / "digest"
        _save(engine, image_id, archive)
        argv: list[str | Path] = [program, "--insecure-policy", "copy", "--retry-times", "3", "--format", "oci"]
        argv += ["--dest-compress-format", "zstd", "--digestfile", digest]
        if _LOOPBACK.match(reference):
            # As engines do: a registry on this machine needs no certificate.
            argv.append("--dest-tls-verify=false")
        argv += [f"docker-archive:{archive}", f"docker://{reference}"]
        if sys.platform == "linux":
            argv = [sys.executable, "-I", "-S", "-c", _ENDS_WITH_US, str(os.getpid()), *argv]
        try:
            run(argv, changes=True, env=environment, timeout=PUSH_TIMEOUT)
        except ProcessError as error:
            said = re.search(r'msg="(.*)"', error.completed.last_lines(1))
            raise _failed(reference, said[1].replace('\\"', '"') if said else error.reason) from error
        return digest.read_text().strip()


def _save(engine: Engine, image_id: str, archive: Path) -> None:
    """Write the engine's archive of an image: by this process, since a docker command line would outlive its end."""
    from docker.errors import DockerException
    from urllib3.exceptions import HTTPError

    say(f"save {image_id[:19]} for skopeo")
    try:
        with archive.open("wb") as file:
            for chunk in engine.client(timeout=PUSH_TIMEOUT).api.get_image(image_id):
                file.write(chunk)
    except (DockerException, HTTPError, OSError) as error:
        raise PublishError(
            f"{image_id[:19]} cannot be saved: {error}",
            cause=f"too little space in {archive.parent}",
            next_step="set GREENROOM_CACHE_DIR to a larger disk, or push with --compression gzip",
        ) from error


@contextmanager
def _scratch() -> Iterator[Path]:
    """Make a directory for the archive, which is as large as the image, and remove it in the end.

    Those that killed pushes left are removed, too: each is locked while its push lives, and the kernel unlocks it.
    """
    base = cache_dir() / "push"
    # Nobody finds a directory that is made and not yet locked.
    with held(base / "lock", PublishError):
        for left_over in base.glob("push-*"):
            with suppress(Timeout), FileLock(left_over / "lock", timeout=0):
                shutil.rmtree(left_over, ignore_errors=True)
        directory = Path(tempfile.mkdtemp(prefix="push-", dir=base))
        own = FileLock(directory / "lock")
        own.acquire()
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        own.release()


def _failed(reference: str, said: str) -> PublishError:
    host = reference.split("/", 1)[0]
    cause, next_step = "the registry does not answer", "try again: layers that arrived are not sent twice"
    if "unknown authority" in said:
        cause = f"the certificate of {host} is signed by a CA that is not trusted here"
        next_step = f"save the CA's certificate as /etc/docker/certs.d/{host}/ca.crt on the machine that pushes"
    elif "x509: " in said:
        cause = f"the certificate of {host} is not valid, or is for another name"
        next_step = "push to the name that it is for, or have it renewed"
    elif re.search(r"denied|unauthorized|authentication|credentials|\b40[13] ", said):
        cause, next_step = "it needs a login, or this login may not push there", f"docker login {host}"
    return PublishError(
        f"{reference} cannot be pushed: {' '.join(said.split())}",
        cause=cause,
        next_step=next_step,
    )


def _skopeo() -> tuple[str, Mapping[str, str]]:
    """Return skopeo and its environment, in which it finds the CA bundle that builds get.

    Raises:
        PublishError: it is not installed and cannot be had from Debian's packages.
    """
    bundle = read_secrets(os.environ, ()).get("ca")
    trusted = {"SSL_CERT_FILE": str(bundle)} if bundle else {}
    if found := shutil.which("skopeo"):
        return found, {**os.environ, **trusted}
    suite = debian.host_codename()
    if suite not in SKOPEO_PACKAGES or debian.usable():
        raise PublishError(
            "zstd layers need skopeo, which is not installed",
            next_step="install skopeo, or push with --compression gzip",
        )
    try:
        root = debian.ensure_unpacked(cache_dir() / "skopeo", "skopeo", {suite: SKOPEO_PACKAGES[suite]})
    except debian.PackagesError as error:
        raise PublishError(error.what, cause=error.cause, next_step=error.next_step) from error
    return str(root / "usr/bin/skopeo"), {**debian.library_environment(root), **trusted}


class PushProgress:
    """Shows an engine's report of a push: bytes on a terminal, a line for each layer elsewhere.

    Attributes:
        digest: of the manifest, once it is pushed.
        error: what went wrong; "" when nothing did.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.digest = ""
        self.error = ""
        self._console = console or Console(stderr=True, highlight=False)
        self._status = self._console.status("push") if self._console.is_terminal else None
        self._sent: dict[str, tuple[int, int]] = {}
        self._done: set[str] = set()
        self._layers: set[str] = set()

    def __enter__(self) -> PushProgress:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()

    def take(self, message: dict[str, Any]) -> None:
        """Take one message of the engine's stream."""
        self.error = message.get("error") or self.error
        layer, status = message.get("id", ""), message.get("status", "")
        # The containerd image store tells the digest in words only.
        told = _DIGEST.search(status)
        self.digest = (message.get("aux") or {}).get("Digest") or (told[1] if told else self.digest)
        if not layer or status.startswith("The push"):
            return
        self._layers.add(layer)
        if total := (message.get("progressDetail") or {}).get("total"):
            self._sent[layer] = (message["progressDetail"].get("current", 0), total)
        if status in {"Pushed", "Layer already exists"} or status.startswith("Mounted from"):
            self._done.add(layer)
            if not self._status:
                text = f"greenroom: layer {layer}: {status.lower()}, {len(self._done)} of {len(self._layers)}"
                self._console.print(text, markup=False, soft_wrap=True)
        if self._status:
            self._status.update(self._line(self._sent.values()))

    def _line(self, sent: Iterable[tuple[int, int]]) -> str:
        done, total = (sum(column) for column in zip(*sent, strict=True)) if self._sent else (0, 0)
        layers = f"push: {len(self._done)} of {len(self._layers)} layers"
        return f"{layers}, {done / 1e6:.0f} of {total / 1e6:.0f} MB"
