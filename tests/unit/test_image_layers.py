"""Reading an engine's export of images: archives in an archive, once from beginning to end."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import threading
from collections.abc import Mapping

import pytest

from greenroom.image_layers import read_export
from greenroom.image_tree import LayerEntry


def archive(members: Mapping[str, bytes | tarfile.TarInfo]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as made:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                made.addfile(content)
                continue
            info = tarfile.TarInfo(name)
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
    return data.getvalue()


def link(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


INNER: dict[str, bytes | tarfile.TarInfo] = {
    "a/x-1.dist-info/RECORD": b"x.py,,\n",
    "a/big": b"1" * 5000,
    "a/hard": link("a/hard", "a/big", tarfile.LNKTYPE),
    "a/soft": link("a/soft", "big", tarfile.SYMTYPE),
}


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_an_export_is_read_once_from_beginning_to_end(pack: type[bytes]) -> None:
    outer: dict[str, bytes | tarfile.TarInfo] = {
        "blobs/sha256/one": pack(archive(INNER)),
        "blobs/sha256/empty": archive({}),
        "old/layer.tar": link("old/layer.tar", "../blobs/sha256/one", tarfile.SYMTYPE),
        "blobs/sha256/config": json.dumps({"rootfs": {}}).encode(),
        "manifest.json": b"[]",
    }

    # A pipe cannot be wound back.
    reader, writer = os.pipe()

    def send() -> None:
        with os.fdopen(writer, "wb") as sink:
            sink.write(archive(outer))

    thread = threading.Thread(target=send)
    thread.start()
    with os.fdopen(reader, "rb") as stream:
        export = read_export(stream, 2)
    thread.join()
    sha256 = hashlib.sha256(b"1" * 5000).hexdigest()
    record = hashlib.sha256(b"x.py,,\n").hexdigest()
    assert export.layers["/blobs/sha256/one"] == (
        LayerEntry("/a/x-1.dist-info/RECORD", "file", size=7, sha256=record),
        LayerEntry("/a/big", "file", size=5000, sha256=sha256),
        LayerEntry("/a/hard", "hardlink", target="/a/big"),
        LayerEntry("/a/soft", "symlink", target="big"),
    )
    assert export.layers["/blobs/sha256/empty"] == ()
    assert export.links == {"/old/layer.tar": "/blobs/sha256/one"}
    assert export.documents["/blobs/sha256/config"] == {"rootfs": {}}
    assert export.facts.texts == {record: b"x.py,,\n"}


@pytest.mark.parametrize("cut", [0, 700, 3000, 6000])
def test_an_export_that_ends_early_is_no_image(cut: int) -> None:
    data = archive({"blobs/sha256/one": archive(INNER), "manifest.json": b"[]"})
    with pytest.raises((tarfile.TarError, OSError, ValueError)):
        read_export(io.BytesIO(data[:cut]), 1)
