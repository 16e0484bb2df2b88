"""Bytecode: the same bytes wherever and whenever it is made, and valid wherever it lies."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

from bytecode import compile_sources
from greenroom.process import run

SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
SOURCE = "names = {'a', 'b', 'c'}\n\ndef where():\n    return where.__code__.co_filename\n"


def venv(root: Path) -> Path:
    for name in ("thing.py", "pack/__init__.py", "template.py", "data.txt"):
        path = root / SITE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("def {{ name }}():\n" if name == "template.py" else SOURCE)
    return root


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def compiled_in(root: Path, sources: list[str]) -> dict[str, bytes]:
    return {name: (root / name).read_bytes() for name in compile_sources(str(root), sources)}


def test_the_bytes_depend_on_the_source_only(tmp_path: Path) -> None:
    first, second = venv(tmp_path / "one"), venv(tmp_path / "a longer path" / "two")
    sources = files(first)
    made = compiled_in(first, sources)
    assert set(made) == {
        importlib.util.cache_from_source(f"{SITE}/{name}") for name in ("thing.py", "pack/__init__.py")
    }
    # In another order, with less beside it, later.
    assert compiled_in(second, sources[::-1]) == made
    alone = venv(tmp_path / "three")
    one = compiled_in(alone, [f"{SITE}/thing.py"])
    assert one == {name: data for name, data in made.items() if "thing" in name}


def test_it_is_loaded_and_names_the_real_path(tmp_path: Path) -> None:
    root = venv(tmp_path / "built")
    compiled_in(root, files(root))
    moved = shutil.copytree(root, tmp_path / "moved")
    # Unchecked: what is loaded is the bytecode, whatever the source says now.
    (moved / SITE / "thing.py").write_text("raise SystemExit('the source was read')\n")
    code = f"import sys; sys.path.insert(0, {str(moved / SITE)!r}); import thing; print(thing.where())"
    assert run([sys.executable, "-I", "-c", code]).stdout == f"{moved / SITE / 'thing.py'}\n"


def test_a_source_that_is_no_python_is_left_alone(tmp_path: Path) -> None:
    root = venv(tmp_path / "venv")
    assert compile_sources(str(root), [f"{SITE}/template.py", f"{SITE}/data.txt", "bin/tool.py"]) == []
    assert compile_sources(str(root), []) == []
