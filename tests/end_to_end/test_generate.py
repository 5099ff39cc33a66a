"""generate.py: prompts, file names, warnings."""

import json
import os
import shutil
import signal
import time

import pytest

from musicgen import load
from musicgen.composer import compose_groove, compose_pop, compose_song
from musicgen.midi import dumps, read, write
from musicgen.package_data import EXAMPLES
from tests.end_to_end.command_line import SHORT, TINY, assert_one_line, succeed
from tests.end_to_end.deaths import start
from tests.plugins.scores.test_printed_scores import SONG

NAMES = ["My Song (1).mid", "Señor.mid", "a,b.mid", "a&b.mid", "it's.mid", "x=y.MID"]


@pytest.mark.parametrize("alone", [True, False])
def test_prompt_file_names_may_hold_special_characters(here, workplace, alone):
    for name in NAMES:
        write(compose_pop(3, 0), workplace / "prompts" / name)
    names = NAMES if alone else ["a,b & (it's).mid"]
    (workplace / "prompts/a&b.mid").rename(workplace / "prompts/a,b & (it's).mid")
    write(compose_pop(3, 0), workplace / "prompts/a&b.mid")
    paths = [f"prompts/{name}" for name in names] if alone else [f"prompt=prompts/{names[0]}"]
    out = f"out, & of {alone}"
    succeed(here(workplace, "generate.py", *paths, "prompt_bars=1", "bars=1", f"out={out}"))
    files = list((workplace / out).glob("*.mid"))
    assert {file.name for file in files} == {f"{name.rsplit('.', 1)[0]}_0.mid" for name in names}
    assert all(read(file).num_notes for file in files)
    page = (workplace / out / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_a_run_beside_the_model_of_the_package_is_named(here, workplace, tmp_path):
    arguments = ("checkpoint=null", "bars=0")
    (run,) = (workplace / "outputs/tiny").glob("*/checkpoints/best.ckpt")
    shown = here(workplace, "generate.py", *arguments).stderr.replace("\n", "")
    assert f"there is a run of yours, {run.relative_to(workplace)}: checkpoint=latest" in shown
    assert "songs-small: " in shown
    assert "checkpoint=latest" not in here(tmp_path, "generate.py", *arguments).stderr


def test_a_score_is_continued_as_a_midi_file_with_its_parts(here, workplace):
    path = workplace / "my song.musicxml"
    path.write_text(SONG)
    succeed(here(workplace, "generate.py", path.name, "prompt_bars=null", "bars=1", "out=sung"))
    before, after = read(path), read(workplace / "sung/my song_0.mid")
    assert path.read_text() == SONG
    assert [track.name for track in after.tracks][:2] == ["Voice", "Piano"]
    for old, new in zip(before.tracks, after.tracks, strict=False):
        assert (new.notes[: len(old.notes)] == old.notes).all()
    assert after.num_notes > before.num_notes
    printed = read(workplace / "sung/my song_0.musicxml")
    assert [track.name for track in printed.tracks][:2] == ["Voice", "Piano"]
    assert printed.num_notes == after.num_notes
    plain = ["prompt_bars=1", "bars=1"]
    succeed(here(workplace, "generate.py", path.name, *plain, "format=midi", "out=midi"))
    assert not list((workplace / "midi").glob("*.musicxml"))
    write(compose_pop(3, 0), workplace / "pop.mid")
    succeed(here(workplace, "generate.py", "pop.mid", *plain, "format=musicxml", "out=both"))
    assert read(workplace / "both/pop_0.musicxml").num_notes
    for name in ("generation.json", "pop_0.mid"):
        (workplace / "both" / name).unlink()
    again = here(workplace, "generate.py", "pop.mid", *plain, "out=both")
    assert_one_line(again, "pop_0.musicxml exists already; give another folder with out=DIR")


def test_examples_of_the_package_go_on_in_their_metres(here, tmp_path):
    settings = ["checkpoint=groove-small", "prompt_bars=2", "bars=1", "report=false"]
    succeed(here(tmp_path, "generate.py", "prompt=examples", "out=all", *settings))
    for name, index, metre in (("", 194, (4, 4)), ("_3_4", 173, (3, 4)), ("_6_8", 107, (6, 8))):
        song, example = compose_song(0, index), read(EXAMPLES / f"example{name}.mid")
        assert dumps(song.clip(0, song.bar_starts()[8])) == dumps(example)
        written = read(tmp_path / f"all/example{name}_0.mid")
        assert {each[1:] for each in written.time_signatures_from_start()} == {metre}
        assert len(written.bar_starts()) == 3
    write(compose_pop(3, 0), tmp_path / "example.mid")  # one's own file comes first
    own = ["example.mid", "out=mine", *settings, "prompt_bars=auto"]
    shown = succeed(here(tmp_path, "generate.py", *own)).stderr
    assert "from the first 4 bars; prompt_bars=null continues whole files" in shown
    assert "Voice" not in [track.name for track in read(tmp_path / "mine/example_0.mid").tracks]
    assert load("groove-small").prompt("example_6_8.mid").name == "example_6_8.mid"


def test_names_that_are_too_long_or_not_utf8_or_collide(here, workplace):
    folder = os.fsencode(workplace / "odd")
    data = dumps(compose_pop(3, 0))
    names = [
        *(b"caf\xe9.mid", b"caf\xe8.mid", b"n" * 250 + b".mid", "\u00e9".encode() * 125 + b".mid"),
        *(b"a/b.mid", b"a_b.mid", b"x.mid", b"x.MIDI"),
    ]
    os.makedirs(folder + b"/a")  # noqa: PTH103, as these names are bytes
    for name in names:
        with open(folder + b"/" + name, "wb") as file:  # noqa: PTH123
            file.write(data)
    arguments = ["prompt=odd", "prompt_bars=1", "bars=1", "out=from odd"]
    succeed(here(workplace, "generate.py", *arguments))
    files = {path.name for path in (workplace / "from odd").glob("*.mid")}
    manifest = json.loads((workplace / "from odd/generation.json").read_text())
    assert files == {piece["file"] for piece in manifest["pieces"]}
    assert len(files) == len(names)
    assert files > {"a_b_0.mid", "a_b-2_0.mid", "x_0.mid", "x-2_0.mid"}
    assert (workplace / "from odd/report.html").read_text()


def test_generate_warns_about_notes_that_the_vocabulary_drops(here, workplace):
    for i in range(5):
        write(compose_groove(0, "bossa", 0, i), workplace / f"band/{i}.mid")
    arguments = ["prompt=band", "prompt_bars=1", "bars=1", "out=from a band"]
    done = succeed(here(workplace, "generate.py", *arguments))
    lost = [line for line in done.stderr.splitlines() if "notes of drums dropped" in line]
    assert len(lost) == 3
    assert lost[0].startswith("0.mid: ")
    assert "and 2 more like these, in generation.json" in done.stderr
    notices = json.loads((workplace / "from a band/generation.json").read_text())["notices"]
    assert notices[:3] == lost
    silent = [line for line in notices if line.endswith("no notes for Drums")]
    assert len(notices) == 5 + len(silent) == 10


def test_generate_warns_about_pieces_cut_short_by_the_position_limit(here, tmp_path):
    arguments = ["train.py", *TINY, *SHORT, "run_name=short", "position=learnable"]
    arguments += ["model.position.max_length=64", "trainer.max_steps=1"]
    succeed(here(tmp_path, arguments[0], *arguments[1:]))
    arguments = ["bars=16", "num_samples=2", "out=short"]
    done = here(tmp_path, "generate.py", *arguments)
    line = (
        "2 pieces cut short of bars=16 at 64 tokens, the limit of this model's positional encoding"
    )
    assert done.stderr.count(line) == 1
    assert line in json.loads((tmp_path / "short/generation.json").read_text())["notices"][0]


@pytest.mark.slow
def test_a_stopped_command_keeps_what_is_finished_and_reports_it(here, workplace):
    out = workplace / "stopped"
    settings = ["checkpoint=latest", "bars=1", "num_samples=60", "batch_size=2", f"out={out}"]
    process = start(workplace, "generate", *settings)
    # One of them may still have the name of a temporary file.
    while len([*out.glob("*.mid")]) < 3 and process.is_alive():
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    stderr = (workplace / "stderr").read_text()
    assert process.exitcode == 130, stderr
    assert stderr.splitlines()[-1] == "interrupted"
    first = json.loads((out / "generation.json").read_text())["pieces"]
    assert {path.name for path in out.glob("*.mid")} == {row["file"] for row in first}
    assert 2 <= len(first) < 60
    assert (out / "report.html").is_file()
    refused = here(workplace, "generate.py", *settings)
    assert_one_line(refused, "exists already; give another folder with out=DIR")


def test_a_moved_run_folder_and_a_published_model_are_checkpoints(here, workplace):
    (run,) = (workplace / "outputs/tiny").iterdir()
    shutil.copytree(run, workplace / "moved, (here)")
    load(run).save_pretrained(workplace / "mine", dtype="float16")
    held_out = ("prompt=test", "num_prompts=1", "prompt_bars=1", "bars=1", "report=false")
    for name in ("moved, (here)", "mine"):
        succeed(here(workplace, "generate.py", f"checkpoint={name}", *held_out, f"out=of {name}"))
        assert len(list((workplace / f"of {name}").glob("pop_*_0.mid"))) == 1


def test_generate_errors_are_one_line(here, workplace):
    (workplace / "bad.mid").write_bytes(b"hello")
    for arguments, parts in (
        (["prompt=bad.mid"], ["bad.mid", "not a MIDI file"]),
        (["bars=2", "length_factor=2"], ["bars", "length_factor"]),
        (["sampling.temperature=hot"], ["sampling.temperature=hot: expected a number >= 0"]),
    ):
        assert_one_line(here(workplace, "generate.py", *arguments), *parts)
    assert not list(workplace.glob("generated/20*"))
