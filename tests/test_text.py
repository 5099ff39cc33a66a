"""Text of messages and tables, with names that somebody else chose."""

from musicgen.console import console, log
from musicgen.files import read_csv
from musicgen.report.tables import write_csv
from musicgen.text import printable


def test_escape_sequences_are_not_sent_to_the_terminal():
    hostile = "\x1b]0;owned\x07\x1b[2Jsong\r\u202egnos\x9b1m\udcff.mid"
    shown = printable(hostile)
    assert shown == "?]0;owned??[2Jsong??gnos?1m?.mid"
    assert (
        printable("Señor [x]\tété\u00a0(1) 日本 🎵.mid\n")
        == "Señor [x]\tété\u00a0(1) 日本 🎵.mid\n"
    )
    with console.capture() as capture:
        log(hostile)
    assert capture.get() == shown + "\n"


def test_spreadsheets_run_no_names(tmp_path):
    names = ["=HYPERLINK(1)", "+1", "-1", "@x", "a=1", "7"]
    write_csv([{"piece": name, "loss": -1.5} for name in names], tmp_path / "t.csv")
    rows = read_csv(tmp_path / "t.csv")
    assert [row["piece"] for row in rows] == ["'=HYPERLINK(1)", "'+1", "'-1", "'@x", "a=1", "7"]
    assert {row["loss"] for row in rows} == {"-1.5"}
