"""The figures in the pages are those of the stored results."""

import json
import re

import pytest

from benchmarks import tables


@pytest.mark.parametrize(
    "page", tables.pages(), ids=lambda page: str(page.relative_to(tables.ROOT))
)
def test_pages_agree_with_the_results(page):
    text = page.read_text()
    assert tables.written(text) == text, "python -m benchmarks.tables"


@pytest.mark.parametrize("name", ["benchmarks/README", "docs/benchmarks", "docs/jsb", "docs/races"])
def test_no_other_table_has_figures(name):
    text = tables.TABLE.sub("", (tables.ROOT / f"{name}.md").read_text())
    assert not [x for x in text.splitlines() if re.match(r"\|.*[ (]\d*\.\d+[ )%]", x)]


def test_a_page_that_disagrees_is_written_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    row = {"what": "a / b", "a": 0.0274, "b": 0.33346, "unit": "s", "ratio": 0.0822}
    rows = [row | {"lowest": 0.0549, "highest": 0.12}, row | {"unit": "GB", "target": "≤ 1"}]
    (tmp_path / "x.json").write_text(json.dumps({"rows": rows}))
    comment = "<!-- table compared\na: time | x | a / b\nmemory | x | a / b | GB\n-->\n"
    page = tables.written(f"Before\n{comment}\n| old |\n\n<!-- end -->\nafter")
    time, memory = page.splitlines()[-5:-3]
    assert time == "| a: time | 27.4 ms / 0.333 s | 0.08 (0.05–0.12) |  |"
    assert memory == "| memory | 0.0274 / 0.333 GB | 0.08 | ≤ 1 |"
    assert page.startswith(f"Before\n{comment}\n|  | figures")
    assert page.endswith("<!-- end -->\nafter")
    assert tables.written(page) == page


def test_figures_are_rounded_once():
    assert tables.interval(0.33346, -0.0004, 0.3345) == "0.333 (−0.000 to 0.335)"
    assert [tables.digits(x) for x in (0.33346, 5.6604, 98765.4)] == ["0.333", "5.66", "98,765"]
    assert tables.quantity(17794.75, "s") == ("4.94", "h")
