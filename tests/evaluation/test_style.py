"""Style: pairs, reading through the tokenizer, the report's figures, parts, anchors by hand."""

import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from musicgen.checkpoints import build
from musicgen.composer import compose_groove, compose_pop
from musicgen.errors import UserError
from musicgen.evaluation.generated_files import write_manifest
from musicgen.evaluation.references import default_measure, find_original, open_pairs, read_manifest
from musicgen.evaluation.style import PARTS
from musicgen.files import read_csv, write_bytes
from musicgen.generation.continuation import Continuation, KeepPrompt
from musicgen.generation.prompt import make_prompt
from musicgen.metrics.style import (
    ANCHORS,
    PROFILES,
    SIMILARITIES,
    anchor_similarities,
    mean_similarity,
    style_labels,
    style_profiles,
)
from musicgen.midi import Score, TimeSignature, Track, loads, notes_from, write
from musicgen.report.tables import summarise
from musicgen.tokenization.base import Tokenizer

REMI = {"_target_": "musicgen.tokenization.REMI"}
METRES = {**REMI, "time_signatures": ["4/4", "3/4", "6/8"]}
GROOVE = {"_target_": "musicgen.tokenization.Groove2Groove"}


@pytest.mark.parametrize(
    ("file", "names", "expected"),
    [
        ("song.mid", ["song.mid"], "song.mid"),
        ("song.mid", ["deep/folder/song.midi"], "deep/folder/song.midi"),
        ("a/x.mid", ["a/x.mid", "b/x.mid"], "a/x.mid"),
        ("x.mid", ["x.mid", "x.midi"], "x.mid"),
        ("x.mid", ["a/x.mid", "b/x.mid"], None),
        ("song_0.mid", [], None),
    ],
)
def test_names_pair_only_if_equal(file, names, expected):
    if expected is None:
        with pytest.raises(UserError, match=r"(no|more than one) file of the references is named"):
            find_original(file, names)
    else:
        assert find_original(file, names) == expected


def band(metre: tuple[int, int] | None = None) -> Score:
    """A composed groove off the grid, with a track that no vocabulary here has."""
    score = compose_groove(3, "funk", 0, 0)
    for track in score.tracks:
        track.name = track.name.upper()
        track.notes["onset"] += np.arange(len(track.notes)) % 5
    score.tracks.append(Track("gun", 127, notes=notes_from([(0, 60, 60, 90)])))
    score.time_signatures = [TimeSignature(0, *metre)] if metre else []
    return score


def hands() -> Score:
    """A piano piece as three tracks, whose file states a useless metre."""
    score = compose_pop(5, 0)
    (track,) = (t for t in score.tracks if len(t.notes))
    parts = [track.notes[i::3].copy() for i in range(3)]
    for part in parts:
        part["onset"] += 7
    names = "MELODY", "BRIDGE", "PIANO"
    score.tracks = [Track(n, 0, notes=part) for n, part in zip(names, parts, strict=True)]
    score.time_signatures = [TimeSignature(0, 1, 4)]
    return score


def generate(
    folder: Path, originals: Path, config: dict, score: Score, keep_prompt: KeepPrompt = "original"
) -> dict:
    """Write a folder as generate.py does; return the manifest's rows by file.

    One continuation is the piece's own, the other that of a piece moved by a beat.
    """
    write(score, originals / "piece.mid")
    tokenizer = build(config, Tokenizer)
    data = (originals / "piece.mid").read_bytes()
    prompt = make_prompt(tokenizer, loads(data), "piece.mid", 2, data)
    done = {}
    for sample, moved in enumerate((0, 480)):
        tracks = []
        for track in prompt.piece.tracks:
            notes = track.notes.copy()
            notes["onset"] += moved * (notes["onset"] >= prompt.end.tick)
            tracks.append(replace(track, notes=notes))
        tokens = tokenizer.encode(replace(prompt.piece, tracks=tracks))
        decoded = tokenizer.decode(tokens)
        decoded.time_signatures = decoded.time_signatures or prompt.score.time_signatures
        file = f"piece_{sample}.mid"
        continuation = Continuation(prompt, sample, tokens, decoded, bars=1)
        done[file] = continuation, continuation.midi_file(keep_prompt)
        write_bytes(folder / file, done[file][1][0])
    provenance = {"tokenizer": config, "references": str(originals)}
    write_manifest(folder, done, {}, provenance, [])
    rows = json.loads((folder / "generation.json").read_text())["pieces"]
    return {row["file"]: row for row in rows}


