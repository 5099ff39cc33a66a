"""Text of messages, with names that somebody else chose; progress where there is no terminal."""

from musicgen.console import console, log, progress_bar
from musicgen.text import printable, rate


def test_slow_work_has_a_speed():
    assert rate(12345, 10) == "1,234 a second"
    assert rate(25, 10) == "2.5 a second"
    assert rate(44, 241) == "5.5 s each"
    assert rate(0, 10) == "0.0 a second"


def test_escape_sequences_are_not_sent_to_the_terminal():
    hostile = "\x1b]0;owned\x07\x1b[2Jsong\r\u202egnos\x9b1m\udcff.mid"
    shown = printable(hostile)
    assert shown == "?]0;owned??[2Jsong??gnos?1m?.mid"
    plain = "Señor [x]\tété\u00a0(1) 日本 🎵.mid\n"
    assert printable(plain) == plain
    with console.capture() as capture:
        log(hostile)
    assert capture.get() == shown + "\n"


def test_a_log_file_gets_a_line_a_minute(capsys):
    now = [0]
    with progress_bar("{task.completed} tokens") as bar:
        bar.get_time = lambda: now[0]
        task = bar.add_task("generating", total=9)
        for now[0] in (0, 31, 62, 93, 124, 125):
            bar.advance(task)
    assert capsys.readouterr().err.splitlines() == [
        f"generating {count} tokens {time}" for count, time in ((3, "0:01:02"), (5, "0:02:04"))
    ]
