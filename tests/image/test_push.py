"""Pushing: exactly the verified image arrives, by both compressions; whatever fails pushes nothing."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.image.support import Built, Images, copy_project, differences, error_line, greenroom, succeeded

from greenroom.files import cache_dir
from greenroom.process import end_process_group
from local_registry import Registry, registry_packages, start_registry

WRITES = {"POST", "PATCH", "PUT", "DELETE"}
LAYER_TYPE = {
    "gzip": "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "zstd": "application/vnd.oci.image.layer.v1.tar+zstd",
}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """An empty registry on the loopback interface."""
    root = registry_packages(cache_dir() / "registry")
    started = start_registry(root, tmp_path_factory.mktemp("registry") / "data")
    yield started
    end_process_group(started.child)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_what_is_pushed_is_what_was_verified(
    compression: str, registry: Registry, images: Images, tiny_image: Built
) -> None:
    reference = registry.reference("team/tiny", compression)
    words: list[str | Path] = ["--project", tiny_image.project, "--tag", tiny_image.tag, "--compression", compression]
    done = succeeded(greenroom("push", "--to", reference, *words, "--json"))
    images.tags.append(reference)
    pushed = json.loads(done.stdout)
    assert pushed == json.loads((tiny_image.project / "build" / "push.json").read_text())
    assert pushed["reference"] == reference and pushed["compression"] == compression
    # The tag moves last, once, and when everything else has arrived.
    sent = [(verb, path) for verb, path, code in registry.served("team/tiny") if verb in WRITES and code < 400]
    moved = ("PUT", f"/v2/team/tiny/manifests/{compression}")
    assert sent[-1] == moved and sent.count(moved) == 1
    manifest = registry.manifest("team/tiny", pushed["digest"])
    assert manifest == registry.manifest("team/tiny", compression)
    image_id = images.id_of(tiny_image.tag)
    layers = images.engine.client().images.get(tiny_image.tag).attrs["RootFS"]["Layers"]
    assert [layer["mediaType"] for layer in manifest["layers"]] == [LAYER_TYPE[compression]] * len(layers)
    if compression == "gzip":
        assert manifest["config"]["digest"] == image_id
    # What a node gets: pulled by its digest, it has the same layers and passes the same verification.
    by_digest = f"{registry.reference('team/tiny', compression).rsplit(':', 1)[0]}@{pushed['digest']}"
    images.engine.cli("pull", "--quiet", by_digest, changes=True, timeout=120)
    images.tags.append(by_digest)
    assert images.engine.client().images.get(by_digest).attrs["RootFS"]["Layers"] == layers
    assert differences(tiny_image.project, by_digest) == (0, [])


def test_a_second_push_sends_nothing_again(registry: Registry, images: Images, tiny_image: Built) -> None:
    words: list[str | Path] = ["--project", tiny_image.project, "--tag", tiny_image.tag]
    for tag in ("first", "second"):
        images.tags.append(registry.reference("team/again", tag))
        before = registry.stored_bytes()
        # The image's label of its creation is the one thing that differs between two builds of one plan.
        variables = {"SOURCE_DATE_EPOCH": "1700000000"}
        done = succeeded(greenroom("push", "--to", registry.reference("team/again", tag), *words, variables=variables))
    assert registry.stored_bytes() == before
    assert "layer already exists" in done.stderr
    assert done.stdout.splitlines()[-1].startswith(f"{registry.reference('team/again', 'second')}@sha256:")


def test_an_image_that_cannot_be_built_is_not_pushed(
    registry: Registry, images: Images, tiny: Path, tmp_path: Path
) -> None:
    project = copy_project(tiny, tmp_path / "tiny")
    manifest = project / "actor_environments.py"
    manifest.write_text(manifest.read_text().replace("'tiny.LeftToo'", "'other.Left'"))
    reference = registry.reference("team/wrong", "latest")
    done = greenroom("push", "--to", reference, "--project", project, "--tag", images.tag("not-pushed"))
    assert done.returncode == 4
    with pytest.raises(urllib.error.HTTPError, match="404"):
        registry.manifest("team/wrong", "latest")


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_a_registry_that_does_not_answer(compression: str, images: Images, tiny_image: Built) -> None:
    reference = "127.0.0.1:9/team/tiny:latest"
    images.tags.append(reference)
    words: list[str | Path] = ["--project", tiny_image.project, "--tag", tiny_image.tag, "--compression", compression]
    done = greenroom("push", "--to", reference, *words)
    assert done.returncode == 7
    assert f"{reference} cannot be pushed" in error_line(done)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--to", "registry.test/name@sha256:" + "0" * 64], "names a digest"),
        (["--to", "Registry/NAME:x"], "is no image reference"),
        (["--to", "registry.test/name:x", "--compression", "lzma"], "unknown compression 'lzma'"),
    ],
)
def test_what_is_asked_for_is_checked_before_anything_is_built(words: list[str], said: str, tiny: Path) -> None:
    done = greenroom("push", "--project", tiny, *words)
    assert done.returncode == 2
    assert said in error_line(done)
    assert "greenroom: plan" not in done.stderr
