"""What source-built stages compile: once for each key, for an image that it fits, and nothing else than the lock says."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.packages import Web, sdist

import compile_wheels
from build_wheels import build_wheel
from greenroom.errors import BuildError
from greenroom.lock import Artifact
from greenroom.probe import probe
from greenroom.source_builds import BuildSettings
from greenroom.target import Target
from greenroom.wheel_store import describe, keep, key_of

HERE = Target.from_probe(probe())
BODY = """
    import os, pathlib, zipfile
    wheel = "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(directory) / wheel, "w") as archive:
        archive.writestr(zipfile.ZipInfo("thing.py"), os.environ.get("WORD", "") + os.getcwd())
    return wheel
"""


@pytest.fixture
def part(web: Web, own_uv: None) -> dict[str, Any]:
    """A source-built stage's part of a plan, whose source is on the loopback."""
    filename, data = sdist("thing", body=BODY)
    web.answers["/thing.tar.gz"] = data
    artifact = Artifact(
        filename=filename,
        name="thing",
        version="1.0",
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        kind="sdist",
    )
    item = {
        "artifact": dataclasses.asdict(artifact),
        "url": f"{web.url}/thing.tar.gz",
        "sets": ["one"],
        "settings": dataclasses.asdict(BuildSettings(variables=(("WORD", "said"),))),
        "requires": [],
    }
    return {"target": dataclasses.asdict(HERE), "files": [item], "uv": "0.13.9", "exclude_newer": ""}


@pytest.fixture
def compile_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, Path]]:
    """Run the script; return its exit code and the slot directory."""
    runs = iter(range(100))

    def run(part: dict[str, Any], *, environment: str = "sha256:e", cache: str = "cache") -> tuple[int, Path]:
        plan, out = tmp_path / f"plan{(number := next(runs))}", tmp_path / f"out{number}"
        plan.mkdir()
        (plan / "part.json").write_text(json.dumps(part))
        monkeypatch.setenv("COMPILE_ENVIRONMENT", environment)
        words = ["--plan", plan, "--store", tmp_path / "store", "--cache", tmp_path / cache, "--out", out]
        monkeypatch.setattr(sys, "argv", ["compile_wheels.py", *map(str, words)])
        return compile_wheels.main(), out

    return run


Compile = Callable[..., tuple[int, Path]]


def key(part: dict[str, Any], environment: str = "sha256:e") -> dict[str, Any]:
    settings = BuildSettings(variables=(("WORD", "said"),))
    return describe(
        Artifact(**part["files"][0]["artifact"]),
        settings,
        requires=[],
        exclude_newer="",
        target=HERE,
        uv="0.13.9",
        environment=environment,
    )


def test_it_is_compiled_once_for_each_key(part: dict[str, Any], compile_part: Compile, web: Web) -> None:
    code, out = compile_part(part)
    (entry,) = json.loads((out / "slot.json").read_text())
    assert (code, entry["name"], entry["sets"], entry["key"]) == (0, "thing", ["one"], key_of(key(part)))
    assert (out / entry["wheel"]).is_file()
    asked = len(web.requests)
    again = compile_part(part)[1]
    assert (again / entry["wheel"]).read_bytes() == (out / entry["wheel"]).read_bytes()
    other = compile_part(part, environment="sha256:f")[1]
    assert json.loads((other / "slot.json").read_text())[0]["key"] != entry["key"]
    assert len(web.requests) == asked, "the source is in the cache"


def test_what_the_store_has_needs_neither_source_nor_compiler(
    part: dict[str, Any], compile_part: Compile, web: Web, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = tmp_path / "thing-1.0-py3-none-any.whl"
    wheel.write_bytes(b"compiled before")
    entry = keep(tmp_path / "store", wheel, key(part))
    code, out = compile_part(part)
    assert (code, (out / wheel.name).read_bytes(), web.requests) == (0, b"compiled before", [])
    assert "thing 1.0 is in the store of compiled wheels, nothing to compile" in capsys.readouterr().out
    entry.wheel.write_bytes(b"damaged")
    code, out = compile_part(part)
    assert code == 0 and b"said" in (out / wheel.name).read_bytes()
    assert "compiled again" in capsys.readouterr().out


def test_without_the_environment_s_digest_nothing_is_reused(
    part: dict[str, Any], compile_part: Compile, tmp_path: Path
) -> None:
    for _ in range(2):
        code, out = compile_part(part, environment="")
        assert code == 0 and json.loads((out / "slot.json").read_text())[0]["key"] == ""
    assert not (tmp_path / "cache" / "compiled").exists()


def test_the_wheel_does_not_depend_on_where_or_when(part: dict[str, Any], compile_part: Compile) -> None:
    first, second = compile_part(part)[1], compile_part(part, cache="another")[1]
    (wheel,) = first.glob("*.whl")
    assert wheel.read_bytes() == (second / wheel.name).read_bytes()


OTHERS = {
    "Python": {"python": "3.8.1"},
    "processor": {"machine": "m68k"},
    "C library": {"glibc": "2.5"},
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_compile_image_that_does_not_fit_is_refused(
    part: dict[str, Any], compile_part: Compile, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    code, _ = compile_part({**part, "target": {**part["target"], **OTHERS[case]}})
    assert code == 4
    assert "set compile-image under [tool.greenroom]" in capsys.readouterr().err


def test_a_stage_that_compiles_nothing_gives_an_empty_slot(compile_part: Compile) -> None:
    code, out = compile_part({"files": []})
    assert (code, [path.name for path in out.iterdir()]) == (0, ["slot.json"])


@pytest.mark.parametrize("wanted", [{"version": "2.0"}, {"name": "other"}])
def test_a_wheel_of_another_version_or_name_is_refused(
    part: dict[str, Any], tmp_path: Path, wanted: dict[str, str]
) -> None:
    filename, data = sdist("thing", body=BODY)
    (tmp_path / filename).write_bytes(data)
    (tmp_path / "out").mkdir()
    artifact = dataclasses.replace(Artifact(**part["files"][0]["artifact"]), **wanted)  # type: ignore[arg-type]
    with pytest.raises(BuildError, match=r"made thing-1\.0-py3-none-any\.whl, and the lock says"):
        build_wheel(tmp_path / filename, tmp_path / "out", artifact)


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8bnot gzip"])
def test_what_is_no_sdist_is_said(part: dict[str, Any], tmp_path: Path, content: bytes) -> None:
    (tmp_path / "thing-1.0.tar.gz").write_bytes(content)
    with pytest.raises(BuildError, match=r"thing-1\.0\.tar\.gz cannot be unpacked"):
        build_wheel(tmp_path / "thing-1.0.tar.gz", tmp_path, Artifact(**part["files"][0]["artifact"]))
