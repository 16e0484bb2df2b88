"""The inspector on real trees: links, leftovers, stamps, interpreters."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
from importlib.util import cache_from_source, source_hash
from pathlib import Path

import pytest

from greenroom import image_inspector
from greenroom.image_inspector import (
    Contents,
    Walk,
    ask_interpreter,
    bad_links,
    is_leftover,
    read_stamp,
    read_venvs,
    recorded_wheels,
    unowned,
)
from greenroom.process import run


@pytest.fixture
def venvs(tmp_path: Path) -> Path:
    directory = tmp_path / "opt" / "ray_venvs"
    (directory / ".sets/one/bin").mkdir(parents=True)
    (directory / ".sets/one/lib").mkdir()
    (tmp_path / "outside").touch()
    return directory


# Each: the link's path, where it leads, why it is bad ("" when it is not).
LINKS = [
    ("a.B", ".sets/one", ""),
    (".sets/one/lib64", "lib", ""),
    (".sets/one/lib/self", "../../..", ""),
    (".sets/one/lib/gone", "nowhere", "dangles"),
    (".sets/one/lib/loop", "loop", "dangles"),
    (".sets/one/lib/out", "../../../../../outside", "leads outside"),
    (".sets/one/lib/etc", "/etc/passwd", "leads outside"),
    (".sets/one/lib/away", "/nonexistent/x", "leads outside"),
    (".sets/one/bin/python", sys.executable, ""),
    (".sets/one/bin/python3.13", "/usr/bin/env", ""),
    (".sets/one/bin/python3", "/nonexistent/python3", "dangles"),
    (".sets/one/bin/python", "/root/python", "leads outside"),
    (".sets/one/bin/python", "/home/someone/bin/python3", "leads outside"),
    (".sets/one/bin/pythonic", "/usr/bin/env", "leads outside"),
    (".sets/one/lib/python3", "/usr/bin/env", "leads outside"),
]


@pytest.mark.parametrize(("path", "to", "why"), LINKS)
def test_links(venvs: Path, path: str, to: str, why: str) -> None:
    if os.path.realpath(sys.executable).startswith(("/root/", "/home/")) and to == sys.executable:
        to = "/bin/sh"
    (venvs / path).symlink_to(to)
    rows = bad_links([str(venvs / path)], venvs)
    assert rows == ([{"path": str(venvs / path), "to": to, "why": why}] if why else [])


def test_a_directory_whose_name_only_starts_the_same_is_outside(venvs: Path) -> None:
    other = venvs.with_name("ray_venvs_old")
    other.mkdir()
    (venvs / "a.B").symlink_to(other)
    assert [row["why"] for row in bad_links([str(venvs / "a.B")], venvs)] == ["leads outside"]


LEFTOVERS = [
    ("/opt/x/uv.lock", False, True),
    ("/tmp/numpy-1.0-py3-none-any.whl", False, True),
    ("/home/user/.netrc", False, True),
    ("/etc/pip.conf", False, True),
    ("/root/.config/uv/uv.toml", False, True),
    ("/opt/ray_venvs/.sets/a/lib/python3.13/site-packages/x-1.dist-info/direct_url.json", False, True),
    ("/root/.cache/uv", True, True),
    ("/root/.cache/pip", True, True),
    ("/var/x/uv/wheels-v5", True, True),
    ("/opt/ray_venvs/.scratch", True, True),
    ("/opt/ray_venvs/.scratch", False, False),
    ("/root/.cache", True, False),
    ("/usr/share/python-wheels/pip-25.0-py3-none-any.whl", False, False),
    ("/usr/lib/python3.13/ensurepip/_bundled/pip-25.0-py3-none-any.whl", False, False),
    ("/opt/python/lib/python3.13/ensurepip/_bundled/pip-25.0-py3-none-any.whl", False, False),
    ("/usr/local/lib/python3.13/test/wheel.whl", False, False),
    ("/opt/x/my-uv.lock", False, False),
    ("/opt/x/wheel.py", False, False),
    ("/opt/x/something.whl", True, False),
]


@pytest.mark.parametrize(("path", "is_directory", "leftover"), LEFTOVERS)
def test_leftovers(path: str, is_directory: bool, leftover: bool) -> None:
    assert is_leftover(path, is_directory) is leftover


def test_wheels_that_a_distribution_brings_are_its_own(venvs: Path) -> None:
    site = venvs / ".sets/one/lib/python3.13/site-packages"
    info = site / "virtualenv-1.dist-info"
    info.mkdir(parents=True)
    owned = site / "virtualenv/seed/pip-1-py3-none-any.whl"
    (info / "RECORD").write_text(
        'virtualenv/seed/pip-1-py3-none-any.whl,sha256=x,1\n\n"virtualenv/a, b.py",,\nx-1.dist-info/RECORD,,\n'
    )
    assert recorded_wheels(site) == {str(owned)}
    strays = [str(site / "stray.whl"), "/tmp/virtualenv/seed/pip-1-py3-none-any.whl", "/x/uv.lock"]
    assert unowned(sorted([str(owned), *strays]), venvs) == sorted(strays)


def test_the_walk_finds_links_of_venvs_and_leftovers_and_follows_no_link(
    venvs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = venvs.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "uv.lock").touch()
    (venvs / "loop").symlink_to(venvs)
    (venvs.parent / "link").symlink_to("elsewhere")
    # The machine's own root is large and changes: the walk starts at the tree that the test made.
    read = Walk._read
    monkeypatch.setattr(Walk, "_read", lambda walk, path: read(walk, str(venvs.parent) if path == "/" else path))
    walk = Walk(venvs)
    assert walk.links == [str(venvs / "loop")]
    assert walk.leftovers == [str(elsewhere / "uv.lock")]
    assert walk.unreadable == []


STAMPS = [
    (None, None),
    ('{"complete": true}', {"complete": True}),
    ("{", "unreadable"),
    ("", "unreadable"),
    ("[1]", "unreadable"),
    ("null", "unreadable"),
]


@pytest.mark.parametrize(("text", "stamp"), STAMPS)
def test_stamps(tmp_path: Path, text: str | None, stamp: object) -> None:
    if text is not None:
        (tmp_path / image_inspector.STAMP).write_text(text)
    found = read_stamp(tmp_path)
    assert (list(found) == ["unreadable"]) if stamp == "unreadable" and found else (found == stamp)


def test_an_interpreter_tells_its_prefix_version_and_distributions(tmp_path: Path, uv: str, own_uv: None) -> None:
    venv = tmp_path / "venv"
    run([uv, "venv", "--quiet", "--python", sys.executable, venv])
    (site,) = venv.glob("lib/python3.*/site-packages")
    (site / "thing-1.0.dist-info").mkdir()
    (site / "thing-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: Thing\nVersion: 1.0\n")
    answer = ask_interpreter(venv, "distributions")
    assert answer["prefix"] == str(venv)
    assert answer["version"] == ".".join(map(str, sys.version_info[:3]))
    assert answer["distributions"] == [["Thing", "1.0"]]
    assert "distributions" not in ask_interpreter(venv)


SCRIPTS = [
    ("#!/bin/sh\necho broken >&2\nexit 3\n", "broken"),
    ("#!/bin/sh\nexit 3\n", "exit code 3"),
    ("#!/bin/sh\necho no json\n", "Expecting value"),
    (None, "No such file"),
]


@pytest.mark.parametrize(("script", "said"), SCRIPTS)
def test_an_interpreter_that_does_not_run_says_why(tmp_path: Path, script: str | None, said: str) -> None:
    (tmp_path / "bin").mkdir()
    if script is not None:
        (tmp_path / "bin/python").write_text(script)
        (tmp_path / "bin/python").chmod(0o755)
    assert said in ask_interpreter(tmp_path)["error"]


def test_an_interpreter_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_inspector, "PROBE_TIMEOUT", 0.5)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "bin/python").chmod(0o755)
    assert "timed out" in ask_interpreter(tmp_path)["error"]


def test_every_actors_interpreter_is_started_and_shared_content_read_once(venvs: Path) -> None:
    log = venvs.parent / "log"
    script = f"""#!/bin/sh
