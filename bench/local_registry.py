"""A registry on the loopback interface, from Debian's docker-registry package; benches and tests push to it."""

from __future__ import annotations

import base64
import http.client
import json
import re
import select
import shutil
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from greenroom import debian
from greenroom.process import end_process_group, run

READY_TIMEOUT = 30.0
RELAY_TIMEOUT = 60.0
MANIFEST_TYPES = (
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
)


OPENSSL_PACKAGES = {"bookworm": ("openssl", "libssl3"), "trixie": ("openssl", "libssl3t64")}

_CERTIFICATE = """
[req]
distinguished_name = name
x509_extensions = extensions
prompt = no
[name]
CN = local registry
[extensions]
basicConstraints = critical, CA:TRUE
subjectAltName = IP:127.0.0.1, IP:0.0.0.0, DNS:localhost
"""
_SERVED = re.compile(r'^\S+ - \S+ \[[^]]+\] "(\w+) (\S+) [^"]*" (\d{3}) ', re.MULTILINE)


class RegistryError(Exception):
    """The registry cannot be had, or does not start."""


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A self-signed certificate for this machine's loopback interface, which is its own CA's as well.

    Attributes:
        file: the certificate, as PEM.
        key: its private key.
    """

    file: Path
    key: Path


@dataclass(frozen=True, kw_only=True)
class Login:
    """Whom a registry lets in; nobody else may read or write.

    Attributes:
        user: the name.
        password: made for this registry.
    """

    user: str
    password: str

    @property
    def basic(self) -> str:
        """The login as RFC 7617 sends it, and as `docker login` keeps it."""
        return base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


@dataclass(frozen=True, kw_only=True)
class Registry:
    """A registry on the loopback interface.

    Attributes:
        address: host:port, the prefix of image references.
        storage: where its blobs are.
        log: what it writes, a line for each request among it.
        child: its process, which leads its own group.
        certificate: None when it speaks plain HTTP.
        login: None when it lets in everybody.
    """

    address: str
    storage: Path
    log: Path
    child: subprocess.Popen[bytes]
    certificate: Certificate | None = None
    login: Login | None = None

    @property
    def checked_address(self) -> str:
        """An address of the same registry whose certificate is checked.

        Engines take any certificate from 127.0.0.0/8, even plain HTTP. 0.0.0.0 is not in it, and Linux connects it to
        this machine's loopback interface (ip(7), INADDR_ANY).
        """
        return f"0.0.0.0:{self.address.rsplit(':', 1)[1]}"

    def reference(self, repository: str, tag: str) -> str:
        """Return an image reference."""
        return f"{self.address}/{repository}:{tag}"

    def stored_bytes(self) -> int:
        """Return the bytes of every blob that it stores."""
        return sum(path.stat().st_size for path in self.storage.rglob("blobs/sha256/*/*/data"))

    def layers(self, repository: str, tag: str) -> dict[str, int]:
        """Return an image's layers as they travel: digest → compressed bytes."""
        return {layer["digest"]: layer["size"] for layer in self.manifest(repository, tag)["layers"]}

    def manifest(self, repository: str, tag: str) -> dict[str, Any]:
        """Return an image's manifest.

        Raises:
            urllib.error.HTTPError: there is no such image (404).
        """
        with self._open(f"{repository}/manifests/{tag}", timeout=30) as answer:
            manifest: dict[str, Any] = json.load(answer)
        return manifest

    def served(self, repository: str) -> list[tuple[str, str, int]]:
        """Return the requests for a repository in the order of their ends: method, path and query, status."""
        lines = _SERVED.findall(self.log.read_text(errors="replace"))
        return [(verb, path, int(code)) for verb, path, code in lines if path.startswith(f"/v2/{repository}/")]

    def answers(self) -> bool:
        """Return whether it answers."""
        try:
            with self._open("", timeout=5):
                return True
        except OSError:
            return False

    def _open(self, path: str, timeout: float) -> Any:
        headers = {"Accept": ", ".join(MANIFEST_TYPES)}
        if self.login:
            headers["Authorization"] = f"Basic {self.login.basic}"
        scheme = "https" if self.certificate else "http"
        request = urllib.request.Request(f"{scheme}://{self.address}/v2/{path}", headers=headers)
        context = ssl.create_default_context(cafile=self.certificate.file) if self.certificate else None
        # Never through a proxy: it is on this machine.
        handlers = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)]
        return urllib.request.build_opener(*handlers).open(request, timeout=timeout)


def registry_packages(directory: Path) -> Path:
    """Return the directory of the unpacked registry, once fetched from Debian.

    Args:
        directory: where the packages are kept.

    Raises:
        RegistryError: this host is no Debian.
        greenroom.debian.PackagesError: they cannot be had.
    """
    suite = debian.host_codename()
    if suite is None:
        raise RegistryError("the registry is Debian's, and this host is not Debian 12 or 13")
    return debian.ensure_unpacked(directory, "registry", {suite: ("docker-registry",)})


def make_certificate(directory: Path) -> Certificate:
    """Make a certificate that is valid for two days, with the host's openssl, else that of Debian's packages.

    Args:
        directory: an existing directory, where it goes.

    Returns:
        The certificate.

    Raises:
        RegistryError: this host has no openssl and is no Debian.
        greenroom.process.ProcessError: openssl fails.
        greenroom.debian.PackagesError: Debian's cannot be had.
    """
    program, environment = shutil.which("openssl"), None
    if program is None:
        suite = debian.host_codename()
        if suite is None:
            raise RegistryError("openssl is not installed, and this host is not Debian 12 or 13")
        root = debian.ensure_unpacked(directory / "packages", "openssl", {suite: OPENSSL_PACKAGES[suite]})
        program, environment = str(root / "usr/bin/openssl"), debian.library_environment(root)
    made = Certificate(file=directory / "certificate.pem", key=directory / "key.pem")
    (directory / "openssl.cnf").write_text(_CERTIFICATE)
    argv: list[str | Path] = [program, "req", "-config", directory / "openssl.cnf", "-x509", "-nodes", "-days", "2"]
    argv += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-out", made.file, "-keyout", made.key]
    run(argv, env=environment, timeout=60)
    return made


