"""The repository's own image, as the console script builds it, looked at from inside as its users do."""

from __future__ import annotations

import json
import re

import pytest
from tests.image.support import COMPILED, REPO, VENV_DIR, Built, Images, differences

from greenroom.actor_environments import ACTOR_ENVIRONMENTS, rows

BUILT = rows(skip=[COMPILED])
FQNS = [fqn for fqn, _, _ in BUILT]
SETS = {fqn: "+".join(sorted(extras)) for fqn, _, extras in BUILT}
EPOCH = 315532800

WALK = f"""
import json, os
root, found = {VENV_DIR!r}, {{"times": [], "closed": [], "count": 0}}
def look(path):
    status = os.lstat(path)
    found["count"] += 1
    if status.st_mtime != {EPOCH}:
        found["times"].append(path)
    if not os.path.islink(path) and not os.access(path, os.R_OK | (os.X_OK if os.path.isdir(path) else 0)):
        found["closed"].append(path)
def stop(error):
    raise error
look(root)
for directory, directories, files in os.walk(root, onerror=stop):
    for name in directories + files:
        look(os.path.join(directory, name))
print(json.dumps(found))
"""


def test_the_image_is_built_and_verified(default_image: Built, images: Images) -> None:
    last = default_image.done.stdout.splitlines()[-1]
    assert re.fullmatch(r"[1-9]\d* passed, 0 failed", last)
    report, plan = default_image.report, default_image.plan
    assert (report["schema"], report["ok"], report["failed"], report["differences"]) == (1, True, 0, [])
    assert sorted(report["venvs"]) == FQNS
    assert all(venv["ok"] and set(venv["checks"].values()) == {"ok"} for venv in report["venvs"].values())
    assert (plan["schema"], plan["skip"], plan["stage"]) == (1, [COMPILED], "all")
    assert [actor["fqn"] for actor in plan["actors"] if actor["included"]] == FQNS
    assert report["plan"] == plan["digest"]
    assert images.id_of(default_image.tag)
    assert images.id_of(f"{default_image.tag}-unverified") is None


def test_verifying_again_agrees(default_image: Built) -> None:
    assert differences(REPO, default_image.tag, "--skip", COMPILED) == (0, [])


@pytest.mark.parametrize("fqn", FQNS)
def test_an_actor_imports_in_its_venv(default_image: Built, images: Images, fqn: str) -> None:
    module, _, name = fqn.rpartition(".")
    code = f"import json, sys, {module}, ray; print(json.dumps([{module}.{name}.__name__, sys.prefix]))"
    interpreter = f"{VENV_DIR}/{fqn}/bin/python"
    assert images.python(default_image.tag, code, interpreter=interpreter) == [name, f"{VENV_DIR}/{fqn}"]


@pytest.mark.parametrize("fqn", FQNS)
def test_a_wrapper_runs_its_actors_venv(default_image: Built, images: Images, fqn: str) -> None:
    code = "import json, sys; print(json.dumps([sys.prefix, sys.argv[1:]]))"
    told = images.run(default_image.tag, f"python-{fqn.rpartition('.')[2]}", "-c", code, "two words", "")
    assert json.loads(told) == [f"{VENV_DIR}/{fqn}", ["two words", ""]]


def test_actors_of_the_driver_have_no_venv(default_image: Built, images: Images) -> None:
    found = images.python(default_image.tag, f"import json, os; print(json.dumps(os.listdir({VENV_DIR!r})))")
    assert sorted(set(found) - {".sets"}) == FQNS
    assert None in ACTOR_ENVIRONMENTS.values()


@pytest.mark.parametrize(("answer", "reward"), [(r"\frac{2}{4}", 1.0), ("0.25", 0.0)])
def test_the_math_actor_really_judges(default_image: Built, images: Images, answer: str, reward: float) -> None:
    reply = rf"It is \boxed{{{answer}}}."
    code = f"""
import json
from greenroom.environments.math_environment import MathEnvironment
log = [{{"role": "assistant", "content": {reply!r}}}]
print(json.dumps(MathEnvironment().step([log], [{{"expected_answer": "1/2"}}]).rewards))
"""
    interpreter = f"{VENV_DIR}/greenroom.environments.math_environment.MathEnvironment/bin/python"
    assert images.python(default_image.tag, code, interpreter=interpreter) == [reward]


def test_conflicting_versions_live_side_by_side(default_image: Built, images: Images) -> None:
    code = "import json, importlib.metadata as m; print(json.dumps(m.version('antlr4-python3-runtime')))"
    versions = {
        SETS[fqn]: images.python(default_image.tag, code, interpreter=f"{VENV_DIR}/{fqn}/bin/python")
        for fqn in FQNS
        if SETS[fqn] in {"math", "gymnasium"}
    }
    assert versions == {"math": "4.13.2", "gymnasium": "4.9.3"}


def test_labels_say_what_the_image_is(default_image: Built, images: Images) -> None:
    told = images.engine.cli("image", "inspect", "--format", "{{json .Config.Labels}}", default_image.tag).stdout
    labels = json.loads(told)
    plan = default_image.plan
    assert labels["org.greenroom.plan.digest"] == plan["digest"]
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", labels["org.greenroom.manifest.digest"])
    assert (labels["org.greenroom.skip"], labels["org.greenroom.stage"]) == (COMPILED, "all")
    assert labels["org.greenroom.venv-dir"] == VENV_DIR
    assert labels["org.greenroom.python"] == plan["target"]["python"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", labels["org.greenroom.uv"])
    assert labels["org.opencontainers.image.title"] == "greenroom"
    assert labels["org.opencontainers.image.version"] == plan["project"][1]
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?|", labels["org.opencontainers.image.revision"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", labels["org.opencontainers.image.created"])


def test_every_file_is_readable_for_everyone_and_has_the_fixed_time(default_image: Built, images: Images) -> None:
    found = images.python(default_image.tag, WALK)
    assert found["count"] > 10_000
    assert (found["closed"], found["times"]) == ([], [])


def test_sets_share_files(default_image: Built, images: Images) -> None:
    code = f"""
import glob, json, os
files = glob.glob("{VENV_DIR}/.sets/*/lib/python3*/site-packages/ray/__init__.py")
print(json.dumps([[os.stat(file).st_ino, os.stat(file).st_nlink] for file in files]))
"""
    found = images.python(default_image.tag, code)
    count = len(set(SETS.values()))
    assert len(found) == count
    assert len({inode for inode, _ in found}) == 1
    assert {links for _, links in found} == {count}