@pytest.mark.parametrize("keep_prompt", get_args(KeepPrompt))
@pytest.mark.parametrize(
    ("tokenizer", "make", "roles"),
    [
        (REMI, hands, {"Piano"}),
        (REMI, band, {"Piano"}),
        (METRES, lambda: band((3, 4)), {"Piano"}),
        (GROOVE, band, {"Bass", "Drums", "Guitar", "Piano", "Ensemble"}),
        (GROOVE, lambda: band((3, 4)), {"Bass", "Drums", "Guitar", "Piano", "Ensemble"}),
        (GROOVE, hands, {"Piano"}),
    ],
)
def test_figures_are_those_of_the_report(
    tmp_path, inputs, measure, keep_prompt, tokenizer, make, roles
):
    rows = generate(tmp_path / "new", tmp_path / "old", tokenizer, make(), keep_prompt=keep_prompt)
    table = measure("style")(inputs(generated=str(tmp_path / "new")), tmp_path)
    found = 0
    for file, row in rows.items():
        for profile in PROFILES:
            mine = [
                each["value"]
                for each in table
                if (each["piece"], each["profile"], each["part"]) == (file, profile, "all")
            ]
            assert mine == [
                row[name] for name in [SIMILARITIES[profile]] if row.get(name) is not None
            ]
            found += len(mine)
    assert found >= (4 if tokenizer is GROOVE else 6)  # whose tokens have no velocities: no accents
    parts = {"all", *PARTS, *ANCHORS}
    assert {"Piano"} <= {each["part"] for each in table} - parts <= roles


def test_the_own_continuation_on_the_grid_is_nearly_the_piece(tmp_path):
    # The references lie off the grid: read without the tokenizer, hardly a bin would agree.
    rows = generate(tmp_path / "new", tmp_path / "old", REMI, hands())
    assert rows["piece_0.mid"]["onset-duration similarity"] > 0.9
    assert rows["piece_1.mid"]["onset-duration similarity"] < 0.9


def test_without_a_manifest_files_are_compared_as_they_are(tmp_path, inputs):
    write(hands(), tmp_path / "old/x.mid")
    write(hands(), tmp_path / "new/x.mid")
    given = inputs(references=str(tmp_path / "old"))
    _, (pair,) = open_pairs(given, str(tmp_path / "new"), "style")
    assert pair.continuation == pair.reference
    assert len(pair.reference.tracks) == 3


