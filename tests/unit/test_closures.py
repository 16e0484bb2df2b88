"""The reviewed closures: what is committed covers every set, holds no address, and names what changed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from greenroom.closures import Listing, check_closures, differences, locked_closures, parse, render
from greenroom.errors import LockError
from greenroom.manifest import read_rows
from greenroom.project import load_project
from greenroom.stamps import set_name

REPOSITORY = Path(__file__).parents[2]

LISTINGS: list[Listing] = [
    {},
    {"@base": {}},
    {"a": {"one": "1.0 sha256:00"}},
    {"a+b": {"two": "1.0 sha256:00", "one": "2!1.0+cpu sha256:11"}, "@base": {"one": "1 sha256:22"}},
]


@pytest.mark.parametrize("listing", LISTINGS)
def test_what_is_rendered_is_parsed_back(listing: Listing) -> None:
    assert parse(render(listing)) == listing


def test_the_order_of_a_listing_does_not_show() -> None:
    one: Listing = {"b": {"y": "1 h", "x": "1 h"}, "a": {}}
    two: Listing = {"a": {}, "b": {"x": "1 h", "y": "1 h"}}
    assert render(one) == render(two)
    assert render(one).endswith("\n[a]\n\n[b]\nx 1 h\ny 1 h\n")


@pytest.mark.parametrize("text", ["one 1.0 sha256:00\n", "[a]\none\n", "[a]\n\n[b\n", "[a]\none \n"])
def test_a_malformed_line_is_shown(text: str) -> None:
    with pytest.raises(LockError, match="malformed line") as caught:
        parse(text)
    assert caught.value.exit_code == 5


BEFORE: Listing = {"a": {"one": "1.0 sha256:0123456789abcdef"}}

DIFFERENCES: list[tuple[Listing, list[str]]] = [
    (BEFORE, []),
    ({"a": {"one": "2.0 sha256:fedcba9876543210"}}, ["one: 1.0 sha256:0123456789ab -> 2.0 sha256:fedcba987654 (a)"]),
    ({"a": {"one": "1.0 sha256:fedcba9876543210"}}, ["one: 1.0 sha256:0123456789ab -> 1.0 sha256:fedcba987654 (a)"]),
    ({"a": {**BEFORE["a"], "two": "1.0 sha256:00"}}, ["two: absent -> 1.0 sha256:00 (a)"]),
    ({"a": {}}, ["one: 1.0 sha256:0123456789ab -> absent (a)"]),
    ({}, ["set a: no longer in the manifest"]),
    ({**BEFORE, "b": {"one": "1.0 sha256:00"}}, ["set b: new in the manifest"]),
    ({**BEFORE, "b": {}}, ["set b: new in the manifest"]),
]


def test_a_change_in_several_sets_is_one_line() -> None:
    before: Listing = {name: {"one": "1.0 sha256:00"} for name in "abc"}
    after: Listing = {**before, "a": {"one": "2.0 sha256:00"}, "c": {"one": "2.0 sha256:00"}}
    assert differences(before, after) == ["one: 1.0 sha256:00 -> 2.0 sha256:00 (a, c)"]


@pytest.mark.parametrize(("locked", "lines"), DIFFERENCES)
def test_differences_name_what_changed_and_where(locked: Listing, lines: list[str]) -> None:
    assert differences(BEFORE, locked) == lines


def test_the_committed_listing_covers_exactly_the_manifests_sets() -> None:
    project = load_project(REPOSITORY)
    assert project.closures is not None
    text = project.closures.read_text()
    listing = parse(text)
    assert set(listing) == {set_name(row.extras) for row in read_rows(project.manifest)}
    assert render(listing) == text


def test_the_committed_listing_holds_names_versions_and_hashes_only() -> None:
    text = (REPOSITORY / "closures.txt").read_text()
    assert "://" not in text
    lines = [line for line in text.splitlines() if line and not line.startswith(("#", "["))]
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+ [0-9][\w.!+]* sha256:[0-9a-f]{64}", line)] == []


@pytest.fixture
def reviewed(own_uv: None, locked: Path, tmp_path: Path) -> Path:
    """A locked project with a manifest of two sets and without a listing yet."""
    root = shutil.copytree(locked, tmp_path / "project")
    rows = "print('a.One\\tdeps\\t--extra one\\na.Two\\tdeps\\t--extra two\\na.Three\\tdeps\\t--extra two')"
    (root / "actor_environments.py").write_text(rows)
    with (root / "pyproject.toml").open("a") as file:
        file.write('\n[tool.greenroom]\nclosures = "closures.txt"\n')
    return root


def test_a_lock_is_checked_against_its_listing(uv: str, reviewed: Path) -> None:
    project = load_project(reviewed)
    with pytest.raises(LockError, match=r"no reviewed closures at closures\.txt"):
        check_closures(uv, project)
    listing = locked_closures(uv, project)
    assert {name: sorted(closure) for name, closure in listing.items()} == {
        "one": ["base", "needs-helper", "shared"],
        "two": ["base", "shared"],
    }
    (reviewed / "closures.txt").write_text(render(listing))
    check_closures(uv, project)
    listing["two"]["shared"] = "1.9 sha256:0000"
    (reviewed / "closures.txt").write_text(render(listing))
    with pytest.raises(LockError, match=r"shared: 1\.9 sha256:0000 -> 2\.0 sha256:") as caught:
        check_closures(uv, project)
    assert caught.value.exit_code == 5


def test_a_project_without_a_listing_has_nothing_to_check(uv: str, reviewed: Path) -> None:
    text = (reviewed / "pyproject.toml").read_text()
    (reviewed / "pyproject.toml").write_text(text.replace('closures = "closures.txt"', ""))
    check_closures(uv, load_project(reviewed))
