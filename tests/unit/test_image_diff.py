"""What differs between hand-made images: by venv and distribution, and in layers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.unit.layers import SITE, VENVS, Maker, file, one_set, symlink, two_sets

from greenroom import size_report
from greenroom.image_diff import compare_images, new_layer_bytes, new_venv_share
from greenroom.sizes import stored_venv_bytes


def test_an_image_does_not_differ_from_itself() -> None:
    image = two_sets()
    found = compare_images(image, image)
    assert found.is_empty
    assert (found.venvs_same, found.new_size, found.new_share) == (2, 0, 0.0)


def test_distributions_are_added_removed_and_changed_in_every_actor_of_the_set() -> None:
    make = Maker()
    before, after = one_set(make, gone="1", old="1", same="1"), one_set(make, new="3", old="2", same="1")
    found = compare_images(before, after)
    (change,) = found.changes
    assert change.venvs == ("a.A", "b.B")
    assert (change.added, change.removed, change.changed) == ({"new": "3"}, {"gone": "1"}, {"old": ("1", "2")})
    assert (change.rebuilt, change.files) == ((), ())
    assert (len(found.layers_new), len(found.layers_gone), found.venvs_same) == (2, 2, 0)


def test_new_layers_are_weighed_and_shared_ones_are_not() -> None:
    make = Maker()
    before, after = one_set(make, a="1", b="1"), one_set(make, a="1", b="2")
    found = compare_images(before, after)
    (layer,) = found.layers_new
    assert layer.size == found.new_size == found.new_venv_size == new_layer_bytes(before, after) > 0
    assert found.new_share == new_venv_share(before, after) == layer.size / stored_venv_bytes(after)


def test_equal_layers_are_moved_once() -> None:
    make = Maker()
    twice = [file(f"{VENVS}/a.A/f", "12345")]
    found = compare_images(make.image([]), make.image(twice, twice))
    assert (len(found.layers_new), found.new_size, found.new_share) == (1, 5, 1.0)


def test_layers_that_differ_in_times_only_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    make = Maker()
    before, after = one_set(make, a="1", b="1"), one_set(make, a="1", b="2")
    later = replace(before.layers[0], digest="sha256:later")
    found = compare_images(before, replace(after, layers=(later, *after.layers[1:])))
    assert (len(found.layers_new), found.layers_touched) == (2, {"sha256:later": before.layers[0].digest})
    size_report.print_diff(found)
    assert "1 have the content of a layer of A" in capsys.readouterr().out
    assert compare_images(before, after).layers_touched == {}


def test_venvs_come_and_go_by_name() -> None:
    make = Maker()
    before = make.image([file(f"{VENVS}/a.A/f"), file(f"{VENVS}/.sets/unused/f")])
    after = make.image([file(f"{VENVS}/b.B/f")])
    found = compare_images(before, after)
    assert (found.venvs_added, found.venvs_removed) == (("b.B",), (".sets/unused", "a.A"))


def test_the_same_version_with_other_files_is_rebuilt_and_a_stray_file_is_named() -> None:
    make = Maker()
    place = f"{VENVS}/a.A"
    entries = make.installed(place, "six", "1.0", {"six.py": "old"})
    upper = [
        file(f"{place}/{SITE}/six.py", "new"),
        file(f"{place}/notes", "text"),
        file(f"{place}/greenroom-stamp.json", "{}"),
        file(f"{place}/{SITE}/__pycache__/six.cpython-313.pyc", "code"),
    ]
    (change,) = compare_images(make.image(entries), make.image(entries, upper)).changes
    assert (change.rebuilt, change.files) == (("six",), ("notes",))
    assert not change.added and not change.removed and not change.changed


def test_a_distribution_that_is_there_twice_has_both_versions() -> None:
    make = Maker()
    place = f"{VENVS}/a.A"
    one, two = (make.installed(place, "six", version, {}) for version in ("1.0", "2.0"))
    (change,) = compare_images(make.image(one), make.image(one, two)).changes
    assert change.changed == {"six": ("1.0", "1.0, 2.0")}


def test_a_set_and_a_real_directory_are_compared_by_the_actor() -> None:
    make = Maker()
    one = make.installed(f"{VENVS}/.sets/one", "six", "1.0", {"six.py": "text"})
    other = make.installed(f"{VENVS}/a.A", "six", "1.0", {"six.py": "text"})
    found = compare_images(make.image([*one, symlink(f"{VENVS}/a.A", ".sets/one")]), make.image(other))
    assert (found.changes, found.venvs_same, len(found.layers_new)) == ((), 1, 1)


def test_differences_are_printed_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    make = Maker()
    found = compare_images(one_set(make, gone="1", old="1"), one_set(make, new="3", old="2"))
    value = json.loads(json.dumps(size_report.diff_json(found)))
    assert value["same"] is False
    assert value["changes"][0]["changed"] == {"old": {"from": "1", "to": "2"}}
    size_report.print_diff(found)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == ["~ venv a.A", "~ venv b.B", "    + new 3", "    - gone 1", "    ~ old 1 → 2"]
    assert lines[-1].startswith("image → image: 0 venvs added, 0 removed, 2 changed, 0 the same; 2 new layers, ")
