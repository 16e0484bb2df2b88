"""Finding an engine, Debian's packages and the base image: everything that needs no engine."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from greenroom import base_image, debian, engine, engine_state, locks, private_engine
from greenroom.engine import Engine, engine_status, find_engine
from greenroom.errors import BaseImageError, EngineError, UsageError
from greenroom.process import dry_run
from greenroom.project import DEFAULT_BASE_IMAGE

KEYRING = Path("/keys.gpg")

Docker = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _own_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No engine of this machine is met: an own cache directory, and no variables that choose an engine."""
    monkeypatch.setenv("GREENROOM_CACHE_DIR", str(tmp_path / "cache"))
    for variable in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Docker:
    """Put a docker command line that is a shell script first in PATH."""

    def install(script: str) -> Path:
        path = tmp_path / "bin/docker"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
        return path

    return install


def context(host: str) -> str:
    return f"""echo '[{{"Name":"default","Endpoints":{{"docker":{{"Host":"{host}"}}}},"TLSMaterial":{{}}}}]'"""


# Each: the mirror's targets on the host, and the lines expected for trixie.
SOURCES = {
    "one mirror": (
        "file:/mirror/debian/ bookworm main\nfile:/mirror/debian/ bookworm main",
        ["file:/mirror/debian/ trixie main"],
    ),
    "updates and security of the same release": (
        "file:/m/ bookworm main\nfile:/m/ bookworm-updates main\nfile:/s/ bookworm-security main",
        ["file:/m/ trixie main", "file:/m/ trixie-updates main", "file:/s/ trixie-security main"],
    ),
    "backports, other releases and components do not count": (
        "file:/m/ bookworm-backports main\nfile:/m/ bookworm contrib\nfile:/m/ sid main\nfile:/o/ nodistro main",
        [],
    ),
    "a blank in the address": ("cdrom:[Debian 12 disc]/ bookworm main", ["cdrom:[Debian 12 disc]/ trixie main"]),
    "none": ("", []),
}


@pytest.mark.parametrize("case", SOURCES)
def test_sources_are_the_hosts_own_with_the_suite_exchanged(case: str) -> None:
    targets, expected = SOURCES[case]
    lines = debian.source_lines(targets, host="bookworm", suite="trixie", signed_by=KEYRING)
    assert [line.split("] ", 1)[1] for line in lines] == expected
    assert all(line.startswith("deb [signed-by=/keys.gpg target=Packages] ") for line in lines)


def test_uris_of_apt_are_read_and_notices_left_out() -> None:
    output = "Reading...\n'file:/m/b_1%3a2_amd64.deb' b_1%3a2_amd64.deb 12 SHA256:bb\n'file:/m/a_1_all.deb' a_1_all.deb 7 SHA256:aa\n"
    assert [(p.file, p.size, p.digest) for p in debian.parse_uris(output)] == [
        ("a_1_all.deb", 7, "SHA256:aa"),
        ("b_1%3a2_amd64.deb", 12, "SHA256:bb"),
    ]


@pytest.mark.parametrize(
    ("release", "codename"),
    [
        ({"ID": "debian", "VERSION_CODENAME": "bookworm"}, "bookworm"),
        ({"ID": "debian", "VERSION_CODENAME": "trixie"}, "trixie"),
        ({"ID": "debian", "VERSION_CODENAME": "bullseye"}, None),
        ({"ID": "debian"}, None),
        ({"ID": "ubuntu", "ID_LIKE": "debian", "VERSION_CODENAME": "noble"}, None),
    ],
)
def test_supported_hosts(monkeypatch: pytest.MonkeyPatch, release: dict[str, str], codename: str | None) -> None:
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: release)
    assert debian.host_codename() == codename


@pytest.mark.parametrize("damage", ["nothing", "a file is gone", "a file is shorter", "no stamp", "stamp is no JSON"])
def test_an_unpacked_directory_is_complete_only_with_every_file(tmp_path: Path, damage: str) -> None:
    (tmp_path / "usr").mkdir()
    file, stamp = tmp_path / "usr/program", tmp_path / debian.STAMP
    file.write_text("content")
    stamp.write_text(json.dumps({"usr/program": 7}))
    match damage:
        case "a file is gone":
            file.unlink()
        case "a file is shorter":
            file.write_text("con")
        case "no stamp":
            stamp.unlink()
        case "stamp is no JSON":
            stamp.write_text('{"usr/')
    assert debian.is_complete(tmp_path) == (damage == "nothing")


def test_other_packages_wanted_are_not_the_ones_unpacked(tmp_path: Path) -> None:
    assert debian.unpacked(tmp_path, "engine") is None
    (tmp_path / "engine.current").write_text('engine-key\n{"trixie": ["a"]}\n')
    assert debian.unpacked(tmp_path, "engine") == tmp_path / "packages/engine-key"
    assert debian.unpacked(tmp_path, "engine", '{"trixie": ["a"]}') == tmp_path / "packages/engine-key"
    assert debian.unpacked(tmp_path, "engine", '{"trixie": ["a", "b"]}') is None