for last; do :; done
[ "$last" = distributions ] && more=', "distributions": [["x", "1"]]' || last=
echo "$0 $last" >>{log}
echo "{{\\"prefix\\": \\"p\\", \\"version\\": \\"v\\"$more}}"
"""
    (venvs / ".sets/one/bin/python").write_text(script)
    (venvs / ".sets/one/bin/python").chmod(0o755)
    for name in ("a.A", "a.B", "a.C"):
        (venvs / name).symlink_to(".sets/one")
    found = read_venvs([venvs / name for name in ("a.A", "a.B", "a.C")])
    assert {name: (venv["real"], venv["stamp"]) for name, venv in found.items()} == dict.fromkeys(
        ("a.A", "a.B", "a.C"), (str(venvs / ".sets/one"), None)
    )
    assert all(venv["interpreter"]["distributions"] == [["x", "1"]] for venv in found.values())
    started = log.read_text().splitlines()
    assert sorted(line.split()[0] for line in started) == [
        f"{venvs}/{name}/bin/python" for name in ("a.A", "a.B", "a.C")
    ]
    assert sum(line.endswith(" distributions") for line in started) == 1


def test_the_inspector_is_a_script_that_needs_the_standard_library_alone(tmp_path: Path) -> None:
    code = Path(image_inspector.__file__).read_bytes().replace(b'directories = ["/"]', b"directories = [sys.argv[1]]")
    done = run([sys.executable, "-I", "-S", "-", tmp_path / "none"], stdin=code)
    found = json.loads(done.stdout)
    assert (found["exists"], found["entries"], found["venvs"]) == (False, [], {})


def record(site_packages: Path, **hashes: str) -> None:
    """Write a RECORD of files with these hashes."""
    rows = [f"{name}.py,{value},\n" for name, value in hashes.items()]
    (site_packages / "one-1.dist-info").mkdir()
    (site_packages / "one-1.dist-info/RECORD").write_text("".join([*rows, "one-1.dist-info/RECORD,,\n"]))


def sha256(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def test_contents(venvs: Path) -> None:
    site_packages = venvs / ".sets/one/lib/python3.13/site-packages"
    site_packages.mkdir(parents=True)
    record(site_packages, kept=sha256(b"1"), edited=sha256(b"1"), gone=sha256(b"1"), unhashed="", linked=sha256(b"1"))
    for name, content in (("kept", "1"), ("edited", "2"), ("unhashed", "3"), ("sitecustomize", "4")):
        (site_packages / f"{name}.py").write_text(content)
    (site_packages / "linked.py").symlink_to("kept.py")
    (site_packages / "reported.whl").touch()
    for name in ("kept", "edited", "other"):
        compiled = site_packages / cache_from_source(f"{name}.py")
        compiled.parent.mkdir(exist_ok=True)
        compiled.write_bytes(bytes(8) + source_hash(b"1"))
    (venvs / ".sets/one/pyvenv.cfg").touch()
    below = "lib/python3.13/site-packages"
    assert Contents(str(venvs / ".sets/one"), frozenset([str(site_packages / "reported.whl")])).faults == [
        f"{below}/{cache_from_source('edited.py')} is not the bytecode of its source",
        f"{below}/{cache_from_source('other.py')} is of no installed distribution",
        f"{below}/edited.py is not what its distribution recorded",
        f"{below}/gone.py is missing",
        f"{below}/linked.py is not what its distribution recorded",
        f"{below}/sitecustomize.py is of no installed distribution",
    ]
