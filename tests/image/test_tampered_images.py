"""Images that were changed after they were built: refused with exit code 1, and every difference named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.image.support import VENV_DIR, Built, Images, differences, error_line, greenroom

SETS = f"{VENV_DIR}/.sets"
LEFT = f"{SETS}/left"
SITE = f"{LEFT}/lib/python3.13/site-packages"
RIGHT = f"{SETS}/right"
OF_LEFT = ("tiny.Left", "tiny.LeftToo")
"""Two actors share the set; what is wrong with it is wrong with both."""

Expected = list[tuple[str, str, str]]


def both(check: str, what: str) -> Expected:
    return [(check, actor, what) for actor in OF_LEFT]


def whole(check: str, what: str) -> Expected:
    return [(check, "", what)]


FAULTS: dict[str, tuple[str, Expected]] = {
    "venv removed": (
        f"rm {VENV_DIR}/tiny.Left",
        [("venv-set", "tiny.Left", f"{VENV_DIR}/tiny.Left is missing")],
    ),
    "set removed": (
        f"rm -r {LEFT}",
        whole("venv-set", f"{LEFT} is missing")
        + [("venv-set", actor, f"{VENV_DIR}/{actor} is not a directory or leads nowhere") for actor in OF_LEFT]
        + [("links", actor, f"{VENV_DIR}/{actor} -> .sets/left dangles") for actor in OF_LEFT],
    ),
    "set emptied": (
        f"rm -r {LEFT}/*",
        both("stamp", "no stamp: the venv was never finished, or was changed")
        + [("interpreter", actor, f"{VENV_DIR}/{actor}/bin/python does not run: ") for actor in OF_LEFT],
    ),
    "venv of another set": (
        f"ln -sfn .sets/right {VENV_DIR}/tiny.Left",
        [
            ("venv-set", "tiny.Left", f"{VENV_DIR}/tiny.Left is {RIGHT}, not {LEFT}"),
            ("stamp", "tiny.Left", "the stamp's set is 'right', expected 'left'"),
            ("stamp", "tiny.Left", "the stamp's extras is ['right'], expected ['left']"),
            ("stamp", "tiny.Left", "the stamp's closure_digest is "),
            ("stamp", "tiny.Left", "the stamp's closure is not the lock's"),
            ("closure", "tiny.Left", "idna "),
            ("closure", "tiny.Left", "toolz "),
        ],
    ),
    "every venv removed": (
        f"rm -r {VENV_DIR}",
        whole("venv-set", f"{VENV_DIR} does not exist")
        + [("venv-set", "", f"{SETS}/{name} is missing") for name in ("@base", "left", "left+right", "right")]
        + [
            ("venv-set", f"tiny.{name}", f"{VENV_DIR}/tiny.{name} is missing")
            for name in ("Alone", "Both", "Left", "LeftToo", "Right")
        ],
    ),
    "directory added": (
        f"mkdir {VENV_DIR}/tiny.Other",
        whole("venv-set", f"unexpected venv {VENV_DIR}/tiny.Other (no actor of the plan)"),
    ),
    "driver's actor added": (
        f"ln -s .sets/left {VENV_DIR}/tiny.Driver",
        whole("venv-set", f"unexpected venv {VENV_DIR}/tiny.Driver (no actor of the plan)"),
    ),
    "set added": (
        f"mkdir {SETS}/other",
        whole("venv-set", f"unexpected {SETS}/other (no set of the plan)"),
    ),
    "file added": (
        f"touch {VENV_DIR}/notes.txt",
        whole("venv-set", f"unexpected file {VENV_DIR}/notes.txt (no actor of the plan)"),
    ),
    "distribution removed": (
        f"rm -r {SITE}/six.py {SITE}/six-*",
        both("closure", "six 1.17.0 is not installed")
        + both("files", "lib/python3.13/site-packages/__pycache__/six.cpython-313.pyc is of no installed distribution"),
    ),
    "file removed": (
        f"rm {SITE}/six.py",
        both(
            "files",
            "lib/python3.13/site-packages/__pycache__/six.cpython-313.pyc cannot be read; lib/python3.13/site-packages/six.py is missing",
        ),
    ),
    "file edited": (
        f"echo 'raise SystemExit' >> {SITE}/six.py",
        both(
            "files", "lib/python3.13/site-packages/__pycache__/six.cpython-313.pyc is not the bytecode of its source; "
        ),
    ),
    "files that others may not read": (
        f"chmod 700 {SITE}/idna && chmod 600 {SITE}/six.py",
        both("files", "lib/python3.13/site-packages/__pycache__/six.cpython-313.pyc cannot be read; "),
    ),
    "bytecode of another source": (
        (f"cp {SITE}/idna/__pycache__/core.cpython-313.pyc {SITE}/__pycache__/six.cpython-313.pyc"),
        both("files", "lib/python3.13/site-packages/__pycache__/six.cpython-313.pyc is not the bytecode of its source"),
    ),
    "code of no distribution": (
        f"mkdir {SITE}/requests && touch {SITE}/requests/__init__.py && ln -s six.py {SITE}/seven.py",
        both(
            "files",
            "lib/python3.13/site-packages/requests/__init__.py is of no installed distribution; "
            "lib/python3.13/site-packages/seven.py is of no installed distribution",
        ),
    ),
    "code that runs at every start": (
        f"touch {SITE}/sitecustomize.py && echo /opt > {SITE}/more.pth",
        both("files", "lib/python3.13/site-packages/more.pth is of no installed distribution; "),
    ),
    "distribution of another version": (
        (
            f"cd {SITE} && mv six-1.17.0.dist-info six-1.16.0.dist-info"
            " && sed -i 's/^Version: .*/Version: 1.16.0/' six-1.16.0.dist-info/METADATA"
        ),
        both("closure", "six is 1.16.0, expected 1.17.0")
        + both("files", "lib/python3.13/site-packages/six-1.16.0.dist-info/LICENSE is of no installed distribution; "),
    ),
    "distribution edited to another version": (
        f"sed -i 's/^Version: .*/Version: 1.16.0/' {SITE}/six-1.17.0.dist-info/METADATA",
        both("closure", "six is 1.16.0, expected 1.17.0")
        + both(
            "files", "lib/python3.13/site-packages/six-1.17.0.dist-info/METADATA is not what its distribution recorded"
        ),
    ),
    "distribution twice": (
        (
            f"cd {SITE} && cp -r six-1.17.0.dist-info six-1.16.0.dist-info"
            " && sed -i 's/^Version: .*/Version: 1.16.0/' six-1.16.0.dist-info/METADATA"
        ),
        both("closure", "six is installed 2 times: 1.")
        + both("files", "lib/python3.13/site-packages/six-1.16.0.dist-info/LICENSE is of no installed distribution; "),
    ),
    "distribution added": (
        (
            f"mkdir {SITE}/extra-1.0.dist-info"
            rf" && printf 'Metadata-Version: 2.1\nName: extra\nVersion: 1.0\n' > {SITE}/extra-1.0.dist-info/METADATA"
        ),
        both("closure", "extra 1.0 is installed and not in the lock's closure")
        + both("files", "lib/python3.13/site-packages/extra-1.0.dist-info/METADATA is of no installed distribution"),
    ),
    "stamp removed": (
        f"rm {LEFT}/greenroom-stamp.json",
        both("stamp", "no stamp: the venv was never finished, or was changed"),
    ),
    "stamp of an unfinished venv": (
        f'sed -i \'s/"complete": true/"complete": false/\' {LEFT}/greenroom-stamp.json',
        both("stamp", "the stamp's complete is False, expected True"),
    ),
    "stamp's closure edited": (
        f"sed -i 's/1[.]17[.]0/1.16.0/' {LEFT}/greenroom-stamp.json",
        both("stamp", "the stamp's closure is not the lock's"),
    ),
    "stamp cut off": (
        f"printf '{{\"schema\": 1' > {LEFT}/greenroom-stamp.json",
        both("stamp", "the stamp cannot be read: "),
    ),
    "stamp of another kind": (
        f"echo '[1]' > {LEFT}/greenroom-stamp.json",
        both("stamp", "the stamp cannot be read: "),
    ),
    "link into a home directory": (
        f"ln -s /root/.local/share {LEFT}/share",
        [("links", "tiny.Left", f"{LEFT}/share -> /root/.local/share leads outside")],
    ),
    "link out of the venvs": (
        f"ln -s /usr/share {RIGHT}/share",
        [("links", "tiny.Right", f"{RIGHT}/share -> /usr/share leads outside")],
    ),
    "interpreter in a home directory": (
        f"cp -L /usr/bin/python3 /root/python3 && ln -sf /root/python3 {RIGHT}/bin/python",
        [
            ("links", "tiny.Right", f"{RIGHT}/bin/python -> /root/python3 leads outside"),
            ("links", "tiny.Right", f"{RIGHT}/bin/python3 -> python leads outside"),
            ("links", "tiny.Right", f"{RIGHT}/bin/python3.13 -> python leads outside"),
            ("interpreter", "tiny.Right", f"{VENV_DIR}/tiny.Right/bin/python does not run: "),
        ],
    ),
    "dangling link": (
        f"ln -s nowhere {RIGHT}/data",
        [("links", "tiny.Right", f"{RIGHT}/data -> nowhere dangles")],
    ),
    "wheel left": (
        "mkdir /wheels && touch /wheels/six-1.17.0-py2.py3-none-any.whl",
        whole("leftovers", "/wheels/six-1.17.0-py2.py3-none-any.whl is left in the image"),
    ),
    "wheel left in a venv": (
        f"touch {SITE}/six-1.17.0-py2.py3-none-any.whl",
        whole("leftovers", f"{SITE}/six-1.17.0-py2.py3-none-any.whl is left in the image"),
    ),
    "lock left": (
        "mkdir /project && touch /project/uv.lock",
        whole("leftovers", "/project/uv.lock is left in the image"),
    ),
    "credentials where the reader may not look": (
        "touch /root/.netrc && chmod 600 /root/.netrc && chmod 700 /root",
        whole("leftovers", "/root/.netrc is left in the image"),
    ),
    "cache where the reader may not look": (
        "mkdir -p /root/.cache/uv /root/.cache/pip && chmod 700 /root",
        whole("leftovers", "/root/.cache/pip is left in the image")
        + whole("leftovers", "/root/.cache/uv is left in the image"),
    ),
    "cache in a directory within one that is closed": (
        "mkdir -p /srv/a/b/.cache/uv && chmod 700 /srv/a/b /srv/a",
        whole("leftovers", "/srv/a/b/.cache/uv is left in the image"),
    ),
    "scratch directory left": (
        f"mkdir {VENV_DIR}/.scratch",
        whole("venv-set", f"unexpected venv {VENV_DIR}/.scratch (no actor of the plan)")
        + whole("leftovers", f"{VENV_DIR}/.scratch is left in the image"),
    ),
    "wrapper removed": (
        "rm /usr/local/bin/python-Left",
        [("wrapper", "tiny.Left", "/usr/local/bin/python-Left is missing")],
    ),
    "wrapper not executable": (
        "chmod 644 /usr/local/bin/python-Left",
        [("wrapper", "tiny.Left", "/usr/local/bin/python-Left does not run tiny.Left")],
    ),
    "wrapper of another actor": (
        "cp /usr/local/bin/python-LeftToo /usr/local/bin/python-Left",
        [("wrapper", "tiny.Left", "/usr/local/bin/python-Left does not run tiny.Left")],
    ),
    "wrapper that only mentions its actor": (
        rf"printf '#!/bin/sh\n# {VENV_DIR}/tiny.Left/bin/python\nexec python3 \"$@\"\n' > /usr/local/bin/python-Left",
        [("wrapper", "tiny.Left", "/usr/local/bin/python-Left does not run tiny.Left")],
    ),
    "wrapper added": (
        "cp /usr/local/bin/python-Left /usr/local/bin/python-Other",
        whole("wrapper", "/usr/local/bin/python-Other belongs to no actor of the plan"),
    ),
    "interpreter that does not run": (
        (
            rf"rm {RIGHT}/bin/python && printf '#!/bin/sh\necho broken >&2\nexit 3\n' > {RIGHT}/bin/python"
            f" && chmod 755 {RIGHT}/bin/python"
        ),
        [("interpreter", "tiny.Right", f"{VENV_DIR}/tiny.Right/bin/python does not run: broken")],
    ),
    "interpreter of another path": (
        f"cp -L /usr/bin/python3 /opt/python3 && ln -sf /opt/python3 {LEFT}/bin/python",
        both("interpreter", "bin/python is /opt/python3, expected the image's /usr/bin/python3.13"),
    ),
    "venv that sees the system's packages": (
        f"sed -i 's/= false/= true/' {LEFT}/pyvenv.cfg",
        both("interpreter", "pyvenv.cfg lets it import what is installed outside of the venv"),
    ),
    "interpreter without its venv": (
        f"rm {RIGHT}/pyvenv.cfg",
        [
            ("interpreter", "tiny.Right", f"sys.prefix is /usr, expected {VENV_DIR}/tiny.Right"),
            ("closure", "tiny.Right", "six 1.17.0 is not installed"),
            ("closure", "tiny.Right", "toolz "),
        ],
    ),
    "interpreter removed": (
        f"rm {RIGHT}/bin/python",
        [
            ("interpreter", "tiny.Right", f"{VENV_DIR}/tiny.Right/bin/python does not run: "),
            ("links", "tiny.Right", f"{RIGHT}/bin/python3 -> python dangles"),
            ("links", "tiny.Right", f"{RIGHT}/bin/python3.13 -> python dangles"),
        ],
    ),
    "venv that others may not read": (
        f"chmod 700 {RIGHT}",
        [
            ("stamp", "tiny.Right", "the stamp cannot be read: "),
            ("interpreter", "tiny.Right", f"{VENV_DIR}/tiny.Right/bin/python does not run: "),
        ],
    ),
}
SEVERAL = ("venv removed", "distribution twice", "stamp removed", "dangling link", "lock left", "wrapper added")


def tampered(images: Images, image: Built, name: str) -> str:
    """Make the image of a fault: one layer upon the good one."""
    shell = json.dumps(["/bin/sh", "-ec", FAULTS[name][0]])
    return images.derive("tampered-" + name.replace(" ", "-").replace("'", ""), image.tag, f"RUN {shell}")


def assert_differences(found: Expected, expected: Expected) -> None:
    """Check that exactly these differences were found; each text is the expected one or goes on after it."""
    assert len(found) == len(expected), found
    for check, venv, what in expected:
        assert [row for row in found if row[:2] == (check, venv) and row[2].startswith(what)], (
            check,
            venv,
            what,
            found,
        )


def test_the_untouched_image_is_right(tiny: Path, tiny_image: Built) -> None:
    assert differences(tiny, tiny_image.tag) == (0, [])


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(tiny: Path, tiny_image: Built, images: Images, name: str) -> None:
    code, found = differences(tiny, tampered(images, tiny_image, name))
    assert code == 1
    assert_differences(found, FAULTS[name][1])


@pytest.mark.parametrize("name", ["PYTHONHOME", "PYTHONPATH"])
def test_a_variable_that_changes_imports_is_named(tiny: Path, tiny_image: Built, images: Images, name: str) -> None:
    tag = images.derive(name.lower(), tiny_image.tag, f"ENV {name}=/opt/more")
    what = f"the image sets {name}, which changes what every venv imports"
    assert differences(tiny, tag) == (1, [("interpreter", "", what)])


def test_what_other_software_brings_is_no_fault(tiny: Path, tiny_image: Built, images: Images) -> None:
    shell = (
        "printf '#!/bin/sh\\necho -lpython\\n' > /usr/local/bin/python-config && chmod 755 /usr/local/bin/python-config"
        " && ln -s python-config /usr/local/bin/python-other && ln -s nowhere /usr/local/bin/python-nowhere"
        " && mkdir /opt/other && ln -s nowhere /opt/other/link"
    )
    tag = images.derive("other-software", tiny_image.tag, f"RUN {json.dumps(['/bin/sh', '-ec', shell])}")
    assert differences(tiny, tag) == (0, [])


def test_several_faults_are_all_named(tiny: Path, tiny_image: Built, images: Images) -> None:
    shells = [f"RUN {json.dumps(['/bin/sh', '-ec', FAULTS[name][0]])}" for name in SEVERAL]
    tag = images.derive("several", tiny_image.tag, *shells)
    # The first one removes one of the two actors that share the set: what is wrong with the set has one left to name.
    gone = [("distribution twice", "tiny.Left"), ("stamp removed", "tiny.Left")]
    expected = [row for name in SEVERAL for row in FAULTS[name][1] if (name, row[1]) not in gone]
    code, found = differences(tiny, tag)
    assert code == 1
    assert_differences(found, expected)

    done = greenroom("verify", "--project", tiny, "--image", tag)
    assert done.returncode == 1
    for check, venv, what in found:
        assert f"{check}: {venv + ': ' if venv else ''}{what}" in done.stdout.splitlines()
    assert done.stdout.splitlines()[-1].endswith(f" passed, {len(expected)} failed")
    assert f"and {len(expected) - 1} more" in error_line(done)
