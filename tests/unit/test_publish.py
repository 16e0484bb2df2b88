"""What engines tell of a push: both image stores' words for layers, digests and failures. What killed pushes leave."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from greenroom.publish import PushProgress, _failed, _scratch

DIGEST = "sha256:" + "0123456789abcdef" * 4
CLASSIC: list[dict[str, Any]] = [
    {"status": "The push refers to repository [registry.test/a]"},
    {"status": "Preparing", "progressDetail": {}, "id": "aaaa"},
    {"status": "Pushing", "progressDetail": {"current": 512, "total": 1024}, "id": "aaaa"},
    {"status": "Layer already exists", "progressDetail": {}, "id": "bbbb"},
    {"status": "Pushed", "progressDetail": {}, "id": "aaaa"},
    {"status": f"1.0: digest: {DIGEST} size: 1234"},
    {"progressDetail": {}, "aux": {"Tag": "1.0", "Digest": DIGEST, "Size": 1234}},
]
CONTAINERD: list[dict[str, Any]] = [
    {"status": "The push refers to repository [registry.test/a]"},
    # Nothing has been sent of it yet, and what is 0 is left out.
    {"status": "Pushing", "progressDetail": {"total": 1024}, "id": "aaaa"},
    {"status": "Pushed", "progressDetail": {}, "id": "aaaa"},
    {"status": f"1.0: digest: {DIGEST} size: 1234"},
]


@pytest.mark.parametrize(("messages", "layers"), [(CLASSIC, 2), (CONTAINERD, 1)])
@pytest.mark.parametrize("terminal", [True, False])
def test_the_digest_is_found_in_both_stores_words(messages: list[dict[str, Any]], layers: int, terminal: bool) -> None:
    out = io.StringIO()
    with PushProgress(Console(file=out, force_terminal=terminal, width=200)) as progress:
        for message in messages:
            progress.take(message)
    assert progress.digest == DIGEST and progress.error == ""
    if not terminal:
        assert out.getvalue().count("greenroom: layer ") == layers
        assert "greenroom: layer aaaa: pushed" in out.getvalue()


def test_a_failure_is_kept() -> None:
    with PushProgress(Console(file=io.StringIO())) as progress:
        progress.take({"errorDetail": {"message": "denied"}, "error": "denied"})
        progress.take({"status": "Preparing", "id": "aaaa"})
    assert progress.error == "denied" and progress.digest == ""


@pytest.mark.parametrize(
    ("said", "login"),
    [
        ("no basic auth credentials", True),
        ("unauthorized: authentication required", True),
        ("denied: requested access to the resource is denied", True),
        ("unexpected status code 403 Forbidden", True),
        ("dial tcp 127.0.0.1:4030: connect: connection refused", False),
        ("Get https://registry.test:5403/v2/: EOF", False),
        (f"blob {DIGEST.replace('0123', '4013')} unknown", False),
    ],
)
def test_only_a_refused_login_asks_for_one(said: str, login: bool) -> None:
    failure = _failed("registry.test/a:1", said)
    assert ("docker login registry.test" in failure.next_step) == login
    assert said in failure.what


X509 = "tls: failed to verify certificate: x509: certificate"


@pytest.mark.parametrize(
    ("said", "cause", "next_step"),
    [
        (f"{X509} signed by unknown authority", "not trusted here", "/etc/docker/certs.d/registry.test:5000/ca.crt"),
        (f"{X509} is valid for other.test, not registry.test", "for another name", "push to the name that it is for"),
        (f"{X509} has expired or is not yet valid", "is not valid", "have it renewed"),
    ],
)
def test_a_certificate_is_named_as_the_cause(said: str, cause: str, next_step: str) -> None:
    failure = _failed("registry.test:5000/a:1", f'Get "https://registry.test:5000/v2/": {said}')
    assert "the certificate of registry.test:5000" in failure.cause and cause in failure.cause
    assert next_step in failure.next_step
    assert said in failure.what


HOLDER = """
import sys
from greenroom.publish import _scratch
with _scratch() as directory:
    (directory / "image.tar").write_text("as large as the image")
    print(directory, flush=True)
    sys.stdin.read()
"""


def test_only_what_killed_pushes_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GREENROOM_CACHE_DIR", str(tmp_path))
    # As an older greenroom left it, without a lock.
    (tmp_path / "push/push-older").mkdir(parents=True)
    argv = [sys.executable, "-c", HOLDER]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            live = Path(other.stdout.readline().strip())
            with _scratch() as own:
                assert set((tmp_path / "push").glob("push-*")) == {live, own}
                assert (live / "image.tar").is_file()
        finally:
            other.kill()
    with _scratch() as own:
        assert set((tmp_path / "push").glob("push-*")) == {own}
    assert not own.exists()