def _htpasswd(login: Login) -> str:
    # The registry takes bcrypt only. Debian's perl is part of every system, and its crypt() knows bcrypt; Python has
    # none since 3.13. The password comes by stdin, where no process list shows it; the salt may be anything.
    code = 'print crypt(scalar <STDIN>, "\\$2y\\$05\\$" . "a" x 21 . "u")'
    return f"{login.user}:{run(['perl', '-e', code], stdin=login.password.encode(), timeout=30).stdout}\n"


def start_registry(
    root: Path, directory: Path, *, certificate: Certificate | None = None, login: Login | None = None
) -> Registry:
    """Start an empty registry on a free port of the loopback interface.

    Args:
        root: of the unpacked packages, docker-registry among them.
        directory: its storage, configuration and log; emptied first.
        certificate: speak TLS with it; plain HTTP when None.
        login: whom to let in; everybody when None.

    Returns:
        The registry; ending its process is the caller's.

    Raises:
        RegistryError: it does not answer.
    """
    storage = directory / "storage"
    shutil.rmtree(directory, ignore_errors=True)
    storage.mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    configuration: dict[str, Any] = {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(storage)}, "delete": {"enabled": True}},
        "http": {"addr": address},
    }
    if certificate:
        configuration["http"]["tls"] = {"certificate": str(certificate.file), "key": str(certificate.key)}
    if login:
        (directory / "htpasswd").write_text(_htpasswd(login))
        configuration["auth"] = {"htpasswd": {"realm": "test", "path": str(directory / "htpasswd")}}
    # JSON is YAML.
    (directory / "config.yml").write_text(json.dumps(configuration), encoding="utf-8")
    log = directory / "registry.log"
    with log.open("wb") as file:
        child = subprocess.Popen(
            [root / "usr/bin/docker-registry", "serve", directory / "config.yml"],
            env=debian.library_environment(root),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    started = Registry(address=address, storage=storage, log=log, child=child, certificate=certificate, login=login)
    deadline = time.monotonic() + READY_TIMEOUT
    while time.monotonic() < deadline and child.poll() is None:
        if started.answers():
            return started
        time.sleep(0.1)
    last = log.read_text(errors="replace").strip().splitlines()[-1:]
    end_process_group(child)
    raise RegistryError(f"docker-registry does not answer: {' '.join(last)}")


class Relay(ThreadingHTTPServer):
    """Passes requests on to a registry, up to a moment: from then on what would go further is kept waiting.

    Args:
        registry: speaks plain HTTP.
        allowed: so many blobs may be finished; None for all layers, and not the image's configuration.

    Attributes:
        address: host:port, the prefix of image references.
        finished: digests of the blobs that the registry has taken, in order.
    """

    daemon_threads = True

    def __init__(self, registry: Registry, allowed: int | None) -> None:
        super().__init__(("127.0.0.1", 0), _Relayed)
        self.upstream = registry.address
        self.address = f"127.0.0.1:{self.server_port}"
        self.allowed = allowed
        self.finished: list[str] = []
        self._waiting: list[socket.socket] = []
        self._changed = threading.Condition()

    def wait(self, *, waiting: bool) -> None:
        """Wait until a request is kept waiting, or none is any more.

        Raises:
            RegistryError: that does not come.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._waiting) == waiting, RELAY_TIMEOUT):
                raise RegistryError(f"{len(self._waiting)} requests are kept waiting")

    def drop(self) -> None:
        """Drop the connections whose requests are kept waiting."""
        with self._changed:
            for connection in self._waiting:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def admits(self, verb: str, path: str, body: bytes, connection: socket.socket) -> bool:
        """Return whether a request may pass; if not, return when its connection has ended."""
        with self._changed:
            if self.allowed is None:
                # Layers are compressed, and the configuration is JSON.
                passes = verb != "PATCH" or not body.startswith(b"{")
            elif verb == "PUT" and "/blobs/" in path:
                passes = self.allowed > 0
                self.allowed -= 1
            else:
                passes = True
            if passes:
                return True
            self._waiting.append(connection)
            self._changed.notify_all()
        # Who waits for an answer sends nothing: what can be read is the end of the connection.
        select.select([connection], [], [], RELAY_TIMEOUT)
        with self._changed:
            self._waiting.remove(connection)
            self._changed.notify_all()
        return False

    def handle_error(self, *_: object) -> None:
        """Say nothing: who is killed breaks off its requests."""


class _Relayed(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Relay

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _relay(self) -> None:
        body = self._body()
        if not self.server.admits(self.command, self.path, body, self.connection):
            self.close_connection = True
            return
        upstream = http.client.HTTPConnection(self.server.upstream, timeout=RELAY_TIMEOUT)
        headers = {name: value for name, value in self.headers.items() if name != "Transfer-Encoding"}
        upstream.request(self.command, self.path, body, headers | {"Content-Length": str(len(body))})
        answer = upstream.getresponse()
        content = answer.read()
        upstream.close()
        digest = parse_qs(urlsplit(self.path).query).get("digest", [])
        if self.command == "PUT" and answer.status == 201:
            self.server.finished += digest
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_HEAD = do_POST = do_PATCH = do_PUT = _relay
