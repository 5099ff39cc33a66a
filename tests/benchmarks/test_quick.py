"""The quick benchmark marks what became slower."""

from benchmarks import quick


def test_a_part_is_marked_if_its_ratio_is_a_quarter_higher():
    assert quick.describe("reading", 5, 4) == "reading: 5 (recorded 4)"
    assert quick.describe("reading", 5.1, 4) == "reading: 5.1 (recorded 4, SLOWER)"
    assert quick.describe("reading", 0.5, 4) == "reading: 0.5 (recorded 4)"
    assert quick.describe("reading", 5.1, None) == "reading: 5.1 (not recorded)"


def test_both_sides_of_a_part_run(tmp_path):
    with quick.songs("") as (_, files):
        ours, theirs = quick.reading(files[:1])
        assert ours()[0].num_notes == theirs()[0].note_num() > 0
