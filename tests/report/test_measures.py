"""Measures are shown beside their anchors, with words for where they lie."""

import pytest

from musicgen.report.measures import Anchor, Measure, measure_list, verdict

ANCHORS = [Anchor("same song", 0.8), Anchor("chance", 0.2), Anchor("unknown", float("nan"))]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.1, "below chance"),
        (0.2, "like chance"),
        (0.4, "nearer to chance than to same song"),
        (0.6, "nearer to same song than to chance"),
        (0.8, "like same song"),
        (0.9, "above same song"),
        (None, ""),
        (float("nan"), ""),
    ],
)
def test_verdicts(value, words):
    assert verdict(Measure("m", value, ANCHORS)) == words
    assert verdict(Measure("m", value)) == verdict(Measure("m", value, ANCHORS[2:])) == ""


def test_list_holds_value_anchors_and_ends_in_order():
    html = measure_list([Measure("rhythm", 0.4321, ANCHORS, ends=("nothing", "all"))])
    assert "<strong>0.43</strong>: nearer to chance" in html
    assert "nothing 0 · chance 0.2 · same song 0.8 · all 1<" in html
    assert "unknown" not in html
    assert html.count('class="anchor"') == 2
    assert html.count('class="value"') == 1


def test_undefined_values():
    html = measure_list([Measure("drumming", None, ANCHORS)])
    assert "n/a" in html
    assert "<svg" not in html


def test_scale_holds_values_beyond_its_ends():
    html = measure_list([Measure("m", 3.0, [Anchor("a", -1.0)])])
    assert 'class="anchor" x="0.0"' in html
    assert 'class="value" x="98.8"' in html
    assert measure_list([Measure("m", 0.0, high=0)])  # a scale of no width
