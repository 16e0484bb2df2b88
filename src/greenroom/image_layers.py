"""Reading images' layers out of the engine, without running the images.

- Where the engine keeps its layers on this machine, they are read in place (`greenroom.layer_directories`).
- Else the engine's export is one stream of archives in an archive. It is read once, from its beginning to its end; of a
  file's content nothing is kept but its size, its digest and `greenroom.file_facts`.
- Several images are asked for at once: the layers that they share are sent once.
- Layers come in any order, and what they are layers of is said last.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from greenroom.console import say
from greenroom.engine import Engine
from greenroom.errors import EngineError, UsageError
from greenroom.file_facts import FileFacts, keep, wanted_bytes
from greenroom.image_tree import Image, ImageSettings, Kind, Layer, LayerEntry, absolute
from greenroom.layer_directories import directories_of, history_of, read_directory
from greenroom.stamps import DEFAULT_VENV_DIR

VENV_DIR_LABEL = "org.greenroom.venv-dir"
FIRST_BYTE_TIMEOUT = 1800.0
"""Seconds until the engine sends something: it writes the whole export to its disk first."""

_CHUNK = 1 << 20
_BUFFER = 1 << 16
"""Bytes that an archive reads ahead; it copies what is left of them for every header, so more is slower."""
_PROGRESS_INTERVAL = 5.0
"""Seconds between two log lines."""
_JSON_LIMIT = 1 << 24


@dataclass
class _Export:
    """What was read of an export so far.

    Attributes:
        layers: name of the archive → entries.
        documents: name → JSON value.
        links: name → name of the same archive (older engines write a repeated layer once).
        facts: see `Image`.
        size: bytes of archives so far.
    """

    layers: dict[str, tuple[LayerEntry, ...]] = field(default_factory=dict)
    documents: dict[str, Any] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    facts: FileFacts = field(default_factory=FileFacts)
    size: int = 0
    said: float = field(default_factory=time.monotonic)

    def tell(self, total: int) -> None:
        """Say how far this is, not too often."""
        if time.monotonic() - self.said > _PROGRESS_INTERVAL:
            say(f"read {len(self.layers)} of {total} layers, {self.size / 1e6:.0f} MB")
            self.said = time.monotonic()


def read_images(engine: Engine, references: Sequence[str]) -> list[Image]:
    """Read every layer of some images: in place where that can be, else out of the engine's export.

    Args:
        engine: where they are.
        references: the images.

    Returns:
        The images, in the same order.

    Raises:
        UsageError: there is no such image.
        EngineError: the engine does not send them, or something unknown.
    """
    # Imported where it is used: it takes a tenth of a second, and planning needs no engine.
    import requests
    from docker.errors import DockerException
    from urllib3.exceptions import HTTPError

    try:
        client = engine.client()
        try:
            told = [_inspect(client, reference) for reference in references]
            if (in_place := _in_place(engine, client, told)) is not None:
                return _read_in_place(references, told, *in_place)
            export = _read_export_of(client, references, told)
        finally:
            client.close()
        return [_image(reference, one, export) for reference, one in zip(references, told, strict=True)]
    except (DockerException, requests.RequestException, HTTPError, tarfile.TarError, OSError, ValueError) as error:
        raise _unreadable(references, f"{error}") from error
    except (LookupError, TypeError, AttributeError) as error:
        raise _unreadable(references, f"an export of an unknown kind ({error!r})") from error


def _read_export_of(client: Any, references: Sequence[str], told: Sequence[Mapping[str, Any]]) -> _Export:
    total = len({digest for one in told for digest in one["RootFS"].get("Layers") or []})
    say(f"read {' and '.join(dict.fromkeys(references))}: {total} layers, which the engine packs first")
    with client.api.get(
        f"{client.api.base_url}/v{client.api.api_version}/images/get",
        params={"names": list(dict.fromkeys(references))},
        stream=True,
        timeout=(client.api.timeout, FIRST_BYTE_TIMEOUT),
    ) as answer:
        answer.raise_for_status()
        return read_export(cast(IO[bytes], answer.raw), total)


def _in_place(
    engine: Engine, client: Any, told: Sequence[Mapping[str, Any]]
) -> tuple[list[list[Path]], list[list[dict[str, Any]]]] | None:
    """Return, for each image, the directories of its layers and its history; None when they cannot be read from here."""
    if not engine.host.startswith("unix://"):
        return None
    places = [place for one in told if (place := directories_of(one)) is not None]
    data_root = str(client.info().get("DockerRootDir"))
    histories = [history for one in told if (history := history_of(one, data_root)) is not None]
    return (places, histories) if len(places) == len(histories) == len(told) else None


def _read_in_place(
    references: Sequence[str],
    told: Sequence[Mapping[str, Any]],
    places: Sequence[Sequence[Path]],
    histories: Sequence[Sequence[Mapping[str, Any]]],
) -> list[Image]:
    """Read images from the directories of their layers, each once."""
    export = _Export()
    total = len({place for several in places for place in several})
    images = []

    def count(size: int) -> None:
        export.size += size
        export.tell(total)

    for reference, one, several, history in zip(references, told, places, histories, strict=True):
        for place in several:
            if str(place) not in export.layers:
                export.layers[str(place)] = read_directory(place, export.facts, count)
        entries = [export.layers[str(place)] for place in several]
        images.append(_made(reference, one, entries, history, export.facts))
    return images


def _unreadable(references: Sequence[str], why: str) -> EngineError:
    return EngineError(
        f"{' and '.join(references)} cannot be read: {why}",
        cause="the engine's disk is full, or it was stopped while it sent the layers",
        next_step=f"docker save --output /dev/null {references[0]}",
    )


def _inspect(client: Any, reference: str) -> dict[str, Any]:
    from docker.errors import APIError, ImageNotFound

    try:
        attributes: dict[str, Any] = client.images.get(reference).attrs
    except ImageNotFound as error:
        raise UsageError(
            f"no image {reference}", next_step=f"greenroom image --tag {reference}, or docker pull it"
        ) from error
    except APIError as error:
        if error.status_code is not None and 400 <= error.status_code < 500:
            raise UsageError(f"{reference!r} is no image: {error.explanation}", next_step="docker images") from error
        raise
    return attributes


def read_export(stream: IO[bytes], total: int) -> _Export:
    """Read what `docker save` writes.

    Args:
        stream: the archive; it is read once and need not be seekable.
        total: how many layers there are, for the log line.

    Returns:
        Its layers and documents.

    Raises:
        tarfile.TarError, OSError, ValueError: it is no such archive, or ends early.
    """
    export = _Export()
    with tarfile.open(fileobj=stream, mode="r|", bufsize=_BUFFER) as archive:
        for member in archive:
            if member.issym() or member.islnk():
                base = "/" if member.islnk() else absolute(member.name).rpartition("/")[0]
                export.links[absolute(member.name)] = absolute(f"{base}/{member.linkname}")
                continue
            content = archive.extractfile(member)
            if content is None or not member.size:
                continue
            name = absolute(member.name)
            start = content.peek(512) if hasattr(content, "peek") else b""
            if b"ustar" not in start[257:265] and start[:1] in b"{[":
                if member.size <= _JSON_LIMIT:
                    export.documents[name] = json.loads(content.read())
            elif b"ustar" in start[257:265] or _is_packed(start) or not start.strip(b"\0"):
                export.layers[name] = tuple(_entries(content, export, total))
                export.size += member.size
                export.tell(total)
    if "/manifest.json" not in export.documents:
        raise ValueError("the export ends before it says what it holds")
    return export


def _is_packed(start: bytes) -> bool:
    """Say whether something begins as gzip, zstd, bzip2 or xz does."""
    return start.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ"))


def _entries(stream: IO[bytes], export: _Export, total: int) -> list[LayerEntry]:
    """Read one layer's archive, packed or not."""
    entries = []
    with tarfile.open(fileobj=stream, mode="r|*", bufsize=_BUFFER) as archive:
        while (member := archive.next()) is not None:
            # The archive remembers every member that it has shown, a kilobyte each.
            archive.members = []  # type: ignore[attr-defined]
            path = absolute(member.name)
            own = (member.mtime, member.mode, member.uid, member.gid)
            if member.isreg():
                sha256 = _digest(archive, member, path, export)
                entries.append(LayerEntry(path, "file", size=member.size, sha256=sha256, attributes=own))
                export.tell(total)
            elif member.islnk():
                entries.append(LayerEntry(path, "hardlink", target=absolute(member.linkname), attributes=own))
            elif member.issym():
                entries.append(LayerEntry(path, "symlink", target=member.linkname, attributes=own))
            else:
                kind: Kind = "directory" if member.isdir() else "other"
                entries.append(LayerEntry(path, kind, attributes=own))
    return entries


