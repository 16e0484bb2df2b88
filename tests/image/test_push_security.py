"""Pushing to registries with TLS and logins, pushes that are killed, and images that fail their verification.

Everything is real: the engine, skopeo, and Debian's docker-registry on the loopback interface. Where certificates are
to be checked the registry is addressed as 0.0.0.0 (see `Registry.checked_address`).
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import threading
import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.image.support import (
    REPO,
    Built,
    Images,
    clean_environment,
    copy_project,
    error_line,
    greenroom,
    program,
    succeeded,
)

from greenroom import engine_state, private_engine
from greenroom.base_image import ensure_base_image
from greenroom.engine import start_engine, stop_engine
from greenroom.files import cache_dir
from greenroom.process import end_process_group
from greenroom.project import DEFAULT_BASE_IMAGE
from greenroom.publish import push_image
from local_registry import Certificate, Login, Registry, Relay, make_certificate, registry_packages, start_registry

COMPRESSIONS = ["gzip", "zstd"]
PATIENCE = 60.0
"""Seconds that anything on this machine may take."""
SYSTEM_CA = Path("/etc/ssl/certs/ca-certificates.crt")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A certificate that nothing on this machine trusts."""
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def registries(tmp_path_factory: pytest.TempPathFactory, certificate: Certificate) -> Iterator[dict[str, Registry]]:
    """Registries by what they ask for: "", "tls", "login" and "tls login"."""
    root, login = registry_packages(cache_dir() / "registry"), Login(user="tester", password="made for this test")
    with ExitStack() as stack:
        started = {}
        for asks in ("", "tls", "login", "tls login"):
            started[asks] = start_registry(
                root,
                tmp_path_factory.mktemp("registry") / "data",
                certificate=certificate if "tls" in asks else None,
                login=login if "login" in asks else None,
            )
            stack.callback(end_process_group, started[asks].child)
        yield started


@pytest.fixture(scope="module")
def logins(tmp_path_factory: pytest.TempPathFactory, registries: dict[str, Registry], images: Images) -> Path:
    """A DOCKER_CONFIG as `docker login` leaves it, for every registry that asks for one."""
    directory = tmp_path_factory.mktemp("logins")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_CONFIG", str(directory))
        for registry in registries.values():
            if login := registry.login:
                words = ["login", "--username", login.user, "--password-stdin", registry.address]
                images.engine.cli(*words, changes=True, stdin=login.password.encode(), timeout=PATIENCE)
    # The engine would check the certificate at the registries' other address, also when it only logs in.
    file = directory / "config.json"
    kept = json.loads(file.read_text())
    for registry in registries.values():
        if registry.login:
            kept["auths"][registry.checked_address] = kept["auths"][registry.address]
    file.write_text(json.dumps(kept))
    return directory


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, certificate: Certificate) -> Path:
    """A corporate bundle: the CAs that this machine trusts anyway, and our registries'."""
    usual = Path(os.environ.get("SSL_CERT_FILE") or SYSTEM_CA)
    path = tmp_path_factory.mktemp("bundle") / "bundle.pem"
    path.write_text((usual.read_text() if usual.is_file() else "") + certificate.file.read_text())
    return path


