"""What the image tests share: commands as a user runs them, images made for a test, small projects."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from greenroom.engine import Engine
from greenroom.process import Completed, run

REPO = Path(__file__).parents[2]
VENV_DIR = "/opt/ray_venvs"
COMPILED = "llamacpp"
"""The extra of this repository that is compiled: many minutes, so that the tests leave it out, as CIs do by default."""
NOBODY = "65532:65532"
COMMAND_TIMEOUT = 800.0


def clean_environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return our environment, without what would choose other venvs than the manifest's, and more variables."""
    kept = {name: value for name, value in os.environ.items() if not re.fullmatch(r"SKIP_\w+_BUILD", name)}
    return kept | dict(variables or {})


def program(name: str) -> Path:
    """Return a console script of the environment that runs the tests."""
    return Path(sys.executable).with_name(name)


def greenroom(*words: str | Path, variables: Mapping[str, str] | None = None) -> Completed:
    """Run the console script to its end, whatever its exit code."""
    environment = clean_environment(variables)
    return run([program("greenroom"), *words], cwd=REPO, env=environment, timeout=COMMAND_TIMEOUT, check=False)


def succeeded(done: Completed) -> Completed:
    """Return a command that ended well; else show all that it said."""
    assert done.returncode == 0, f"{' '.join(done.argv)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def error_line(done: Completed) -> str:
    """Return the one line that a failed command ends with; nothing else may look like a failure."""
    assert "Traceback" not in done.stderr
    # A build's progress repeats what its steps say, with the time before it.
    lines = [line for line in done.stderr.splitlines() if not re.match(r"greenroom: +\d+\.\d s  ", line)]
    assert all(line.startswith("greenroom: ") for line in lines), done.stderr
    assert sum(" | next: " in line for line in lines) == 1, done.stderr
    assert " | next: " in lines[-1]
    return lines[-1]


@dataclass
class Images:
    """The images that the tests make; they are removed at the end, and nothing else is.

    Attributes:
        engine: where.
        tags: what was made so far.
    """

    engine: Engine
    tags: list[str] = field(default_factory=list)

    def tag(self, name: str) -> str:
        """Return a tag that no other run of the tests uses; its image is removed at the end."""
        tag = f"greenroom-test-{os.getpid()}:{name}"
        self.tags += [tag, f"{tag}-unverified"]
        return tag

    def derive(self, name: str, base: str, *lines: str) -> str:
        """Make an image from another with lines of a Dockerfile; return its tag."""
        tag = self.tag(name)
        text = "\n".join([f"FROM {base}", *lines, ""])
        words = ["buildx", "build", "--builder", "default", "--network", "none", "--load", "--tag", tag, "-"]
        self.engine.cli(*words, changes=True, stdin=text.encode(), timeout=120)
        return tag

    def id_of(self, tag: str) -> str | None:
        """Return an image's identifier, or None when there is no such image."""
        told = self.engine.cli("image", "inspect", "--format", "{{.Id}}", tag, check=False)
        return told.stdout.strip() or None

    def remove(self) -> None:
        """Remove the images."""
        for tag in self.tags:
            if self.id_of(tag):
                self.engine.cli("rmi", "--force", tag, changes=True)

    def run(self, image: str, *argv: str, user: str = NOBODY, stdin: str = "") -> str:
        """Run a program in an image as its users do, without a network and read-only; return what it prints."""
        flags = ["run", "--rm", "--interactive", "--network", "none", "--read-only", "--user", user]
        flags += ["--env", "HOME=/nonexistent", "--entrypoint", argv[0], image]
        return self.engine.cli(*flags, *argv[1:], changes=True, stdin=stdin.encode(), timeout=300).stdout

    def python(self, image: str, code: str, *, interpreter: str = "python3", user: str = NOBODY) -> Any:
        """Run code in an image; return the JSON that it prints."""
        return json.loads(self.run(image, interpreter, "-I", "-B", "-", user=user, stdin=code))


@dataclass(frozen=True, kw_only=True)
class Built:
    """An image that `greenroom image` has built.

    Attributes:
        tag: the image.
        project: its project's directory.
        done: the command that built it.
        plan: what it wrote to build/plan.json.
        report: what it wrote to build/verify.json.
    """

    tag: str
    project: Path
    done: Completed
    plan: dict[str, Any]
    report: dict[str, Any]


def build(images: Images, name: str, project: Path, *words: str, variables: Mapping[str, str] | None = None) -> Built:
    """Build and verify an image with the console script, as a user does."""
    tag = images.tag(name)
    done = succeeded(greenroom("image", "--project", project, "--tag", tag, *words, variables=variables))
    plan, report = (json.loads((project / "build" / file).read_text()) for file in ("plan.json", "verify.json"))
    assert report["image"] == tag
    return Built(tag=tag, project=project, done=done, plan=plan, report=report)


def differences(project: Path, image: str, *words: str) -> tuple[int, list[tuple[str, str, str]]]:
    """Verify an image; return the exit code, and (check, venv, what) of every difference."""
    done = greenroom("verify", "--project", project, "--image", image, "--json", *words)
    rows = json.loads(done.stdout)["differences"]
    return done.returncode, [(row["check"], row["venv"], row["what"]) for row in rows]


def write_project(
    directory: Path,
    *,
    actors: Mapping[str, Sequence[str] | None],
    extras: Mapping[str, Sequence[str]],
    stages: Mapping[str, str] | None = None,
    settings: str = "",
) -> Path:
    """Write a project that is no package: the real manifest with other actors, and a pyproject.toml."""
    directory.mkdir(parents=True, exist_ok=True)
    manifest = (REPO / "src/greenroom/actor_environments.py").read_text()
    table = {fqn: None if needed is None else list(needed) for fqn, needed in actors.items()}
    for name, value in (("ACTOR_ENVIRONMENTS", table), ("SOURCE_BUILT_STAGES", dict(stages or {}))):
        pattern = rf"(?ms)^({name}: .*? = )\{{.*?\}}$"
        assert re.search(pattern, manifest), f"the manifest has no table {name}"
        manifest = re.sub(pattern, rf"\g<1>{value!r}", manifest, count=1)
    (directory / "actor_environments.py").write_text(manifest)
    lines = ["[project]", 'name = "tiny"', 'version = "1.0"', 'requires-python = ">=3.11"']
    lines += ["[project.optional-dependencies]", *(f"{extra} = {list(needed)}" for extra, needed in extras.items())]
    lines += ["[tool.uv]", "package = false", 'exclude-newer = "2026-11-25T00:00:00Z"']
    lines += ["environments = [\"sys_platform == 'linux'\"]", "[tool.greenroom]", settings, ""]
    (directory / "pyproject.toml").write_text("\n".join(lines))
    return directory


def copy_project(project: Path, directory: Path) -> Path:
    """Copy a project without what was built."""
    return Path(shutil.copytree(project, directory, ignore=shutil.ignore_patterns("build", ".*", "__pycache__")))


def snapshot(directory: Path) -> dict[str, bytes]:
    """Return every file below a directory with its content."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