def _digest(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str, export: _Export) -> str:
    """Return the digest of a file's content; keep what is to be known of it."""
    content = archive.extractfile(member)
    assert content is not None  # it is a regular file
    chunk = content.read(_CHUNK)
    digest, kept = hashlib.sha256(chunk), bytearray(chunk)
    wanted = wanted_bytes(path, member.size, chunk)
    while chunk := content.read(_CHUNK):
        digest.update(chunk)
        if len(kept) < wanted:
            kept += chunk
    if wanted:
        keep(export.facts, path, digest.hexdigest(), bytes(kept[:wanted]))
    return digest.hexdigest()


def _image(reference: str, told: Mapping[str, Any], export: _Export) -> Image:
    """Put together an image from an export.

    Raises:
        ValueError, LookupError: the export does not hold it.
    """
    wanted = list(told["RootFS"].get("Layers") or [])
    for row in export.documents["/manifest.json"]:
        config = export.documents[absolute(row["Config"])]
        digests = list(config["rootfs"].get("diff_ids") or [])
        if digests != wanted:
            continue
        names = [absolute(name) for name in row["Layers"] or []]
        archives = [export.layers[export.links.get(name, name)] for name in names]
        return _made(reference, told, archives, config.get("history") or [], export.facts)
    raise ValueError(f"{reference} is not among what the engine sent")


def _made(
    reference: str,
    told: Mapping[str, Any],
    entries: Sequence[tuple[LayerEntry, ...]],
    history: Sequence[Mapping[str, Any]],
    facts: FileFacts,
) -> Image:
    """Return an image of what was read."""
    configuration = told.get("Config") or {}
    labels = {str(name): str(value) for name, value in (configuration.get("Labels") or {}).items()}
    digests = list(told["RootFS"].get("Layers") or [])
    made_by = [str(step.get("created_by", "")) for step in history if not step.get("empty_layer")]
    return Image(
        reference=reference,
        identifier=str(told["Id"]),
        venv_dir=(labels.get(VENV_DIR_LABEL) or DEFAULT_VENV_DIR).rstrip("/"),
        layers=tuple(Layer(digest=digest, entries=several) for digest, several in zip(digests, entries, strict=True)),
        made_by=tuple(made_by) if len(made_by) == len(digests) else ("",) * len(digests),
        facts=facts,
        settings=ImageSettings(
            platform=f"{told.get('Os', '')}/{told.get('Architecture', '')}",
            variables=dict(setting.split("=", 1) for setting in configuration.get("Env") or [] if "=" in setting),
            labels=labels,
            history=tuple(str(step.get("created_by", "")) for step in history),
        ),
    )
