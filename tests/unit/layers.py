"""Hand-made layers and images for unit tests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from greenroom.file_facts import FileFacts
from greenroom.image_tree import Image, Layer, LayerEntry, absolute

VENVS = "/opt/ray_venvs"
SITE = "lib/python3.13/site-packages"


def file(path: str, content: str = "") -> LayerEntry:
    sha256 = hashlib.sha256(content.encode()).hexdigest()
    return LayerEntry(path, "file", size=len(content.encode()), sha256=sha256)


def directory(path: str) -> LayerEntry:
    return LayerEntry(path, "directory")


def symlink(path: str, target: str) -> LayerEntry:
    return LayerEntry(path, "symlink", target=target)


def hardlink(path: str, target: str) -> LayerEntry:
    return LayerEntry(path, "hardlink", target=target)


def layers(*several: Sequence[LayerEntry]) -> list[Layer]:
    return [Layer(digest=f"sha256:{hash(tuple(one)):x}", entries=tuple(one)) for one in several]


class Maker:
    """Makes images whose distributions have RECORD and METADATA files."""

    def __init__(self) -> None:
        self.texts: dict[str, bytes] = {}

    def text(self, path: str, content: str) -> LayerEntry:
        """Return a file whose content the reader of layers keeps."""
        entry = file(path, content)
        self.texts[entry.sha256] = content.encode()
        return entry

    def installed(self, place: str, name: str, version: str, files: Mapping[str, str]) -> list[LayerEntry]:
        """Return the files of a distribution in a venv; `files` are relative to its site-packages."""
        info = f"{name}-{version}.dist-info"
        site = f"{place}/{SITE}"
        record = "".join(f"{path},,\n" for path in [*files, f"{info}/METADATA", f"{info}/RECORD"])
        return [
            *(file(absolute(f"{site}/{path}"), content) for path, content in files.items()),
            self.text(f"{site}/{info}/METADATA", f"Name: {name}\nVersion: {version}\n\nText.\n"),
            self.text(f"{site}/{info}/RECORD", record),
        ]

    def image(self, *several: Sequence[LayerEntry], reference: str = "image") -> Image:
        return Image(
            reference=reference,
            identifier="sha256:0",
            venv_dir=VENVS,
            layers=tuple(layers(*several)),
            made_by=("",) * len(several),
            facts=FileFacts(texts=self.texts),
        )


def linked(entries: Sequence[LayerEntry], source: str, target: str) -> list[LayerEntry]:
    """Return hardlinks of a venv's files in another venv."""
    return [hardlink(entry.path.replace(source, target, 1), entry.path) for entry in entries]


def two_sets() -> Image:
    """Two sets: 100 shared bytes, 30 and 7 of their own, 11 of bytecode; an upper layer replaces 5 bytes by 7."""
    make = Maker()
    left, right = f"{VENVS}/.sets/left", f"{VENVS}/.sets/right"
    torch = make.installed(left, "Torch_X", "2.0+cpu", {"torch/__init__.py": "t" * 60, "../../../bin/torch": "b" * 40})
    shared = [*torch, *linked(torch, left, right)]
    own = [
        *make.installed(left, "six", "1.0", {"six.py": "s" * 30}),
        file(f"{left}/{SITE}/__pycache__/six.cpython-313.pyc", "c" * 11),
        file(f"{right}/pyvenv.cfg", "v" * 5),
    ]
    last = [
        file(f"{right}/pyvenv.cfg", "v" * 7),
        symlink(f"{VENVS}/a.A", ".sets/left"),
        symlink(f"{VENVS}/b.B", ".sets/right"),
    ]
    return make.image([file("/etc/passwd", "root")], shared, own, last)


def one_set(make: Maker, **versions: str) -> Image:
    place = f"{VENVS}/.sets/one"
    several = [make.installed(place, name, version, {f"{name}.py": name}) for name, version in versions.items()]
    links = [symlink(f"{VENVS}/{name}", ".sets/one") for name in ("a.A", "b.B")]
    return make.image([file("/base", "b" * 100)], *several, links)