def archive(text: str) -> bytes:
    """Return a tar archive of one file."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        info = tarfile.TarInfo("file")
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text.encode()))
    return stream.getvalue()


@pytest.fixture(scope="module")
def small(images: Images) -> str:
    """The id of an image of one small layer."""
    tag = images.tag("small")
    images.engine.cli("import", "-", tag, changes=True, stdin=archive("small"))
    return images.id_of(tag) or ""


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("asks", ["", "tls", "login", "tls login"])
def test_every_kind_of_registry(
    asks: str,
    compression: str,
    registries: dict[str, Registry],
    logins: Path,
    images: Images,
    small: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = registries[asks]
    reference = registry.reference("team/small", compression)
    images.tags.append(reference)
    monkeypatch.setenv("DOCKER_CONFIG", str(logins))
    pushed = push_image(images.engine, small, reference, compression)
    assert registry.manifest("team/small", pushed.digest) == registry.manifest("team/small", compression)


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_skopeo_trusts_the_bundle_that_builds_get(
    variable: str,
    registries: dict[str, Registry],
    logins: Path,
    bundle: Path,
    images: Images,
    small: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = registries["tls login"]
    monkeypatch.setenv("DOCKER_CONFIG", str(logins))
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(bundle))
    tag = variable.lower()
    pushed = push_image(images.engine, small, f"{registry.checked_address}/team/checked:{tag}", "zstd")
    assert registry.manifest("team/checked", pushed.digest) == registry.manifest("team/checked", tag)


@pytest.mark.skipif(private_engine.unusable() is not None, reason=f"no private engine: {private_engine.unusable()}")
def test_a_private_engine_trusts_the_bundle_that_it_was_started_with(
    registries: dict[str, Registry], logins: Path, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = registries["tls login"]
    shared = engine_state.layout()
    private_engine._programs(shared)
    monkeypatch.setenv("GREENROOM_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONFIG", str(logins))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    own = engine_state.layout()
    own.directory.mkdir(parents=True)
    # Its processes are told by where their programs lie, so the packages are copied.
    shutil.copytree(shared.directory / "packages", own.directory / "packages", symlinks=True)
    for current in shared.directory.glob("*.current"):
        shutil.copy(current, own.directory)
    try:
        engine = start_engine()
        engine.cli("import", "-", "small", changes=True, stdin=archive("private"))
        image_id = engine.cli("image", "inspect", "--format", "{{.Id}}", "small").stdout.strip()
        pushed = push_image(engine, image_id, f"{registry.checked_address}/team/private:1", "gzip")
    finally:
        stop_engine()
    assert registry.manifest("team/private", pushed.digest) == registry.manifest("team/private", "1")


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_certificate_that_is_not_trusted(
    compression: str, registries: dict[str, Registry], logins: Path, images: Images, tiny_image: Built
) -> None:
    registry = registries["tls login"]
    reference = f"{registry.checked_address}/team/untrusted:{compression}"
    images.tags.append(reference)
    words: list[str | Path] = ["--project", tiny_image.project, "--tag", tiny_image.tag, "--compression", compression]
    done = greenroom("push", "--to", reference, *words, variables={"DOCKER_CONFIG": str(logins)})
    assert done.returncode == 7
    line = error_line(done)
    assert f"{reference} cannot be pushed: " in line and "x509: certificate signed by unknown authority" in line
    assert f"the certificate of {registry.checked_address} is signed by a CA that is not trusted here" in line
    assert f"/etc/docker/certs.d/{registry.checked_address}/ca.crt" in line
    assert registry.served("team/untrusted") == []


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_without_a_login(
    compression: str,
    registries: dict[str, Registry],
    bundle: Path,
    images: Images,
    tiny_image: Built,
    tmp_path: Path,
) -> None:
    registry = registries["tls login"]
    # Engines check no certificate at 127.0.0.1; skopeo is to check it, and to get as far as the login.
    address = registry.address if compression == "gzip" else registry.checked_address
    reference = f"{address}/team/stranger:{compression}"
    images.tags.append(reference)
    words: list[str | Path] = ["--project", tiny_image.project, "--tag", tiny_image.tag, "--compression", compression]
    variables = {"DOCKER_CONFIG": str(tmp_path), "SSL_CERT_FILE": str(bundle)}
    done = greenroom("push", "--to", reference, *words, variables=variables)
    assert done.returncode == 7
    assert "likely cause: it needs a login" in error_line(done)
    assert error_line(done).endswith(f" | next: docker login {address}")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        registry.manifest("team/stranger", compression)


def test_an_image_that_fails_its_verification_is_not_pushed(
    registries: dict[str, Registry], images: Images, tiny: Path, tmp_path: Path
) -> None:
    # Every build step succeeds on this base, and the image is wrong.
    base = ensure_base_image(images.engine, DEFAULT_BASE_IMAGE)
    bad = images.derive("base-with-a-path", base, "ENV PYTHONPATH=/opt/more")
    reference = registries[""].reference("team/refused", "latest")
    project, tag = copy_project(tiny, tmp_path / "tiny"), images.tag("refused")
    done = greenroom("push", "--to", reference, "--project", project, "--tag", tag, "--base-image", bad)
    assert done.returncode == 1
    assert "PYTHONPATH" in done.stdout + done.stderr
    assert registries[""].served("team/refused") == []
    assert images.id_of(reference) is None
    assert not (project / "build/push.json").exists()


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_push_that_was_killed_moves_no_tag_and_goes_on_when_it_is_run_again(
    compression: str, registries: dict[str, Registry], images: Images, tiny_image: Built
) -> None:
    layers = set(images.engine.client().images.get(tiny_image.tag).attrs["RootFS"]["Layers"])
    # The engine tells when it has noted that a layer arrived. skopeo tells nothing, but it sends the image's
    # configuration after it has noted every layer.
    relay = Relay(registries[""], allowed=1 if compression == "gzip" else None)
    threading.Thread(target=relay.serve_forever, daemon=True).start()
    repository = f"team/killed-{compression}"
    reference = f"{relay.address}/{repository}:latest"
    images.tags.append(reference)
    words: list[str | Path] = ["push", "--to", reference, "--compression", compression]
    words += ["--project", tiny_image.project, "--tag", tiny_image.tag]
    archives = set((cache_dir() / "push").glob("push-*/image.tar"))
    child = subprocess.Popen(
        [program("greenroom"), *words],
        cwd=REPO,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    # Reading its words then ends, too, should it hang.
    watch = threading.Timer(PATIENCE, child.kill)
    watch.start()
    assert child.stderr is not None
    with child.stderr:
        try:
            awaited = rb"layer \w+: pushed, " if compression == "gzip" else rb"save \S+ for skopeo"
            assert any(re.search(awaited, line) for line in child.stderr)
            relay.wait(waiting=True)
            left_over = set((cache_dir() / "push").glob("push-*/image.tar")) - archives
        finally:
            watch.cancel()
            child.kill()
            child.wait(PATIENCE)
    assert child.returncode == -signal.SIGKILL
    if compression == "gzip":
        # The engine waits for an answer to what it has sent. skopeo is killed by the kernel, without our help.
        relay.drop()
    relay.wait(waiting=False)
    before = set(relay.finished)
    assert len(before) == (1 if compression == "gzip" else len(layers))
    with pytest.raises(urllib.error.HTTPError, match="404"):
        registries[""].manifest(repository, "latest")
    assert len(left_over) == (0 if compression == "gzip" else 1)

    relay.finished.clear()
    relay.allowed = 1000
    done = succeeded(greenroom(*words))
    again = set(relay.finished)
    manifest = registries[""].manifest(repository, "latest")
    assert before & again == set()
    assert before | again == {layer["digest"] for layer in manifest["layers"]} | {manifest["config"]["digest"]}
    if compression == "gzip":
        assert "layer already exists" in done.stderr
    # Once, by the second push: whoever pushed for the killed one has given up.
    assert [path for verb, path, _ in registries[""].served(repository) if verb == "PUT" and "/manifests/" in path] == [
        f"/v2/{repository}/manifests/latest"
    ]
    assert not any(path.parent.exists() for path in left_over)
    relay.shutdown()
    relay.server_close()