def test_sockets_fit_whatever_the_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    short = Path("/c")
    monkeypatch.setenv("GREENROOM_CACHE_DIR", str(short))
    assert engine_state.layout().run == short / "engine/run"
    runs = set()
    for name in ("a", "b"):
        monkeypatch.setenv("GREENROOM_CACHE_DIR", str(tmp_path / (name * 90)))
        place = engine_state.layout()
        runs.add(place.run)
        assert place.directory == tmp_path / (name * 90) / "engine"
        assert len(os.fsencode(place.exec_root / "containerd/containerd.sock.ttrpc")) <= 107
    assert len(runs) == 2


def test_own_mounts_are_found_innermost_first_and_others_left_alone() -> None:
    place = engine_state.Layout(directory=Path("/c d/engine"), run=Path("/run/g"))
    mountinfo = (
        "20 1 8:1 / / rw - ext4 /dev/a rw\n"
        "21 20 8:1 /c\\040d/engine/data /c\\040d/engine/data rw - ext4 /dev/a rw\n"
        "22 21 0:5 / /c\\040d/engine/data/overlay2/x/merged rw - overlay overlay rw\n"
        "23 20 0:6 net:[1] /run/g/exec/netns/default rw - nsfs nsfs rw\n"
        "24 20 0:7 / /run/gg rw - tmpfs tmpfs rw\n"
        "25 20 0:8 / /c\\040d/engine/database rw - tmpfs tmpfs rw\n"
    )
    assert [str(point) for point in engine_state.own_mounts(place, mountinfo)] == [
        "/run/g/exec/netns/default",
        "/c d/engine/data/overlay2/x/merged",
        "/c d/engine/data",
    ]


def test_a_disk_mounted_as_data_directory_is_the_users() -> None:
    place = engine_state.Layout(directory=Path("/c/engine"), run=Path("/run/g"))
    assert engine_state.own_mounts(place, "21 20 8:9 / /c/engine/data rw - ext4 /dev/b rw\n") == []


def test_an_engine_that_answers_is_used(docker: Docker) -> None:
    path = docker(f"case $1 in context) {context('unix:///there.sock')};; esac")
    found = find_engine()
    assert (found.host, found.docker, found.private) == ("unix:///there.sock", str(path), False)
    assert found.environment["DOCKER_HOST"] == "unix:///there.sock"


def test_keys_of_a_context_reach_the_command_line_and_the_sdk(docker: Docker, tmp_path: Path) -> None:
    (tmp_path / "tls/docker").mkdir(parents=True)
    told = [
        {
            "Endpoints": {"docker": {"Host": "tcp://127.0.0.1:1"}},
            "TLSMaterial": {"docker": ["ca.pem"]},
            "Storage": {"TLSPath": str(tmp_path / "tls")},
        }
    ]
    docker(f"case $1 in context) echo '{json.dumps(told)}';; esac")
    environment = find_engine().environment
    assert environment["DOCKER_CERT_PATH"] == str(tmp_path / "tls/docker")
    assert environment["DOCKER_TLS_VERIFY"] == "1"


@pytest.mark.parametrize("variable", ["DOCKER_HOST", "DOCKER_CONTEXT"])
def test_an_explicit_choice_that_does_not_answer_is_an_error(
    docker: Docker, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    docker(f"case $1 in context) {context('ssh://far')};; *) echo 'no route' >&2; exit 1;; esac")
    monkeypatch.setenv(variable, "ssh://far")
    with pytest.raises(EngineError) as caught:
        find_engine()
    assert caught.value.exit_code == 3
    assert f"{variable}=ssh://far" in str(caught.value)
    assert "no route" in str(caught.value)


def test_a_host_that_never_answers_does_not_hang(docker: Docker, monkeypatch: pytest.MonkeyPatch) -> None:
    docker("sleep 60")
    monkeypatch.setenv("DOCKER_HOST", "ssh://silent")
    monkeypatch.setattr(engine, "PROBE_TIMEOUT", 0.5)
    with pytest.raises(EngineError, match="no end within"):
        find_engine()


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (f"case $1 in context) {context('unix:///s')};; version) ;; *) exit 1;; esac", "has no buildx: install"),
        ("case $1 in context) echo '[]';; esac", "tells something unknown"),
        ("case $1 in context) echo 'unknown command' >&2; exit 125;; esac", "unknown command"),
    ],
)
def test_without_an_engine_the_error_says_why_and_what_to_install(
    docker: Docker, monkeypatch: pytest.MonkeyPatch, script: str, told: str
) -> None:
    docker(script)
    monkeypatch.setattr(private_engine, "unusable", lambda: "uid 7 is not root")
    with pytest.raises(EngineError) as caught:
        find_engine()
    assert caught.value.exit_code == 3
    line = str(caught.value)
    assert told in line
    assert "uid 7 is not root" in line
    assert "docker-buildx" in line
    assert "\n" not in line
    assert engine_status()["answers"] is False


