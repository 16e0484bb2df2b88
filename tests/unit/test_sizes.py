"""Sizes of hand-made images: own, shared, bytecode; by venv, distribution and layer."""

from __future__ import annotations

import json

import pytest
from tests.unit.layers import SITE, VENVS, Maker, file, layers, one_set, symlink, two_sets

from greenroom import size_report
from greenroom.image_tree import Image, file_system
from greenroom.sizes import (
    Sizes,
    duplication,
    find_venvs,
    is_bytecode,
    measure,
    stored_venv_bytes,
    unique_venv_bytes,
    venv_bytes,
    venv_bytes_by_layer,
    venv_entries,
)


def test_venvs_are_real_directories_with_the_actors_that_lead_to_them() -> None:
    found = find_venvs(
        file_system(
            layers(
                [
                    file(f"{VENVS}/.sets/one/bin/python"),
                    file(f"{VENVS}/.sets/unused/bin/python"),
                    symlink(f"{VENVS}/b.B", ".sets/one"),
                    symlink(f"{VENVS}/a.A", f"{VENVS}/.sets/one"),
                    symlink(f"{VENVS}/gone.C", ".sets/none"),
                    file(f"{VENVS}/real.D/bin/python"),
                    file(f"{VENVS}/notes.txt"),
                ]
            )
        ),
        VENVS,
    )
    assert [(venv.name, venv.actors) for venv in found] == [
        ("one", ("a.A", "b.B")),
        ("unused", ()),
        ("real.D", ("real.D",)),
    ]


def metadata_bytes(image: Image, *names: str) -> int:
    """Return the bytes of the RECORD and METADATA files of distributions in the left set."""
    nodes = dict(image.tree.below(f"{VENVS}/.sets/left")).items()
    return sum(
        node.size for path, node in nodes if any(f"/{name}-" in path and ".dist-info/" in path for name in names)
    )


def test_a_file_of_one_venv_is_its_own_and_of_several_is_shared() -> None:
    image = two_sets()
    torch, six = metadata_bytes(image, "Torch_X"), metadata_bytes(image, "six")
    left, right = measure(image).venvs
    assert (left.venv.name, right.venv.name) == ("left", "right")
    assert (left.own, left.shared, left.bytecode, left.total) == (30 + six, 100 + torch, 11, 141 + six + torch)
    assert (right.own, right.shared, right.bytecode, right.total) == (7, 100 + torch, 0, 107 + torch)
    assert (left.distributions, right.distributions) == (2, 1)
    # bin, lib, python3.13, site-packages, torch, two dist-infos, __pycache__; and the files
    assert left.entries == 8 + 2 + 2 + 1 + 2 + 1


def test_a_distribution_owns_what_its_record_names_and_its_bytecode() -> None:
    image = two_sets()
    rows = {(row.name, row.version): row for row in measure(image).distributions}
    assert list(rows) == [("torch-x", "2.0+cpu"), ("six", "1.0"), ("", "")]
    torch = rows["torch-x", "2.0+cpu"]
    assert (torch.size, torch.bytecode, torch.files) == (100 + metadata_bytes(image, "Torch_X"), 0, 4)
    assert torch.venvs == ("left", "right")
    assert (rows["six", "1.0"].size, rows["six", "1.0"].bytecode) == (30 + metadata_bytes(image, "six"), 11)
    assert (rows["", ""].size, rows["", ""].venvs) == (7, ("right",))


def test_the_parts_add_up_to_the_whole() -> None:
    image = two_sets()
    sizes = measure(image)
    assert sum(row.size + row.bytecode for row in sizes.distributions) == sizes.venv_size
    assert sum(layer.size for layer in sizes.layers) == sizes.size
    assert sum(layer.venv_size for layer in sizes.layers) == sizes.venv_stored == sum(venv_bytes_by_layer(image))
    assert sum(layer.hidden for layer in sizes.layers) == 5 == sizes.venv_stored - sizes.venv_size
    assert sizes.venv_size == venv_bytes(image.tree, VENVS)
    assert sizes.venv_entries == venv_entries(image.tree, VENVS)
    assert sizes.bytecode == 11
    by_index = {layer.index: layer for layer in sizes.layers}
    assert [by_index[index].entries for index in range(4)] == [1, 8, 5, 3]
    assert [name for name, _ in by_index[2].largest] == ["six 1.0"]


def test_equal_content_in_two_files_is_counted_once_as_unique() -> None:
    image = Maker().image([file(f"{VENVS}/a.A/f", "x" * 8)], [file(f"{VENVS}/b.B/f", "x" * 8), file("/f", "x" * 8)])
    assert venv_bytes(image.tree, VENVS) == 16
    assert unique_venv_bytes(image.tree, VENVS) == 8
    assert stored_venv_bytes(image) == 16
    assert duplication(image) == 2.0
    assert duplication(Maker().image([])) == 1.0


def test_a_path_that_two_distributions_record_counts_once() -> None:
    make = Maker()
    place = f"{VENVS}/a.A"
    entries = make.installed(place, "one", "1", {"ns.py": "12345"}) + make.installed(
        place, "two", "1", {"ns.py": "12345"}
    )
    sizes = measure(make.image(entries))
    assert sum(row.size for row in sizes.distributions) == sizes.venv_size
    assert {row.name: row.files for row in sizes.distributions} == {"one": 3, "two": 2}


def test_a_distribution_without_metadata_goes_by_its_directory() -> None:
    make = Maker()
    place = f"{VENVS}/a.A/{SITE}/Some_Name-1.5.dist-info"
    sizes = measure(make.image([make.text(f"{place}/RECORD", "Some_Name-1.5.dist-info/RECORD,,\n")]))
    assert [(row.name, row.version) for row in sizes.distributions] == [("some-name", "1.5")]


def test_an_image_without_venvs_has_sizes_of_layers() -> None:
    sizes = measure(Maker().image([file("/a", "text")]))
    assert (sizes.venvs, sizes.distributions, sizes.venv_size, sizes.size) == ((), (), 0, 4)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/s/__pycache__/a.cpython-313.pyc", True),
        ("/s/a.pyc", False),
        ("/s/__pycache__/a.py", False),
        ("/s/x__pycache__/a.pyc", False),
    ],
)
def test_bytecode_is_a_pyc_file_in_its_place(path: str, expected: bool) -> None:
    assert is_bytecode(path) is expected


def test_json_has_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = measure(two_sets())
    value = json.loads(json.dumps(size_report.sizes_json(sizes)))
    assert value["schema"] == 1
    assert [(row["name"], row["actors"]) for row in value["venvs"]] == [("left", ["a.A"]), ("right", ["b.B"])]
    assert all(row["own"] + row["shared"] + row["bytecode"] == row["total"] for row in value["venvs"])
    assert [row["size"] for row in value["layers"]] == [layer.size for layer in sizes.layers]
    assert set(value) == {"schema", *Sizes.__dataclass_fields__}
    size_report.print_sizes(sizes)
    out = capsys.readouterr().out
    assert "torch-x 2.0+cpu" in out
    assert "(the venvs themselves)" in out


def test_many_distributions_are_cut_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    make = Maker()
    names = [f"d{number:02}" for number in range(25)]
    size_report.print_sizes(measure(one_set(make, **dict.fromkeys(names, "1"))))
    assert "5 more, see --json" in capsys.readouterr().out
