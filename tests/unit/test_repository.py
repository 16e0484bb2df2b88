"""Rules that every tracked file keeps."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from greenroom.process import run

REPOSITORY = Path(__file__).parents[2]

MAX_LINES = 400
"""A file of ours that is longer has two jobs."""


def tracked() -> list[Path]:
    """Return the tracked files that are there and hold text."""
    names = run(["git", "-C", REPOSITORY, "ls-files", "-z"]).stdout.split("\0")
    paths = [REPOSITORY / name for name in names if name]
    return [path for path in paths if path.is_file() and b"\0" not in path.read_bytes()]


def test_no_module_is_too_long() -> None:
    directories = ("src", "docker")
    files = [path for path in tracked() if path.relative_to(REPOSITORY).parts[0] in directories]
    files += [REPOSITORY / "noxfile.py", REPOSITORY / "tasks.py"]
    # Pinned hashes: generated, not written.
    lengths = {path: len(path.read_text().splitlines()) for path in files if path.name != "requirements.txt"}
    assert {str(path): length for path, length in lengths.items() if length > MAX_LINES} == {}


# Joined here, so that this file holds none of them.
REGISTRY_HOSTS = [
    ".".join(parts)
    for parts in [
        ("pypi", "org"),
        ("python" + "hosted", "org"),
        ("deb", "debian", "org"),
        ("archive", "ubuntu", "com"),
        ("registry", "npmjs", "org"),
        ("docker", "io/"),
        ("nvcr", "io"),
        ("pypi", "nvidia", "com"),
        ("download", "pytorch", "org"),
    ]
]


@pytest.mark.parametrize("host", REGISTRY_HOSTS)
def test_no_file_names_a_registry(host: str) -> None:
    assert [str(path) for path in tracked() if host in path.read_text(errors="replace").lower()] == []


def test_no_file_names_a_path_of_one_machine() -> None:
    """Neither where this checkout lies nor somebody's home directory."""
    placeholders = {"someone", "user"}
    home = re.compile(r"(?<![\w.])/(?:home|Users)/([A-Za-z][\w.-]*)")
    found = []
    for path in tracked():
        text = path.read_text(errors="replace")
        if f"{REPOSITORY}/" in text:
            found.append(f"{path}: {REPOSITORY}")
        found += [f"{path}: {match[0]}" for match in home.finditer(text) if match[1] not in placeholders]
    assert found == []


def test_no_lock_with_addresses_is_tracked() -> None:
    names = {path.name for path in tracked()}
    assert not names & {"uv.lock", "pylock.toml", "poetry.lock"}


def python_files() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".py"]


def test_every_module_says_what_it_is() -> None:
    assert [str(path) for path in python_files() if not ast.get_docstring(ast.parse(path.read_text()))] == []


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def definitions(body: list[ast.stmt]) -> Iterator[Definition]:
    """Yield the functions, classes and methods of a module; what is inside of a function is its own affair."""
    for node in body:
        if isinstance(node, Definition):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from definitions(node.body)


def test_every_public_function_and_class_of_ours_is_described() -> None:
    ours = [path for path in python_files() if path.relative_to(REPOSITORY).parts[0] == "src"]
    missing = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno} {node.name}"
        for path in ours
        for node in definitions(ast.parse(path.read_text()).body)
        if not node.name.startswith("_") and not ast.get_docstring(node)
    ]
    assert missing == []


def test_every_session_is_described() -> None:
    tree = ast.parse((REPOSITORY / "noxfile.py").read_text())
    sessions = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any("nox.session" in ast.unparse(decorator) for decorator in node.decorator_list)
    ]
    assert {"image", "verify", "lock", "plan", "matrix", "tests", "lint", "typecheck"} <= {
        session.name for session in sessions
    }
    for session in sessions:
        lines = (ast.get_docstring(session) or "").splitlines()
        assert len(lines) == 1 and lines[0].endswith("."), session.name


def test_what_the_image_runs_imports_nothing_that_only_the_host_has() -> None:
    """The scripts of a build see src/greenroom without the host's libraries, but for packaging."""
    host_only = {"docker", "filelock", "invoke", "nox", "rich"}
    pending = {"plan", "planner", "lock", "manifest", "slots", "target", "process", "files", "errors", "probe"}
    seen: set[str] = set()
    while pending:
        module = pending.pop()
        seen.add(module)
        for node in ast.walk(ast.parse((REPOSITORY / "src/greenroom" / f"{module}.py").read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                first, _, rest = name.partition(".")
                assert first not in host_only, f"{module} imports {name}"
                if first == "greenroom" and rest and rest not in seen:
                    pending.add(rest)
    assert len(seen) >= 10
