"""What verification needs to know of a file's content, taken while the file is read once.

Images hold gigabytes: of a file stay its digest and what some checks ask for (a short text, what a native library
needs, which bytecode belongs to a source), and never the whole of it.
"""

from __future__ import annotations

import _imp
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import cast

NATIVE_MAGIC = b"\x7fELF"
BYTECODE_HEAD = 16
"""Bytes of a compiled file's head: magic number, flags, hash of the source (PEP 552)."""

_KEPT = re.compile(
    r".*\.dist-info/(RECORD|METADATA|direct_url\.json)"
    r"|.*/(greenroom-stamp\.json|pyvenv\.cfg)"
    r"|/etc/ld\.so\.conf(\.d/[^/]+\.conf)?"
    r"|/usr/local/bin/python-[^/]+"
)
_CONFIGURATION = re.compile(
    r".*/(pip\.conf|uv\.toml|\.gitconfig|\.condarc|\.npmrc|\.env|requirements[^/]*\.txt|pylock[^/]*\.toml|uv\.lock"
    r"|pyproject\.toml)"
    r"|/etc/(environment|gitconfig|apt/sources\.list|apt/(sources\.list|apt\.conf)\.d/[^/]+)"
)
"""Files that name indexes and repositories, where a password in an address is common."""
_PROGRAM = re.compile(r".*/bin/[^/]+")
_KEPT_LIMIT = 1 << 26
"""Bytes of the largest RECORD that is kept; one with a million rows is larger."""
_HEAD_LIMIT = 4096
_MAGIC_NUMBERS = (3495, 3531, 3571, 3627)
"""Of CPython 3.11, 3.12, 3.13 and 3.14: a source's hash in a compiled file depends on it (PEP 552)."""


@dataclass(frozen=True, kw_only=True)
class NativeFile:
    """What the head of a native library or program says.

    Attributes:
        machine: the processor, as ELF names it, such as "EM_X86_64".
        needed: the libraries that it asks for.
        search: its own search path, in the loader's order; `$ORIGIN` as it is written.
    """

    machine: str
    needed: tuple[str, ...] = ()
    search: tuple[str, ...] = ()


@dataclass
class FileFacts:
    """What was kept of the files of some images, by the sha256 of their content.

    Attributes:
        texts: RECORD, METADATA and other short files whole; of programs the first bytes; of compiled files the head.
        native: native libraries and programs.
        source_hashes: of a source, for each magic number of an interpreter, the hash in its compiled file.
    """

    texts: dict[str, bytes] = field(default_factory=dict)
    native: dict[str, NativeFile] = field(default_factory=dict)
    source_hashes: dict[str, Mapping[int, bytes]] = field(default_factory=dict)


def wanted_bytes(path: str, size: int, head: bytes) -> int:
    """Return how many bytes of a file `keep` wants to see.

    Args:
        path: absolute.
        size: of the file.
        head: its first bytes, at least four of them when it has so many.

    Returns:
        0 when it wants none.
    """
    if head.startswith(NATIVE_MAGIC) and not path.endswith((".o", ".a")):
        return size
    if path.endswith(".py"):
        return size if "/site-packages/" in path else 0
    if path.endswith(".pyc"):
        return BYTECODE_HEAD
    if size <= _KEPT_LIMIT and (_KEPT.fullmatch(path) or _CONFIGURATION.fullmatch(path)):
        return size
    return min(size, _HEAD_LIMIT) if head.startswith(b"#!") and _PROGRAM.fullmatch(path) else 0


def keep(facts: FileFacts, path: str, sha256: str, content: bytes) -> None:
    """Keep what is to be known of a file.

    Args:
        facts: receives it.
        path: absolute.
        sha256: of the whole content.
        content: as many of its first bytes as `wanted_bytes` said.
    """
    if path.endswith(".py"):
        facts.source_hashes[sha256] = {
            # `importlib.util.source_hash` is this for the running interpreter; the image's may be another.
            number: _imp.source_hash(number | 0x0A0D0000, content)
            for number in _MAGIC_NUMBERS
        }
    elif content.startswith(NATIVE_MAGIC):
        facts.native[sha256] = read_native(content)
    else:
        facts.texts[sha256] = content


def read_native(content: bytes) -> NativeFile:
    """Return what the head of a native file says; a machine of "" when it cannot be read.

    The search path is DT_RUNPATH, else DT_RPATH (ld.so(8)).
    """
    from elftools.common.exceptions import ELFError
    from elftools.elf.dynamic import DynamicSegment
    from elftools.elf.elffile import ELFFile

    try:
        elf = ELFFile(BytesIO(content))
        needed: list[str] = []
        paths: dict[str, str] = {}
        for segment in elf.iter_segments(type="PT_DYNAMIC"):
            for tag in cast(DynamicSegment, segment).iter_tags():
                # The reader gives each kind of tag an attribute of its own name.
                if (kind := str(tag.entry.d_tag)) == "DT_NEEDED":
                    needed.append(getattr(tag, "needed"))  # noqa: B009
                elif kind in {"DT_RPATH", "DT_RUNPATH"}:
                    paths[kind] = getattr(tag, kind.removeprefix("DT_").lower())
        search = paths.get("DT_RUNPATH") or paths.get("DT_RPATH") or ""
        return NativeFile(
            machine=str(elf["e_machine"]),
            needed=tuple(needed),
            search=tuple(part for part in search.split(":") if part),
        )
    except (ELFError, ValueError, KeyError, AttributeError, UnicodeDecodeError):
        return NativeFile(machine="")


def bytecode_of(head: bytes, hashes: Mapping[int, bytes]) -> bool:
    """Say whether a compiled file names the bytes of a source (PEP 552).

    Args:
        head: of the compiled file.
        hashes: of the source, from `FileFacts.source_hashes`.
    """
    number = int.from_bytes(head[:2], "little")
    return len(head) == BYTECODE_HEAD and number in hashes and head[8:] == hashes[number]
