"""The blind page hides the runs, draws every pair once, and counts votes like scipy."""

import json
import re
import shutil
import subprocess

import pytest
from scipy.stats import binomtest

from musicgen.report import render_blind
from tests.report.test_html import HOSTILE, Page, score

needs_node = pytest.mark.skipif(not shutil.which("node"), reason="needs node")


def blind(runs=("first run", "second run"), titles=("one", "two")) -> str:
    trials = [(title, [(score(), 1_920)] * len(runs)) for title in titles]
    return render_blind(title="Blind", runs=runs, trials=trials)


def node(tmp_path, page: str, expression: str):
    """Evaluate an expression with the page's script, which finds no elements."""
    [script] = [text for attributes, text in Page(page).scripts if not attributes]
    stub = "const document = { getElementById: () => null, querySelectorAll: () => [] };\n"
    (tmp_path / "page.js").write_text(f"{stub}{script}\nconsole.log(JSON.stringify({expression}));")
    run = subprocess.run(
        ["node", str(tmp_path / "page.js")], capture_output=True, text=True, check=True, timeout=30
    )
    return json.loads(run.stdout)


def test_page_is_self_contained_and_escaped():
    page = blind((HOSTILE, "b"), (HOSTILE,))
    parsed = Page(page)
    assert len(parsed.scripts) == 2
    assert not parsed.named("img")
    assert not re.search(r"@import|url\(|src=(?!x)", "".join(parsed.styles))
    assert parsed.payloads[0]["trials"][0]["title"] == HOSTILE
    [policy] = [m["content"] for m in parsed.named("meta") if "http-equiv" in m]
    assert "default-src 'none'" in policy


def test_names_of_runs_are_only_in_the_data():
    parsed = Page(blind())
    assert not any("first run" in text for text in parsed.text)
    assert not any("first run" in str(attributes) for _, attributes in parsed.elements)


def test_votes_belong_to_one_page():
    pages = {Page(blind(titles=titles)).payloads[0]["page"] for titles in ("a", "b", "ab", "a")}
    assert len(pages) == 3


@needs_node
@pytest.mark.parametrize(("wins", "count"), [(0, 5), (3, 10), (7, 7), (60, 100), (1, 2)])
def test_intervals_are_those_of_scipy(tmp_path, wins, count):
    interval = binomtest(wins, count).proportion_ci(0.95, method="wilson")
    found = node(tmp_path, blind(), f"wilsonInterval({wins}, {count})")
    assert found == pytest.approx([interval.low, interval.high], abs=1e-6)


@needs_node
def test_every_pair_is_compared_once_on_random_sides(tmp_path):
    comparisons = node(tmp_path, blind(), "drawComparisons(50, 3)")
    found = sorted((c["trial"], *sorted(c["runs"])) for c in comparisons)
    assert found == [(t, *pair) for t in range(50) for pair in ((0, 1), (0, 2), (1, 2))]
    first_on_the_left = sum(c["runs"][0] < c["runs"][1] for c in comparisons)
    assert 40 < first_on_the_left < 110  # of 150
    assert [c["trial"] for c in comparisons] != sorted(c["trial"] for c in comparisons)


@needs_node
def test_votes_are_counted_by_pair(tmp_path):
    votes = [
        *[{"trial": 0, "runs": [0, 1], "winner": 0}] * 9,
        {"trial": 1, "runs": [1, 0], "winner": 1},
        {"trial": 1, "runs": [1, 0], "winner": None},
        *[{"trial": 0, "runs": [2, 1], "winner": 2}] * 2,
    ]
    expression = (
        f"countVotes({json.dumps(votes)}, 3).map(p => [p, describeResult(p, ['x','y','z'])])"
    )
    (xy, xy_words), (xz, xz_words), (yz, yz_words) = node(tmp_path, blind(), expression)
    assert (xy["wins"], xy["undecided"], xy["share"]) == ([9, 1], 1, 0.9)
    assert "x was preferred in 9 of 10 votes: 90%" in xy_words
    assert xy_words.endswith("1 without preference. Listeners prefer x.")
    assert (xz["wins"], xz["share"]) == ([0, 0], None)
    assert xz_words == "No preference in any of 0 votes."
    assert yz["wins"] == [0, 2]
    assert yz_words.endswith("The votes do not show which is better.")


@needs_node
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        ({"page": "other"}, "votes on another page"),
        ({"listener": 3}, "a damaged file of votes"),
        ({"votes": [{"trial": 2, "runs": [0, 1], "winner": 0}]}, "a damaged file of votes"),
        ({"votes": [{"trial": 0, "runs": [0, 0], "winner": 0}]}, "a damaged file of votes"),
        ({"votes": [{"trial": 0, "runs": [0, 1], "winner": 2}]}, "a damaged file of votes"),
        ({"votes": None}, "a damaged file of votes"),
    ],
)
def test_votes_of_other_listeners_are_checked(tmp_path, change, message):
    saved = {"page": "p", "listener": "l", "votes": [{"trial": 1, "runs": [1, 0], "winner": None}]}
    text = json.dumps(json.dumps(saved | change))
    expression = (
        f"(() => {{ try {{ return readVotes({text}, 'p', 2, 2); }}"
        " catch (e) { return e.message; } })()"
    )
    assert node(tmp_path, blind(), expression) == (message or saved)