def test_no_docker_and_nothing_started_when_not_asked_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(private_engine, "unusable", lambda: None)
    with pytest.raises(EngineError, match="greenroom engine start"):
        find_engine(start=False)
    assert not (tmp_path / "cache").exists()


def test_logins_are_the_users_own_and_buildx_is_the_private_engines(
    docker: Docker, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = docker('echo "$DOCKER_CONFIG"')
    private = Engine(
        host="unix:///s", docker=str(path), environment={**os.environ, "DOCKER_CONFIG": "/private"}, private=True
    )
    assert private.cli("buildx", "version").stdout == "/private\n"
    assert private.cli("push", "x").stdout == "\n"
    monkeypatch.setenv("DOCKER_CONFIG", "/own")
    assert private.cli("pull", "x").stdout == "/own\n"


def test_a_dry_run_prints_and_makes_nothing(
    docker: Docker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    docker("exit 1")
    monkeypatch.setattr(debian, "usable", lambda: None)
    monkeypatch.setattr(debian, "host_codename", lambda: "bookworm")
    monkeypatch.setattr(debian, "host_source_lines", lambda suite: (f"deb file:/m/ {suite} main",))
    with dry_run():
        found = find_engine()
        assert base_image.ensure_base_image(found, DEFAULT_BASE_IMAGE) == "greenroom-base:trixie"
        assert not found.answers
    printed = capsys.readouterr().out
    for part in ("apt-get", "dpkg -x", "dockerd --host=unix://", "mmdebstrap", "image.tar"):
        assert part in printed
    assert not (tmp_path / "cache").exists()


def test_the_daemon_changes_nothing_of_the_hosts_network_and_reads_none_of_its_settings(tmp_path: Path) -> None:
    place = engine_state.Layout(directory=tmp_path, run=tmp_path / "run")
    argv = private_engine._daemon_argv(place, engine_state.Programs(root=tmp_path / "programs"))
    for flag in ("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"):
        assert flag in argv
    paths = [flag.partition("=")[2] for flag in argv if "/" in flag.partition("=")[2]]
    assert all(path.removeprefix("unix://").startswith(str(tmp_path)) for path in paths)
    assert not {"GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY"} & private_engine.DAEMON_VARIABLES


def no_image(docker: Docker) -> Engine:
    path = docker("case $1 in pull) echo 'Error: no such host' >&2;; esac; exit 1")
    return Engine(host="unix:///s", docker=str(path), environment=dict(os.environ), private=False)


def test_an_image_that_is_neither_here_nor_to_be_pulled(docker: Docker) -> None:
    with pytest.raises(BaseImageError) as caught:
        base_image.ensure_base_image(no_image(docker), "example/image:1")
    assert caught.value.exit_code == 6
    line = str(caught.value)
    assert "example/image:1" in line
    assert "no such host" in line
    assert "--base-image bootstrap:trixie" in line
    assert "\n" not in line


def test_a_local_image_is_used_as_it_is(docker: Docker) -> None:
    path = docker("case $1 in image) echo sha256:1;; *) exit 9;; esac")
    here = Engine(host="unix:///s", docker=str(path), environment=dict(os.environ), private=False)
    assert base_image.ensure_base_image(here, "example/image:1") == "example/image:1"


@pytest.mark.parametrize("reference", ["bootstrap:", "bootstrap:sid", "bootstrap:trixie/x"])
def test_only_supported_suites_are_bootstrapped(docker: Docker, reference: str) -> None:
    with pytest.raises(UsageError, match="bootstrap:trixie"):
        base_image.ensure_base_image(no_image(docker), reference)


def test_no_bootstrap_without_root_or_debian(docker: Docker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "usable", lambda: "this host is not Debian 12 or 13")
    with pytest.raises(BaseImageError, match=r"not Debian 12 or 13 \| next: --base-image"):
        base_image.ensure_base_image(no_image(docker), "bootstrap:trixie")


def test_the_image_is_the_same_whenever_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    one = base_image.image_config("trixie", "key", "00", "amd64")
    assert one == base_image.image_config("trixie", "key", "00", "amd64")
    config = json.loads(one)
    assert config["created"] == "2025-08-09T00:00:00Z"
    assert config["config"]["Labels"] == {"org.greenroom.bootstrap": "key"}
    key = base_image.Recipe(suite="trixie").key
    monkeypatch.setattr(base_image, "INCLUDE", ("python3",))
    assert base_image.Recipe(suite="trixie").key != key


def test_a_lock_that_is_not_released_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 0.1)
    with locks.held(tmp_path / "lock", EngineError):
        with pytest.raises(EngineError, match="still held"), locks.held(tmp_path / "lock", EngineError):
            pytest.fail("held twice")
        assert stat.S_ISREG((tmp_path / "lock").stat().st_mode)
    with locks.held(tmp_path / "lock", EngineError):
        pass
