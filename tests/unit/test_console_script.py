"""The command line as people and scripts use it: words, exit codes, one line for every failure."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from invoke.exceptions import ParseError

from greenroom import process
from greenroom.console_script import main
from greenroom.process import Completed, run
from greenroom.program import check_list_options, join_words
from greenroom.tasks import namespace

REPOSITORY = Path(__file__).parents[2]
GREENROOM = Path(sys.executable).with_name("greenroom")


def greenroom(*words: str, cwd: Path | None = None) -> Completed:
    return run([GREENROOM, *words], cwd=cwd, check=False, timeout=60)


WORDS = [
    ("greenroom engine start", "greenroom engine.start"),
    ("greenroom engine.start", "greenroom engine.start"),
    ("greenroom plan --json", "greenroom plan --json"),
    ("greenroom plan show --json", "greenroom plan.show --json"),
    ("greenroom image build --skip engine", "greenroom image.build --skip engine"),
    ("greenroom -d engine status", "greenroom -d engine.status"),
    ("greenroom --dry -d image verify", "greenroom --dry -d image.verify"),
    ("greenroom engine unknown", "greenroom engine unknown"),
    ("greenroom unknown engine start", "greenroom unknown engine start"),
    ("greenroom image --tag engine start", "greenroom image --tag engine start"),
    ("greenroom verify", "greenroom verify"),
    ("greenroom engine", "greenroom engine"),
    ("greenroom", "greenroom"),
    ("", ""),
]


@pytest.mark.parametrize(("typed", "joined"), WORDS)
def test_words_of_a_command_are_joined(typed: str, joined: str) -> None:
    assert join_words(typed.split()) == joined.split()


@pytest.mark.parametrize("words", ["--skip", "-k", "--skip --stage deps", "--skip a --skip", "-k -j"])
def test_a_list_option_needs_a_value(words: str) -> None:
    with pytest.raises(ParseError, match="needs a value"):
        check_list_options(["plan", *words.split()], {"--skip", "-k"})


@pytest.mark.parametrize("words", [["--skip", "a", "--skip", "b"], ["--skip", ""], ["--skip=a"], ["--json"]])
def test_a_list_option_with_a_value(words: list[str]) -> None:
    check_list_options(["plan", *words], {"--skip", "-k"})


@pytest.fixture
def project(locked: Path, tmp_path: Path, own_uv: None) -> Path:
    """A locked project with a manifest of three actors in two stages."""
    root = shutil.copytree(locked, tmp_path / "project")
    (root / "actor_environments.py").write_text(
        """
import sys
ACTOR_ENVIRONMENTS = {"job.Driver": None}
ROWS = [("job.A", "deps", "--extra one"), ("job.B", "deps", "--extra two"), ("job.C", "late", "--extra native")]
stage, skip = sys.argv[1], sys.argv[2:]
if stage not in {"all", "deps", "late"}:
    sys.exit(f"unknown stage {stage}") or 2
for row in ROWS:
    if stage in {"all", row[1]} and not any(word in row[2].split() for word in skip):
        print("\\t".join(row))
