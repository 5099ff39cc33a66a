"""Progress where there is no terminal."""

from musicgen.console import progress_bar


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
