"""`size` and `diff` of real images: they agree with what is seen inside, and name a change exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.image.support import VENV_DIR, Built, Images, error_line, greenroom, succeeded

from greenroom.slots import SLOTS

SITE = "lib/python3.13/site-packages"
INSIDE = f"""
import json, os
def look(root):
    files, entries = {{}}, 0
    for directory, directories, names in os.walk(root):
        entries += len(directories) + len(names)
        for name in names:
            path = os.path.join(directory, name)
            status = os.lstat(path)
            if not os.path.islink(path):
                files[status.st_dev, status.st_ino] = status.st_size, path.endswith(".pyc") and "/__pycache__/" in path
    return {{
        "entries": entries,
        "bytes": sum(size for size, _ in files.values()),
        "bytecode": sum(size for size, compiled in files.values() if compiled),
    }}
sets = {VENV_DIR + "/.sets"!r}
print(json.dumps({{"all": look({VENV_DIR!r})}} | {{name: look(os.path.join(sets, name)) for name in os.listdir(sets)}}))
"""


def figures(*words: str) -> dict[str, Any]:
    """Return what a command prints as JSON."""
    found: dict[str, Any] = json.loads(succeeded(greenroom(*words, "--json")).stdout)
    return found


def test_sizes_agree_with_what_is_seen_inside(default_image: Built, images: Images) -> None:
    inside = images.python(default_image.tag, INSIDE)
    sizes = figures("size", default_image.tag)
    whole = inside.pop("all")
    assert (sizes["venv_size"], sizes["venv_entries"]) == (whole["bytes"], whole["entries"])
    assert sizes["bytecode"] == whole["bytecode"]
    assert {venv["name"]: (venv["total"], venv["entries"], venv["bytecode"]) for venv in sizes["venvs"]} == {
        name: (found["bytes"], found["entries"], found["bytecode"]) for name, found in inside.items()
    }
    blocks = int(images.run(default_image.tag, "du", "-sk", "--apparent-size", VENV_DIR).split()[0])
    directories = int(images.run(default_image.tag, "sh", "-c", f"find {VENV_DIR} -type d | wc -l"))
    # du adds its own idea of what directories and links take.
    assert sizes["venv_size"] <= blocks * 1024 <= sizes["venv_size"] + directories * 65536


def test_sizes_name_the_plans_actors_and_distributions(default_image: Built) -> None:
    sizes, plan = figures("size", default_image.tag), default_image.plan
    expected: dict[str, list[str]] = {}
    for actor in plan["actors"]:
        if actor["included"]:
            expected.setdefault(actor["environment_set"], []).append(actor["fqn"])
    assert {venv["name"]: venv["actors"] for venv in sizes["venvs"]} == {k: sorted(v) for k, v in expected.items()}
    found = {row["name"] for row in sizes["distributions"]}
    assert {"ray", "math-verify", "hydra-core", "onnxruntime"} <= found
    totals = [venv["total"] for venv in sizes["venvs"]]
    assert totals == sorted(totals, reverse=True)
    assert sum(row["size"] + row["bytecode"] for row in sizes["distributions"]) == sizes["venv_size"]
    # Every byte is paid once: nothing is written in one layer and again, or removed, in another.
    assert sizes["venv_stored"] == sizes["venv_size"]
    assert sum(layer["venv_size"] for layer in sizes["layers"]) == sizes["venv_stored"]
    assert {layer["hidden"] for layer in sizes["layers"] if layer["venv_size"]} == {0}


def test_sizes_are_printed_for_people_on_stdout(tiny_image: Built) -> None:
    done = succeeded(greenroom("size", tiny_image.tag))
    assert done.stdout.startswith(f"{tiny_image.tag}: ")
    assert "six 1.17.0" in done.stdout
    assert all(line.startswith("greenroom: ") for line in done.stderr.splitlines())


def test_an_image_does_not_differ_from_itself(tiny_image: Built) -> None:
    found = figures("diff", tiny_image.tag, tiny_image.tag)
    assert found["same"] is True
    assert (found["venvs_same"], found["new_size"], found["new_share"]) == (5, 0, 0)


def test_a_change_is_named_exactly(tiny_image: Built, images: Images) -> None:
    left, right = (f"{VENV_DIR}/.sets/{name}/{SITE}" for name in ("left", "right"))
    shell = [
        f"rm -r {left}/idna {left}/idna-*.dist-info",
        f"echo '# changed' > {right}/toolz/__init__.py",
        f"rm {VENV_DIR}/tiny.Alone",
    ]
    tag = images.derive("derived", tiny_image.tag, f"RUN {json.dumps(['/bin/sh', '-ec', ' && '.join(shell)])}")
    found = figures("diff", tiny_image.tag, tag)
    assert (found["venvs_removed"], found["venvs_added"], found["venvs_same"]) == (["tiny.Alone"], [".sets/@base"], 1)
    first, second = found["changes"]
    assert first["venvs"] == ["tiny.Left", "tiny.LeftToo"]
    assert list(first["removed"]) == ["idna"]
    # Its script is left behind, and belongs to nobody now.
    assert (first["added"], first["changed"], first["rebuilt"], first["files"]) == ({}, {}, [], ["bin/idna"])
    assert (second["venvs"], second["rebuilt"]) == (["tiny.Right"], ["toolz"])
    assert (second["added"], second["removed"], second["changed"], second["files"]) == ({}, {}, {}, [])
    (layer,) = found["layers_new"]
    assert (layer["size"], layer["venv_size"], found["layers_gone"]) == (len("# changed\n"), len("# changed\n"), [])
    assert found["new_size"] == len("# changed\n")

    # Both's set still has what was removed from others: those were hardlinks, and no byte is hidden.
    assert sum(layer["hidden"] for layer in figures("size", tag)["layers"]) == 0
    lines = succeeded(greenroom("diff", tiny_image.tag, tag)).stdout.splitlines()
    assert lines[:2] == ["+ venv .sets/@base", "- venv tiny.Alone"]
    assert "    ~ toolz: the same version, other files" in lines


def test_an_unknown_image_is_bad_usage() -> None:
    for words in (["size", "greenroom-test-none:none"], ["diff", "greenroom-test-none:none", "greenroom-test-none:b"]):
        done = greenroom(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert "no image greenroom-test-none:none" in error_line(done)


def test_timings_tell_each_slot_its_seconds_and_its_layers_bytes(tiny_image: Built, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    words = ["--project", str(tiny_image.project), "--tag", tiny_image.tag, "--timings", "--no-cache"]
    succeeded(greenroom("image", *words, variables={"GITHUB_STEP_SUMMARY": str(summary)}))
    steps = json.loads((tiny_image.project / "build" / "timings.json").read_text())["steps"]
    slots = {step["step"]: step for step in steps if step["step"].startswith("slot ")}
    assert len(slots) == SLOTS
    filled = {name: step for name, step in slots.items() if not name.endswith(": nothing")}
    # Each file of the plan is in one slot, and each slot is named by its largest distribution.
    assert 0 < len(filled) <= len(tiny_image.plan["artifacts"])
    assert all(step["bytes"] > 0 and step["seconds"] > 0 and not step["cached"] for step in filled.values())
    assert all(name in summary.read_text() for name in slots)
    assert all(name in (tiny_image.project / "build" / "timings.html").read_text() for name in slots)