"""
    )
    return root


USAGE = {
    "an unknown command": ["nonsense"],
    "an unknown verb": ["engine", "nonsense"],
    "an unknown option": ["plan", "--nonsense"],
    "an option without its value": ["plan", "--stage"],
    "a list option without its value": ["plan", "--skip"],
    "a word too many": ["matrix", "nonsense"],
    "no project": ["plan", "--project", "/nonexistent"],
    "an unknown stage": ["plan", "--stage", "nonsense"],
    "an unknown skip word": ["plan", "--skip", "on"],
    "no such manifest": ["plan", "--manifest", "nonsense.py"],
    "an unknown format": ["matrix", "--format", "xml"],
    "an unknown variant": ["matrix", "--variant", "nonsense"],
}


@pytest.mark.parametrize("case", USAGE)
def test_bad_usage_is_one_line_and_exit_code_2(
    project: Path, case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    with pytest.raises(SystemExit) as caught:
        main(["greenroom", *USAGE[case]])
    out, err = capsys.readouterr()
    assert (caught.value.code, out) == (2, "")
    assert err.startswith("greenroom: ")
    assert err.count("\n") == 1
    assert " | next: " in err


@pytest.mark.parametrize("case", ["an unknown command", "an unknown option", "an unknown skip word"])
def test_the_program_exits_so_too(project: Path, case: str) -> None:
    done = greenroom(*USAGE[case], cwd=project)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_a_bad_variable_is_bad_usage(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKIP_ONE_BUILD", "perhaps")
    done = greenroom("plan", cwd=project)
    assert done.returncode == 2
    assert "SKIP_ONE_BUILD='perhaps' is neither 1 nor 0" in done.stderr


def test_debug_shows_the_traceback_too() -> None:
    done = greenroom("--debug", "plan", "--project", "/nonexistent")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("greenroom: no pyproject.toml")


@pytest.mark.parametrize("words", [["--help"], [], ["--list"], ["--version"]])
def test_help_is_data_and_no_failure(words: list[str]) -> None:
    done = greenroom(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "greenroom" in done.stdout or "Subcommands" in done.stdout


@pytest.mark.parametrize("words", [["plan"], ["verify"], ["image", "verify"]])
def test_help_names_each_options_meaning(words: list[str]) -> None:
    text = " ".join(greenroom(*words, "--help").stdout.split())
    for meaning in ("an extra to leave out", "the directory of pyproject.toml", "as JSON"):
        assert meaning in text


def test_a_missing_and_a_stale_lock_exit_5(project: Path) -> None:
    (project / "uv.lock").rename(project / "aside")
    done = greenroom("plan", cwd=project)
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.startswith("greenroom: no uv.lock in ")
    (project / "aside").rename(project / "uv.lock")
    text = (project / "pyproject.toml").read_text()
    (project / "pyproject.toml").write_text(text.replace('["base"]', '["base", "shared"]'))
    done = greenroom("plan", cwd=project)
    assert done.returncode == 5
    assert "does not match pyproject.toml" in done.stderr


@pytest.fixture(params=["option", "variable"])
def skip_one(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Skip the extra `one` in either way."""
    if request.param == "option":
        return ["--skip", "one"]
    monkeypatch.setenv("SKIP_ONE_BUILD", "1")
    return []


def test_a_plan_as_json_says_who_is_in_and_why(project: Path, skip_one: list[str]) -> None:
    done = greenroom("plan", "--json", *skip_one, cwd=project)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert {actor["fqn"]: (actor["included"], actor["reason"]) for actor in plan["actors"]} == {
        "job.A": (False, "skips one"),
        "job.B": (True, "needs two"),
        "job.C": (True, "needs native"),
    }
    assert plan["skip"] == ["one"]
    assert plan["driver_actors"] == ["job.Driver"]
    assert plan["closures"] == {"native": {"base": "1.0", "native": "1.0"}, "two": {"base": "1.0", "shared": "2.0"}}
    assert "127.0.0.1" not in done.stdout


def test_a_plan_is_the_same_wherever_the_project_lies(project: Path, tmp_path: Path) -> None:
    other = shutil.copytree(project, tmp_path / "another place")
    first, second = (greenroom("plan", "--json", "--project", str(root)) for root in (project, other))
    assert first.returncode == 0
    assert first.stdout == second.stdout


def test_a_stage_holds_its_own_actors_only(project: Path) -> None:
    plan = json.loads(greenroom("plan", "--json", "--stage", "late", cwd=project).stdout)
    assert {actor["fqn"]: actor["reason"] for actor in plan["actors"]} == {
        "job.A": "stage deps, not late",
        "job.B": "stage deps, not late",
        "job.C": "needs native",
    }


def test_a_plan_for_people(project: Path) -> None:
    done = greenroom("plan", "--skip", "one", cwd=project)
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:5]] == [
        ["job.A", "out"],
        ["job.B", "in"],
        ["job.C", "in"],
        ["job.Driver", "out"],
    ]
    assert lines[-2].startswith("2 venvs in 2 sets; 3 files; CPython ")
    assert lines[-1].startswith("estimate: ")
    assert "\x1b" not in done.stdout


MATRICES = [
    (["matrix"], [{"variant": "ci", "skip": "one two"}, {"variant": "full", "skip": ""}]),
    (["matrix", "--variant", "full"], [{"variant": "full", "skip": ""}]),
    (
        ["matrix", "--format", "github"],
        {"include": [{"variant": "ci", "skip": "one two"}, {"variant": "full", "skip": ""}]},
    ),
]


