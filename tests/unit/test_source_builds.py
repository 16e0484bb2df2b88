"""What is built from source, and how: uv's own settings, and the stages that compile."""

from __future__ import annotations

from pathlib import Path

import pytest

from greenroom.errors import UsageError
from greenroom.lock import Artifact
from greenroom.source_builds import (
    BuildSettings,
    SourceBuildRules,
    check_mounted,
    check_stages,
    plan_builds,
    read_rules,
)


def rules(tmp_path: Path, text: str) -> SourceBuildRules:
    (tmp_path / "pyproject.toml").write_text(text)
    return read_rules(tmp_path / "pyproject.toml")


def source(name: str, kind: str = "sdist", version: str = "1.0") -> Artifact:
    return Artifact(filename=f"{name}-{version}.{kind}", name=name, version=version, sha256="0" * 64, size=9, kind=kind)


def test_a_project_that_says_nothing_builds_in_isolation(tmp_path: Path) -> None:
    found = rules(tmp_path, '[project]\nname = "x"\n')
    assert found.settings_of("thing", {}) == BuildSettings()
    assert (found.stage_of("thing"), found.wants_source("thing"), found.exclude_newer) == ("", False, "")


SETTINGS = """
[tool.uv]
exclude-newer = "2026-11-25T00:00:00Z"
no-binary-package = ["Only_Source"]
no-build-isolation-package = ["with.torch"]
config-settings = { verbose = true }
[tool.uv.config-settings-package]
Some_Thing = { "build-dir" = "b", define = ["A=1", "B=2"] }
[tool.uv.extra-build-variables]
some-thing = { Z = "1", CMAKE_ARGS = "-DX=ON" }
[tool.uv.extra-build-dependencies]
some-thing = ["ninja>=1", { requirement = "torch", match-runtime = true }]
"""


def test_uv_s_settings_are_heard_whatever_their_spelling(tmp_path: Path) -> None:
    found = rules(tmp_path, SETTINGS)
    assert found.exclude_newer == "2026-11-25T00:00:00Z"
    assert found.settings_of("some-thing", {"torch": "2.9.1"}) == BuildSettings(
        variables=(("CMAKE_ARGS", "-DX=ON"), ("Z", "1")),
        config_settings=(("build-dir", "b"), ("define", "A=1"), ("define", "B=2"), ("verbose", "true")),
        requirements=("ninja>=1", "torch==2.9.1"),
    )
    assert found.settings_of("other", {}) == BuildSettings(config_settings=(("verbose", "true"),))
    assert not found.settings_of("with-torch", {}).isolated
    assert found.wants_source("only-source") and not found.wants_source("some-thing")


def test_a_requirement_that_is_to_match_must_be_in_the_venv(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="some-thing is to be built with the torch of its venv"):
        rules(tmp_path, SETTINGS).settings_of("some-thing", {"six": "1"})


MALFORMED = {
    "no table": 'source-built = ["x"]',
    "no list": 'source-built = { late = "x" }',
    "an empty list": "source-built = { late = [] }",
    "no names": "source-built = { late = [1] }",
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_table_is_refused(tmp_path: Path, case: str) -> None:
    with pytest.raises(UsageError, match="is not a table of lists"):
        rules(tmp_path, f"[tool.greenroom]\n{MALFORMED[case]}\n")


def test_more_stages_than_places_and_one_distribution_twice_are_refused(tmp_path: Path) -> None:
    table = ", ".join(f'{stage} = ["{stage}"]' for stage in "abcd")
    with pytest.raises(UsageError, match="has 4 stages; an image has places for 3"):
        rules(tmp_path, f"[tool.greenroom]\nsource-built = {{ {table} }}\n")
    with pytest.raises(UsageError, match="lists some-thing twice"):
        rules(tmp_path, '[tool.greenroom]\nsource-built = { a = ["some-thing"], b = ["Some_Thing"] }\n')


def test_a_stage_must_be_one_of_the_manifest(tmp_path: Path) -> None:
    found = rules(tmp_path, '[tool.greenroom]\nsource-built = { late = ["x"] }\n')
    check_stages(found, {"deps", "late"})
    with pytest.raises(UsageError, match="names late, which is no stage of the manifest"):
        check_stages(found, {"deps"})


def test_builds_say_who_compiles_and_what_is_in_the_environment(tmp_path: Path) -> None:
    found = rules(
        tmp_path,
        '[tool.greenroom]\nsource-built = { late = ["heavy"] }\n[tool.uv]\nno-build-isolation-package = ["heavy"]\n',
    )
    sets = {"one": [source("antlr")], "two": [source("heavy"), source("torch", "wheel"), source("antlr")]}
    builds = plan_builds(found, sets, {"one": "deps", "two": "late"})
    assert [(build.filename, build.stage, build.requires) for build in builds] == [
        ("antlr-1.0.sdist", "", ()),
        ("heavy-1.0.sdist", "late", ("torch-1.0.wheel",)),
    ]


def test_venvs_of_an_earlier_stage_cannot_wait_for_a_compile(tmp_path: Path) -> None:
    found = rules(tmp_path, '[tool.greenroom]\nsource-built = { late = ["heavy"] }\n')
    sets = {"one": [source("heavy")], "two": [source("heavy")]}
    with pytest.raises(UsageError, match="heavy is compiled in stage late, and the venvs of one need it too"):
        plan_builds(found, sets, {"one": "deps", "two": "late"})


def test_a_stage_that_compiles_nothing_is_refused_when_its_venvs_are_planned(tmp_path: Path) -> None:
    found = rules(tmp_path, '[tool.greenroom]\nsource-built = { late = ["hevy"] }\n')
    with pytest.raises(UsageError, match="late compiles hevy, which no venv of that stage needs"):
        plan_builds(found, {"two": [source("heavy")]}, {"two": "late"})
    assert plan_builds(found, {"one": []}, {"one": "deps"}) == ()


MALFORMED_UV = [
    'extra-build-variables = { six = "x" }',
    'extra-build-dependencies = { six = "x" }',
    'config-settings-package = { six = ["x"] }',
    'config-settings = "x"',
    "no-binary-package = 5",
    'no-build-isolation-package = "six"',
]


@pytest.mark.parametrize("line", MALFORMED_UV)
def test_a_malformed_setting_of_uv_is_refused_in_one_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(UsageError, match=line.split(" ")[0]):
        rules(tmp_path, f"[tool.uv]\n{line}\n")


@pytest.mark.parametrize("path", ["relative", "/two\\nlines", ""])
def test_a_mounted_path_is_absolute_and_one_line(tmp_path: Path, path: str) -> None:
    with pytest.raises(UsageError, match="is not a table of absolute paths"):
        rules(tmp_path, f'[tool.greenroom.mounted]\nmember = "{path}"\n')


def test_what_is_mounted_must_lie_in_the_project(tmp_path: Path) -> None:
    found = rules(tmp_path, '[tool.greenroom.mounted]\nMember_One = "/w"\n')
    check_mounted(found, {"member-one", "other"})
    with pytest.raises(UsageError, match="names member-one, which the lock does not take from the project"):
        check_mounted(found, {"other"})
