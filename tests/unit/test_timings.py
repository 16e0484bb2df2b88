"""Timings: each step under a name that says what it did, its layer's bytes, and a page that loads nothing."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from greenroom import timings
from greenroom.progress import Step

MOUNTS = "--network=none --mount=from=installer,target=/installer"


def step(name: str, *, began: float, said: str = "", cached: bool = False) -> Step:
    made = Step(name=name, cached=cached, began=began, seconds=0.0 if cached else 2.0)
    made.take(said.encode())
    return made


def slot(label: str) -> str:
    return f'[slots {int(label) + 1}/18] RUN {MOUNTS} python3 /installer/install_slot.py /slot "/opt/venvs" {label}'


STEPS = [
    step("[internal] load build context", began=99.0),
    step("[plan 1/2] COPY pyproject.toml /project/", began=100.0),
    step(slot("00"), began=103.0, said="greenroom: slot 00 has torch <2> and 3 more, in 1.9 s\n"),
    step(slot("01"), began=105.0),
    step(slot("02"), began=107.0, cached=True),
    step(slot("03").replace(" 03", " project"), began=108.0),
    step(f'[deps 2/2] RUN {MOUNTS} python3 /installer/finish_venvs.py /plan "/opt/venvs" deps', began=110.0),
    step("exporting to image", began=112.0),
]
HISTORY = [
    ('RUN |1 BYTECODE=1 /bin/sh -c python3 /installer/install_slot.py /slot "$VENV_DIR" 00 # buildkit', 7_500_000),
    ('RUN |1 BYTECODE=1 /bin/sh -c python3 /installer/install_slot.py /slot "$VENV_DIR" 01 # buildkit', 0),
    ('RUN |1 BYTECODE=1 /bin/sh -c python3 /installer/install_slot.py /slot "$VENV_DIR" project # buildkit', 42),
    ('RUN /bin/sh -c python3 /installer/finish_venvs.py /plan "$VENV_DIR" deps # buildkit', 7),
]


def test_steps_are_named_by_what_they_did_and_carry_their_layers_bytes() -> None:
    rows = timings.timings(STEPS, HISTORY)
    assert [(row.step, row.begin, row.bytes) for row in rows] == [
        ("[plan 1/2] COPY pyproject.toml /project/", 1.0, 0),
        ("slot 00: torch <2> and 3 more", 4.0, 7_500_000),
        ("slot 01: nothing", 6.0, 0),
        ("slot 02", 8.0, 0),
        ("the project", 9.0, 42),
        ("interpreters, stamps, wrappers of deps", 11.0, 7),
        ("exporting to image", 13.0, 0),
    ]


def test_the_page_is_well_formed_shows_every_step_and_loads_nothing() -> None:
    page = timings.to_html(timings.timings(STEPS, HISTORY), "Build of a<b>:c")
    assert not re.search(r"(?:src|href|url\()", page)
    picture = ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + len("</svg>")])
    shown = [element.text or "" for element in picture.iter() if element.tag == "text"]
    assert "slot 00: torch <2> and 3 more" in shown and "7.5 MB" in shown and "cached" in shown
    width = float(picture.attrib["viewBox"].split()[2])
    bars = [element for element in picture.iter() if element.tag == "rect"]
    # Behind each bar there is room for its number.
    assert all(float(bar.attrib["x"]) + float(bar.attrib["width"]) <= width - 70 for bar in bars)
    assert "Build of a&lt;b&gt;:c" in page


def test_the_summary_lists_what_ran_longest_first() -> None:
    rows = timings.timings([*STEPS, step("[tools 1/1] RUN sh", began=101.0, cached=True)], HISTORY)
    text = timings.to_markdown(rows)
    assert text.index("torch") < text.index("slot 01")
    assert "| `slot 00: torch <2> and 3 more` | 2.0 | 7.5 |" in text
    assert text.rstrip().endswith("6 steps ran, 2 were cached.")


def test_nothing_was_built() -> None:
    assert timings.timings([], []) == ()
    assert "0 steps" in timings.to_html((), "empty")