def test_pieces_without_a_partner_are_listed_with_reasons(tmp_path, inputs, measure, capsys):
    new, old, out = (tmp_path / name for name in ("new", "old", "out"))
    rows = generate(new, old, REMI, hands())
    write(hands(), new / "stranger.mid")
    (new / "piece_9.mid").write_bytes(b"MThd broken")
    manifest = json.loads((new / "generation.json").read_text())
    manifest["pieces"] += [
        {**rows["piece_0.mid"], "file": "free.mid", "prompt": "from nothing"}
        | {"prompt end": 0, "prompt beats": 0}
    ]
    (new / "generation.json").write_text(json.dumps(manifest))
    write(hands(), new / "free.mid")
    rows = measure("style")(inputs(generated=str(new)), out)
    assert {row["piece"] for row in rows if row["part"] == "all"} == {"piece_0.mid", "piece_1.mid"}
    said = capsys.readouterr().err
    assert "left out: stranger.mid: no file of the references is named stranger" in said
    assert "left out: piece_9.mid: not a MIDI file" in said
    assert "left out: free.mid: generated without a prompt" in said
    assert "2 pieces of 4 in" in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer": {"_target_": "os.system", "command": "true"}}, "os.system, which is not a"),
        ({"tokenizer": {"_target_": "musicgen.tokenization.REMI", "x": 1}}, "cannot be built"),
        (
            {"pieces": 3},
            "is damaged .pieces: Input should be a valid list.; remove it, or generate",
        ),
        ({"pieces": [{}]}, "pieces.0.file: Field required"),
        ({"pieces": [{"file": "a.mid", "prompt": ["x"]}]}, "pieces.0.prompt: Input should be a va"),
        ({"pieces": [{"file": "a.mid", "prompt end": "zz"}]}, "pieces.0.prompt end: Input should"),
        ({"pieces": [{"file": "a.mid", "prompt end": 10**30}]}, "pieces.0.prompt end: Input shou"),
        ({"pieces": [{"file": "a.mid", "prompt end": -1}]}, "pieces.0.prompt end: Input should be"),
        ({"pieces": [{"file": "a.mid", "prompt beats": math.nan}]}, "prompt beats: Input should"),
        ({"references": 5}, "references.str: Input should be a valid string"),
        ({"settings": {"checkpoint": [1]}}, "settings.checkpoint: Input should be a valid string"),
    ],
)
def test_foreign_manifests_are_checked(tmp_path, change, message):
    write(Score(), tmp_path / "a.mid")
    content = {"pieces": [], **change}
    (tmp_path / "generation.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=message) as error:
        read_manifest(tmp_path)
    assert "generation.json" in str(error.value)


def test_descriptors_of_the_own_continuation_are_the_originals(tmp_path, inputs, measure):
    generate(tmp_path / "new", tmp_path / "old", REMI, hands())
    table = measure("descriptors")(inputs(generated=str(tmp_path / "new")), tmp_path)
    own, moved = read_csv(tmp_path / "descriptors_pieces.csv")
    rows = {row["descriptor"]: row for row in table if "n" in row}
    assert rows["in_key_share"]["originals"] > 0.8  # composed in one key
    for name, row in rows.items():
        if "drum" in name:
            assert row["n"] == 0
            assert own[name] == ""
        else:
            assert float(own[name]) == pytest.approx(row["originals"])
            assert (float(own[name]) + float(moved[name])) / 2 == pytest.approx(row["generated"])


def test_a_folder_alone_is_described(tmp_path, inputs, measure):
    given = inputs(generated=str(tmp_path))
    for i in range(3):
        write(beats(*range(i, 4 * i + 4)), tmp_path / f"a{i}.mid")
    assert default_measure(given) == "descriptors"
    rows = summarise(measure("descriptors")(given, tmp_path))
    (found,) = (row for row in rows if row["descriptor"] == "notes_per_bar")
    per_bar = [4.0, 7 / 2, 10 / 3]  # 4 notes in a bar, 7 in 2, 10 in 3
    assert (found["n"], found["mean"]) == (3, pytest.approx(np.mean(per_bar)))


def test_folders_without_pairs_are_compared_as_sets(tmp_path, inputs, measure):
    given = inputs(generated=str(tmp_path / "new"), references=str(tmp_path / "old"))
    for i in range(6):
        write(beats(*range(i, 4 * i + 4)), tmp_path / f"old/a{i}.mid")
        write(beats(*range(0, 30 + i, 2)), tmp_path / f"new/b{i}.mid")
    prompts = ["one", "one", "two", "two", "from nothing", "from nothing"]
    samples = [{"file": f"b{i}.mid", "prompt": prompt} for i, prompt in enumerate(prompts)]
    (tmp_path / "new/generation.json").write_text(json.dumps({"pieces": samples}))
    assert default_measure(given) == "descriptors"
    rows = {row["descriptor"]: row for row in measure("descriptors")(given, tmp_path)}
    assert rows["notes_per_bar"]["n"] == 4  # of samples of one prompt, their mean
    assert rows["notes_per_bar"]["originals"] > 1.4 * rows["notes_per_bar"]["generated"]
    style = rows["onset-duration similarity"]  # two of the beats against all four
    assert style["similarity"] < 0.8 < style["similarity of halves"]
    write(beats(0), tmp_path / "new/a0.mid")
    assert default_measure(given) == "style"
    assert default_measure(inputs()) == "evaluation"


def test_each_style_of_each_folder_by_hand(tmp_path, inputs, measure):
    originals, other = {}, compose_groove(seed=5, family="funk", style=0, song=0)
    for style, song in product((0, 1), (0, 1)):
        score = originals[style, song] = compose_groove(0, "rock", style, song)
        for folder, music in (("R", score), ("A", score), ("B", other)):
            write(music, tmp_path / folder / f"rock/style{style}/s{style}{song}.mid")
    folders = [str(tmp_path / "A"), str(tmp_path / "B")]
    style_over_time = measure("style_over_time")
    given = inputs(compare=folders, references=str(tmp_path / "R"))
    rows = style_over_time(given, tmp_path)
    points = {(p["generated"], p["profile"], p["piece"], p["part"]): p["value"] for p in rows}
    for folder, music in zip(folders, (originals, dict.fromkeys(originals, other)), strict=True):
        for style, part in product((0, 1), range(4)):
            found = [
                mean_similarity(
                    style_profiles(music[key], "time_pitch", (part, 4)),
                    style_profiles(originals[key], "time_pitch"),
                )
                for key in ((style, 0), (style, 1))
            ]
            point = points[folder, "time_pitch", f"rock/style{style}", PARTS[part]]
            assert point == pytest.approx(np.mean(found))
    # The other music is less alike.
    for style, part in product(("rock/style0", "rock/style1"), PARTS):
        own, moved = (points[folder, "onset_duration", style, part] for folder in folders)
        assert own > moved
    assert (tmp_path / "style_over_time.png").stat().st_size > 10_000
    with pytest.raises(UserError, match="give generated=DIR"):
        style_over_time(inputs(), tmp_path)


def test_a_part_without_notes_is_na_and_keeps_its_place(tmp_path, inputs, measure):
    score = compose_groove(seed=0, family="rock", style=0, song=0)
    write(score, tmp_path / "R/song.mid")
    quarter, tracks = score.end // 4, []
    for track in score.tracks:
        part = track.notes["onset"] // quarter
        tracks.append(replace(track, notes=track.notes[(part < 1) | (part >= 3)]))
    write(replace(score, tracks=tracks), tmp_path / "A/song.mid")
    style_over_time = measure("style_over_time")
    given = inputs(generated=str(tmp_path / "A"), references=str(tmp_path / "R"))
    rows = style_over_time(given, tmp_path)
    values = [row["value"] for row in rows if row["profile"] == "onset_duration"]
    assert [row["part"] for row in rows] == [*PARTS] * 4
    assert np.isnan(values).tolist() == [False, True, True, False]


LABELS = {"a1": "a", "a2": "a", "b1": "b", "b2": "b", "none": ""}


def beats(*onsets: int) -> Score:
    """A piano piece with a short note at each beat."""
    return Score(480, [Track(notes=notes_from([(480 * beat, 60, 60, 64) for beat in onsets]))])


def test_values_by_hand():
    pieces = {
        "a1": beats(0, 1),  # cosine with the part {0}: √½
        "a2": beats(0),  # 1
        "b1": beats(0, 1, 2, 3),  # 1/2
        "b2": beats(1),  # 0
        "none": Score(),  # left out: no note
    }
    found = anchor_similarities([("a1", beats(0)), ("none", beats(0))], LABELS, pieces.get)
    values = found["onset_duration"]
    assert values["same piece"] == pytest.approx([0.5**0.5, np.nan], nan_ok=True)
    # A piece without a style is compared with all others.
    assert values["unrelated pieces"] == pytest.approx([1 / 4, (0.5**0.5 + 1 + 1 / 2 + 0) / 4])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("maj001.ROCK_a.mid", "ROCK_a"),
        ("midi/s1.casio-blues_Blues.MID", "casio-blues_Blues"),
        ("song.mid", ""),
        ("funk/song.mid", "funk"),
        ("rock/soft/song.mid", "rock/soft"),
    ],
)
def test_labels_from_names(name, expected):
    assert style_labels([name]) == {name: expected}
