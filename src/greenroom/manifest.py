"""Reading a project's manifest: only through its command line, never by importing it.

    python actor_environments.py [<stage>|all] [<skip extra> ...]

prints one row for each actor that gets a venv: `<FQN>\t<stage>\t<--extra a --extra b>`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from greenroom.errors import UsageError
from greenroom.process import ProcessError, run

_FQN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)
_WORD = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)
_SKIP_VARIABLE = re.compile(r"SKIP_([A-Z0-9_]+)_BUILD")
_SCRIPT_TIMEOUT = 30.0


@dataclass(frozen=True, kw_only=True)
class Row:
    """An actor that gets a venv.

    Attributes:
        fqn: its class's fully-qualified name.
        stage: the image stage that can finish its venv.
        extras: the uv extras it needs, normalised, in declared order.
    """

    fqn: str
    stage: str
    extras: tuple[str, ...]


def read_rows(
    manifest: Path, *, stage: str = "all", skip: Sequence[str] = (), python: str = sys.executable
) -> tuple[Row, ...]:
    """Run a manifest script and return its rows.

    Args:
        manifest: the script.
        stage: the stage to list, or "all".
        skip: extras whose actors are left out.
        python: the interpreter that runs it.

    Returns:
        The rows, in the script's order.

    Raises:
        UsageError: there is no such file, the script refused (its own line says why), or its rows are malformed.
    """
    if not manifest.is_file():
        raise UsageError(
            f"no manifest at {manifest}",
            cause="the project keeps it elsewhere",
            next_step='set manifest = "path" under [tool.greenroom] in pyproject.toml, or pass --manifest',
        )
    try:
        done = run([python, manifest, stage, *skip], timeout=_SCRIPT_TIMEOUT)
    except ProcessError as error:
        lines = error.completed.stderr.strip().splitlines()
        raise UsageError(
            f"{manifest.name} {' '.join([stage, *skip])}: {lines[-1] if lines else error.reason}",
            cause="an unknown stage or extra, or an error in the manifest",
            next_step=f"python3 {manifest} all",
        ) from error
    rows = tuple(_parse(line, manifest) for line in done.stdout.splitlines())
    seen: set[str] = set()
    for row in rows:
        if row.fqn in seen:
            raise UsageError(f"{manifest.name} lists {row.fqn} twice", next_step=f"python3 {manifest} all")
        seen.add(row.fqn)
    return rows


def _parse(line: str, manifest: Path) -> Row:
    fields = line.split("\t")
    words = fields[2].split() if len(fields) == 3 else []
    extras = words[1::2]
    # Names become paths and arguments, so nothing but names may pass.
    well_formed = (
        len(fields) == 3
        and _FQN.fullmatch(fields[0])
        and _WORD.fullmatch(fields[1])
        and words == [word for extra in extras for word in ("--extra", extra)]
        and all(_WORD.fullmatch(extra) for extra in extras)
    )
    if not well_formed:
        raise UsageError(
            f"{manifest.name} printed a row that is not <FQN>\\t<stage>\\t<--extra a --extra b>: {line!r}",
            next_step=f"python3 {manifest} all",
        )
    return Row(fqn=fields[0], stage=fields[1], extras=tuple(canonicalize_name(extra) for extra in extras))


def known_extras(rows: Iterable[Row]) -> tuple[str, ...]:
    """Return every extra that some actor declares, sorted."""
    return tuple(sorted({extra for row in rows for extra in row.extras}))


def normalise_skips(skips: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """Check skip words against the extras that actors declare.

    Args:
        skips: words from a command line, an environment or a matrix; several in one word may be
            separated by spaces or commas.
        known: the declared extras, normalised.

    Returns:
        The extras to skip: normalised, unique, sorted.

    Raises:
        UsageError: a word is no declared extra; the message names the known ones.
    """
    words = {canonicalize_name(word) for skip in skips for word in skip.replace(",", " ").split()}
    if unknown := sorted(words - set(known)):
        raise UsageError(
            f"unknown extra to skip: {', '.join(unknown)}",
            cause="a skip word must be an extra that an actor declares",
            next_step=f"use one of: {', '.join(known)}",
        )
    return tuple(sorted(words))


def skips_from_environment(environ: Mapping[str, str], known: Sequence[str]) -> tuple[str, ...]:
    """Read `SKIP_<EXTRA>_BUILD` variables.

    Args:
        environ: the process environment.
        known: the declared extras, normalised.

    Returns:
        The extras whose variable is 1, true, yes or on; 0, false, no, off and "" mean not skipped.

    Raises:
        UsageError: a variable names no declared extra, or its value is none of these.
    """
    skips: list[str] = []
    for variable, value in sorted(environ.items()):
        match = _SKIP_VARIABLE.fullmatch(variable)
        if not match:
            continue
        if value.lower() in {"", "0", "false", "no", "off"}:
            continue
        if value.lower() not in {"1", "true", "yes", "on"}:
            raise UsageError(f"{variable}={value!r} is neither 1 nor 0", next_step=f"export {variable}=1 or unset it")
        extra = canonicalize_name(match[1].lower())
        if extra not in known:
            raise UsageError(
                f"{variable} names no extra that an actor declares",
                cause=f"'{extra}' is misspelled or was renamed",
                next_step=f"unset it, or use one of: {', '.join(known)}",
            )
        skips.append(extra)
    return tuple(skips)


def actors_of_the_driver(manifest: Path) -> tuple[str, ...]:
    """Return the actors whose entry is `None`, for people to read; nothing is built or checked from it.

    The command line leaves these out, so they are read from the table's literal where it is one.
    """
    for node in ast.walk(ast.parse(manifest.read_text(encoding="utf-8"))):
        targets: list[ast.expr]
        if isinstance(node, ast.AnnAssign):
            targets, table = [node.target], node.value
        elif isinstance(node, ast.Assign):
            targets, table = node.targets, node.value
        else:
            continue
        if isinstance(table, ast.Dict) and any(ast.unparse(target) == "ACTOR_ENVIRONMENTS" for target in targets):
            pairs = zip(table.keys, table.values, strict=True)
            return tuple(
                sorted(
                    str(key.value)
                    for key, value in pairs
                    if isinstance(key, ast.Constant) and ast.unparse(value) == "None"
                )
            )
    return ()
