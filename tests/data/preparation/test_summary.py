from musicgen.data.preparation.cache import write_report
from musicgen.data.preparation.encoding import PieceRecord
from musicgen.files import read_csv

RECORDS = [
    PieceRecord("a.mid", "", 16, 100, 4, 30, 28, "2 notes doubling another dropped"),
    PieceRecord("b.mid", skipped="cut short: a track ends 5 bytes past the end"),
    PieceRecord("c.mid", "", 16, 300, 10, 90, 90, "all 90 notes kept"),
    PieceRecord("=d.mid", "", 16, 200, 2, 50, 45, "5 notes of drums dropped"),
]
SPLITS = ["train", "", "test", "train"]
ORIGINALS = ["", "", "", "a.mid"]


def test_the_table_has_a_row_per_piece_and_the_lines_add_up(tmp_path):
    assert write_report(tmp_path, RECORDS, SPLITS, ORIGINALS) == [
        "3 pieces (2 train, 0 val, 1 test), 600 tokens in 16 bars, 163 of 170 notes kept",
        "duplicates: 1, in the splits of their originals: =d.mid = a.mid",
        "left out: 1 of 4 pieces",
        "  b.mid: cut short: a track ends 5 bytes past the end",
    ]
    rows = read_csv(tmp_path / "report.csv")
    assert [row["piece"] for row in rows] == ["a.mid", "b.mid", "c.mid", "'=d.mid"]
    assert rows[3]["duplicate_of"] == "a.mid"


def test_the_first_of_many_broken_files_are_named(tmp_path):
    records = [RECORDS[2], *(PieceRecord(f"{i}.mid", skipped="empty") for i in range(8))]
    lines = write_report(tmp_path, records, ["train", *[""] * 8], [""] * 9)
    assert lines[1:3] == ["duplicates: none", "left out: 8 of 9 pieces"]
    assert lines[3:] == [*(f"  {i}.mid: empty" for i in range(5)), "  and 3 more"]
