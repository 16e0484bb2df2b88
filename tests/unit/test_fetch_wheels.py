"""Fetching: the lock's bytes or none, from servers that fail in every way; sdists become wheels once."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import requests

import fetch_wheels
import network
from build_wheels import build_wheel
from fetch_wheels import fetch, fetch_slots, wheel_of
from greenroom.errors import BuildError
from greenroom.lock import Artifact
from greenroom.source_builds import BuildSettings
from greenroom.target import Target

DATA = bytes(range(256)) * 5000
URL = "/files/thing-1.0-py3-none-any.whl"
Answer = Callable[[BaseHTTPRequestHandler], None]


@pytest.fixture(autouse=True)
def _small_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_wheels, "BACKOFF", 0.01)
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as opened:
        yield opened


def thing(data: bytes = DATA, *, size: int | None = None, kind: str = "wheel") -> Artifact:
    filename = "thing-1.0-py3-none-any.whl" if kind == "wheel" else "thing-1.0.tar.gz"
    sha256 = hashlib.sha256(data).hexdigest()
    actual = len(data) if size is None else size
    return Artifact(filename=filename, name="thing", version="1.0", sha256=sha256, size=actual, kind=kind)


def files_in(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()]


def then(*answers: bytes | Answer) -> Answer:
    """Answer the first request with the first, and so on; the last one stays."""
    left = list(answers)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        now = left.pop(0) if len(left) > 1 else left[0]
        if callable(now):
            now(handler)
            return
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(now)))
        handler.end_headers()
        handler.wfile.write(now)

    return answer


def truncated(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(DATA)))
    handler.end_headers()
    handler.wfile.write(DATA[: len(DATA) // 2])


def truncated_without_a_length(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(DATA[: len(DATA) // 2])


def hung_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


def unavailable(handler: BaseHTTPRequestHandler) -> None:
    handler.send_error(503)


PASSING_FAILURES = [truncated, truncated_without_a_length, hung_up, unavailable]


@pytest.mark.parametrize("failure", PASSING_FAILURES)
def test_a_failure_that_passes_is_tried_again(
    web: Any, session: requests.Session, tmp_path: Path, failure: Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    web.answers[URL] = then(failure, failure, DATA)
    path = fetch(session, thing(), web.url + URL, tmp_path)
    assert path.read_bytes() == DATA
    assert files_in(tmp_path) == [path]
    assert len(web.requests) == 3
    assert "from 127.0.0.1: attempt 2 of 4: " in capsys.readouterr().out


@pytest.mark.parametrize("failure", [*PASSING_FAILURES, lambda handler: handler.send_error(404)])
def test_a_failure_that_stays_names_the_file_and_the_host(
    web: Any, session: requests.Session, tmp_path: Path, failure: Answer
) -> None:
    web.answers[URL] = failure
    with pytest.raises(
        BuildError, match=r"thing-1\.0-py3-none-any\.whl cannot be fetched from 127\.0\.0\.1: "
    ) as caught:
        fetch(session, thing(), web.url + URL, tmp_path)
    assert caught.value.exit_code == 4
    assert len(web.requests) == fetch_wheels.ATTEMPTS
    assert files_in(tmp_path) == []


def test_a_host_that_refuses_connections(web: Any, session: requests.Session, tmp_path: Path) -> None:
    web.close()
    with pytest.raises(BuildError, match=r"cannot be fetched from 127\.0\.0\.1"):
        fetch(session, thing(), web.url + URL, tmp_path)
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("size", [len(DATA), 0])
def test_other_bytes_are_refused_at_once_and_both_hashes_named(
    web: Any, session: requests.Session, tmp_path: Path, size: int
) -> None:
    other = DATA[:-1] + b"x"
    web.answers[URL] = other
    with pytest.raises(BuildError) as caught:
        fetch(session, thing(size=size), web.url + URL, tmp_path)
    assert hashlib.sha256(other).hexdigest() in caught.value.what
    assert thing().sha256 in caught.value.what
    assert len(web.requests) == 1
    assert files_in(tmp_path) == []


def test_what_is_in_the_cache_is_not_asked_for_again(web: Any, session: requests.Session, tmp_path: Path) -> None:
    web.answers[URL] = DATA
    first = fetch(session, thing(), web.url + URL, tmp_path)
    assert fetch(session, thing(), "http://nowhere.invalid/x", tmp_path) == first
    assert len(web.requests) == 1


@pytest.mark.parametrize("content", [b"", b"x", b"another file of this name"])
def test_what_is_damaged_in_the_cache_is_fetched_again(
    web: Any, session: requests.Session, tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    web.answers[URL] = DATA
    path = fetch(session, thing(), web.url + URL, tmp_path)
    path.write_bytes(content)
    assert fetch(session, thing(), web.url + URL, tmp_path).read_bytes() == DATA
    assert "in the cache is not what the lock says: fetched again" in capsys.readouterr().out


def test_a_file_of_the_same_name_and_another_hash_is_another_file(
    web: Any, session: requests.Session, tmp_path: Path
) -> None:
    web.answers[URL] = then(DATA, b"other")
    first = fetch(session, thing(), web.url + URL, tmp_path)
    second = fetch(session, thing(b"other"), web.url + URL, tmp_path)
    assert (first.read_bytes(), second.read_bytes()) == (DATA, b"other")


def test_two_that_fetch_one_file_at_once_do_not_disturb_each_other(web: Any, tmp_path: Path) -> None:
    """Builds that share a cache have the same process ids: here they are threads of one process."""
    both = threading.Barrier(2, timeout=20)

    def slow(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(DATA)))
        handler.end_headers()
        handler.wfile.write(DATA[:1000])
        both.wait()
        handler.wfile.write(DATA[1000:])

    web.answers[URL] = slow
    results: list[bytes | Exception] = []

    def work() -> None:
        try:
            with requests.Session() as own:
                results.append(fetch(own, thing(), web.url + URL, tmp_path).read_bytes())
        except Exception as error:
            results.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [DATA, DATA]
    assert len(web.requests) == 2
    assert len(files_in(tmp_path)) == 1


def test_a_compressed_file_is_not_decoded_on_the_way(web: Any, session: requests.Session, tmp_path: Path) -> None:
    data = gzip.compress(b"a tar file")

    def labelled(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        if "gzip" in handler.headers.get("Accept-Encoding", ""):
            handler.send_header("Content-Encoding", "gzip")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    web.answers["/thing-1.0.tar.gz"] = labelled
    path = fetch(session, thing(data, kind="sdist"), web.url + "/thing-1.0.tar.gz", tmp_path)
    assert path.read_bytes() == data


BODY = """
    import os, zipfile
    name = "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as archive:
        archive.writestr("thing.py", os.environ["SOURCE_DATE_EPOCH"])
        archive.writestr("thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: thing\\nVersion: 1.0\\n")
        archive.writestr("thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        archive.writestr("thing-1.0.dist-info/RECORD", "")
    return name
"""


def built(artifact: Artifact, path: Path, target: Target, cache: Path) -> Path:
    """Return the wheel of an sdist that was fetched, as the fetching step makes it."""
    settings = dataclasses.asdict(BuildSettings())
    item = {"artifact": dataclasses.asdict(artifact), "settings": settings, "requires": []}
    part = {"target": dataclasses.asdict(target), "uv": "0", "exclude_newer": ""}
    with requests.Session() as session:
        return wheel_of(session, item, path, part, cache)


@pytest.fixture
def sdist_file(make_sdist: Callable[..., tuple[str, bytes]], own_uv: None, tmp_path: Path) -> Callable[[str], Path]:
    def write(body: str) -> Path:
        filename, data = make_sdist("thing", body=body)
        path = tmp_path / filename
        path.write_bytes(data)
        return path

    return write


def test_an_sdist_is_built_once_for_a_target_with_a_fixed_time(
    sdist_file: Callable[[str], Path],
    tmp_path: Path,
    target: Target,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import shutil
    import zipfile

    path = sdist_file(BODY)
    artifact = thing(path.read_bytes(), kind="sdist")
    cache = tmp_path / "cache"
    wheel = built(artifact, path, target, cache)
    assert zipfile.ZipFile(wheel).read("thing.py") == b"315532800"
    monkeypatch.setenv("REBUILD_SDISTS", "1")
    again = built(artifact, path, target, cache)
    assert again != wheel and again.read_bytes() == wheel.read_bytes()
    shutil.rmtree(again.parents[1])
    monkeypatch.delenv("REBUILD_SDISTS")
    path.unlink()
    assert built(artifact, path, target, cache) == wheel
    assert files_in(cache) == [wheel]
    with pytest.raises(BuildError):
        built(artifact, path, dataclasses.replace(target, python="3.12.0"), cache)


def test_an_sdist_that_does_not_build_names_the_package_and_what_it_said(
    sdist_file: Callable[[str], Path], tmp_path: Path, target: Target
) -> None:
    path = sdist_file("raise SystemExit('this needs a Fortran compiler')")
    cache = tmp_path / "cache"
    with pytest.raises(BuildError, match=r"thing cannot be built from thing-1\.0\.tar\.gz: ") as caught:
        built(thing(path.read_bytes(), kind="sdist"), path, target, cache)
    assert "Fortran" in caught.value.what
    assert caught.value.exit_code == 4
    assert files_in(cache) == []
    assert list((cache / "built").iterdir()) == []


def test_a_source_tree_is_built_too(tmp_path: Path, own_uv: None) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    out.mkdir()
    (source / "pyproject.toml").write_text(
        '[project]\nname = "thing"\nversion = "1.0"\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (source / "backend.py").write_text(
        f"def build_wheel(directory, config_settings=None, metadata_directory=None):{BODY}"
    )
    build_wheel(source, out, thing())
    assert [path.name for path in out.iterdir()] == ["thing-1.0-py3-none-any.whl"]


def test_slots_hold_their_wheels_and_say_who_needs_them(
    web: Any, tmp_path: Path, target: Target, make_wheel: Callable[..., tuple[str, bytes]]
) -> None:

    parts: dict[str, dict[str, Any]] = {}
    for slot, name, sets in [("00", "large", ["a"]), ("12", "small", ["a", "b"]), ("13", "", [])]:
        parts[slot] = {"target": dataclasses.asdict(target), "files": []}
        if name:
            filename, data = make_wheel(name)
            web.answers[f"/{filename}"] = data
            artifact = Artifact(
                filename=filename,
                name=name,
                version="1.0",
                sha256=hashlib.sha256(data).hexdigest(),
                size=len(data),
                kind="wheel",
            )
            entry = {"artifact": dataclasses.asdict(artifact), "url": f"{web.url}/{filename}", "sets": sets}
            parts[slot]["files"].append(entry)
    fetch_slots(parts, tmp_path / "cache", tmp_path / "out")
    found = {path.name: sorted(file.name for file in path.iterdir()) for path in (tmp_path / "out").iterdir()}
    assert found == {
        "00": ["large-1.0-py3-none-any.whl", "slot.json"],
        "12": ["slot.json", "small-1.0-py3-none-any.whl"],
        "13": ["slot.json"],
    }
    assert json.loads((tmp_path / "out/13/slot.json").read_text()) == []
    text = (tmp_path / "out/12/slot.json").read_text()
    assert json.loads(text) == [
        {"name": "small", "sets": ["a", "b"], "version": "1.0", "wheel": "small-1.0-py3-none-any.whl"}
    ]
    assert "127.0.0.1" not in text


def test_secrets_become_settings_of_uv_and_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "SECRETS", tmp_path)
    monkeypatch.setenv("NETRC", "/before")
    assert network.index_environment({"A": "1"}) == {"A": "1"}
    assert network.requests_session(1).verify is True
    for name, text in [("ca", "bundle"), ("netrc", "machine x"), ("index", "https://index.example/simple\n")]:
        (tmp_path / name).write_text(text)
    assert network.index_environment({"A": "1"}) == {
        "A": "1",
        "SSL_CERT_FILE": str(tmp_path / "ca"),
        "NETRC": str(tmp_path / "netrc"),
        "UV_DEFAULT_INDEX": "https://index.example/simple",
    }
    assert network.requests_session(1).verify == str(tmp_path / "ca")