@pytest.mark.parametrize(("words", "value"), MATRICES)
def test_the_matrix_is_one_line_of_json(
    project: Path, words: list[str], value: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with (project / "pyproject.toml").open("a") as file:
        file.write('\n[tool.greenroom.matrix]\nci = ["two", "one"]\nfull = []\n')
    monkeypatch.chdir(project)
    main(["greenroom", *words])
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == value


def test_an_edited_matrix_is_checked(project: Path) -> None:
    with (project / "pyproject.toml").open("a") as file:
        file.write('\n[tool.greenroom.matrix]\nci = ["onne"]\n')
    done = greenroom("matrix", cwd=project)
    assert done.returncode == 2
    assert "unknown extra to skip: onne" in done.stderr


def test_a_dry_run_prints_the_command_that_a_real_run_runs(project: Path) -> None:
    before = (project / "uv.lock").stat().st_mtime_ns
    done = greenroom("--dry", "lock", cwd=project)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith(f" lock --project {project}")
    assert (project / "uv.lock").stat().st_mtime_ns == before


def test_a_reader_that_goes_away_causes_no_traceback(project: Path) -> None:
    done = run(["sh", "-c", f"{GREENROOM} plan --json | true"], cwd=project, check=False)
    assert "Traceback" not in done.stderr


def test_every_task_says_what_it_does_and_what_each_option_means() -> None:
    # In a process of its own: invoke hands a task's help out once only.
    code = """
from greenroom.tasks import namespace
for context in namespace.to_contexts():
    task = namespace[context.name]
    lines = (task.__doc__ or "").strip().splitlines()
    print(context.name, len(lines), bool(lines) and lines[0].endswith("."))
    print(*[f"{context.name} --{argument.name}" for argument in context.args.values() if not argument.help])
"""
    lines = run([sys.executable, "-c", code]).stdout.splitlines()
    assert sorted(lines[::2]) == sorted(f"{name} 1 True" for name in namespace.task_names)
    assert set(lines[1::2]) == {""}


@pytest.fixture(scope="module")
def plain_python(tmp_path_factory: pytest.TempPathFactory, uv: str, uv_cache: Path) -> Path:
    """An interpreter whose venv has the package's sources and nothing else."""
    venv = tmp_path_factory.mktemp("plain") / "venv"
    run([uv, "venv", "--quiet", "--no-config", "--cache-dir", uv_cache, "--python", sys.executable, venv])
    (site,) = venv.glob("lib/python3.*/site-packages")
    (site / "greenroom.pth").write_text(f"{REPOSITORY / 'src'}\n")
    return venv / "bin" / "python"


def test_the_plain_distribution_says_what_the_host_needs(plain_python: Path) -> None:
    done = run([plain_python, "-c", "from greenroom.console_script import main; main()"], check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "pip install 'greenroom[pipeline]'" in done.stderr


def test_the_plain_distribution_is_what_actors_import(plain_python: Path) -> None:
    code = "import greenroom.environments.interfaces, greenroom.environments.sliding_puzzle; print('ok')"
    assert run([plain_python, "-c", code]).stdout == "ok\n"


def test_another_missing_module_is_not_explained_away(plain_python: Path, tmp_path: Path) -> None:
    (tmp_path / "invoke").mkdir()
    (tmp_path / "invoke/__init__.py").write_text("import something_else_entirely")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from greenroom.console_script import main; main()"
    done = run([plain_python, "-c", code], check=False)
    assert "ModuleNotFoundError: No module named 'something_else_entirely'" in done.stderr


def test_the_invoke_tasks_of_the_repository_are_the_same() -> None:
    done = run([Path(sys.executable).with_name("invoke"), "--list"], cwd=REPOSITORY)
    for name in namespace.task_names:
        assert name in done.stdout


def test_every_subprocess_goes_through_run() -> None:
    """One place starts processes; what runs inside images cannot import it."""
    inside_images = {"image_inspector.py"}
    for path in sorted((REPOSITORY / "src/greenroom").glob("*.py")):
        if path.name in inside_images or path == Path(process.__file__):
            continue
        text = path.read_text()
        assert "subprocess.run(" not in text and "os.system(" not in text, path.name
