"""Bytecode that is the same bytes wherever it lies and whenever it was made.

- Each source is compiled once, with its venv's path left out of the code; the import system puts the real
  path in when it loads the file, so one compiled file serves every venv that shares the source.
- `unchecked-hash` (PEP 552): no time is recorded, and an import neither stats nor hashes the source.
- What `marshal` writes depends on which strings a process has already interned, so every piece of work
  runs in a process forked from the same state: the bytes depend on nothing but the source.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import py_compile
import warnings

FILES_A_TASK = 300
"""Sources that one process compiles: about a second of work."""


def compile_sources(venv: str, files: list[str]) -> list[str]:
    """Compile the Python sources among a distribution's files.

    Args:
        venv: the directory of the venv.
        files: paths relative to it.

    Returns:
        The compiled files, relative to it. A source that is not valid Python for this interpreter (templates, tests
        of other versions) has none; importing it fails as it would without bytecode.
    """
    sources = sorted(name for name in files if name.endswith(".py") and name.startswith("lib/"))
    tasks = [(venv, sources[first : first + FILES_A_TASK]) for first in range(0, len(sources), FILES_A_TASK)]
    if not tasks:
        return []
    with multiprocessing.get_context("fork").Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        return sorted(name for done in pool.imap_unordered(_compile, tasks, chunksize=1) for name in done)


def _compile(task: tuple[str, list[str]]) -> list[str]:
    venv, sources = task
    done = []
    # What a source's author is warned of (an invalid escape, say) is no news for an image's builder.
    warnings.simplefilter("ignore")
    for name in sources:
        compiled = importlib.util.cache_from_source(name)
        try:
            py_compile.compile(
                f"{venv}/{name}",
                cfile=f"{venv}/{compiled}",
                dfile=name,
                doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
        except (py_compile.PyCompileError, ValueError, RecursionError):
            continue
        done.append(compiled)
    return done
