"""Gaps that are filled: what is asked for, what the model hears, and that all else stays."""

from collections import Counter
from dataclasses import replace
from functools import partial

import mido
import numpy as np
import pytest

from musicgen.composer import compose_song
from musicgen.errors import UserError
from musicgen.generation.gap import Gap, parse_gap
from musicgen.midi import Marker, Score, Track, notes_from, write
from musicgen.position import Learnable
from musicgen.tokenization import Songs
from musicgen.tokenization.coordinates import Coordinates
from tests.generation.builders import music_model, timed
from tests.generation.test_keep import SONGS, accompanied

GAPS = Songs(**SONGS.settings() | {"gap_probability": 0.5})


@pytest.mark.parametrize(
    ("text", "gap"),
    [
        ("violin 5-8", Gap(("violin",), (4, 8))),
        ("violin 1", Gap(("violin 1",))),
        ("violin 1 5-8", Gap(("violin 1",), (4, 8))),
        ("oboe, horn 2 bars 9 - 12", Gap(("oboe", "horn 2"), (8, 12))),
        ("bass bar 5", Gap(("bass",), (4, 5))),
        (5, Gap((), (4, 5))),
        ("5-8", Gap((), (4, 8))),
        ("bass,piano", Gap(("bass", "piano"))),
        (["bass", "piano 5-8"], Gap(("bass", "piano"), (4, 8))),
    ],
)
def test_gaps_are_read_as_people_say_them(text, gap):
    assert parse_gap(text) == gap


@pytest.mark.parametrize("text", ["", ",", "a,", "oboe, 5-8", ",bass"])
def test_what_is_no_gap_is_said_in_one_line(text):
    with pytest.raises(UserError, match=r"fill=.*: expected parts, bars or both"):
        parse_gap(text)
    with pytest.raises(UserError, match=r"fill=0-3: expected bars from 1"):
        parse_gap("0-3")
    for several in ("violin 5-8, bass 9-12", ["violin 5-8", "bass 9-12"], ["bar 3", 5]):
        with pytest.raises(
            UserError, match=r"fill=.*: expected bars once, at the end; fill others"
        ):
            parse_gap(several)


def test_the_model_hears_up_to_eight_bars_behind_the_gap():
    model = music_model(GAPS)
    (piece,) = model.generate(accompanied(), rewrite=2)
    tokens, marks = piece.tokens, GAPS.families["Gap"]
    first = GAPS.future_length(tokens)
    read = GAPS.normalise_rhythm(accompanied())
    future = GAPS.future(GAPS.encode(read)[:-1], 2, None)
    assert tokens[:first].tolist() == future.tolist()
    assert tokens[0] == marks.start
    assert piece.prompt.gap_end == 36 + 36
    (piece,) = model.generate(accompanied(), rewrite="3-4")  # nothing follows
    assert GAPS.future_length(piece.tokens) == 0


def test_the_model_hears_the_chords_behind_the_gap():
    score = accompanied()
    score.markers = [Marker(0, "G_M"), Marker(600, "C_M")]
    (piece,) = music_model(GAPS, "auto").generate(score, rewrite=2)
    future = [*map(GAPS.vocabulary.token, piece.tokens[: GAPS.future_length(piece.tokens)])]
    assert "Chord_C_M" in future


def test_what_follows_the_gap_changes_what_is_written():
    model = music_model(GAPS)
    other = accompanied()
    for track in other.tracks[1:3]:
        track.notes["pitch"][track.notes["onset"] >= 576] += 5
    pieces = model.generate([accompanied(), other], rewrite=2, num_samples=4)
    written = [piece.new_score.notes.tolist() for piece in pieces]
    assert written[:4] != written[4:]


def test_positions_of_a_prompt_are_those_of_the_whole_order():
    """The future stands where the gap ends, also before the gap is complete."""
    (piece,) = music_model(GAPS).generate(accompanied(), rewrite="2-3", seed=2)
    prompt, names, coordinates = piece.prompt, ("index", "time", "bar"), Coordinates(GAPS)
    of_prompt = coordinates.of(prompt.tokens, names, gap_end=prompt.gap_end)
    of_piece = coordinates.of(piece.tokens, names)
    assert of_prompt.tolist() == of_piece[: len(of_prompt)].tolist()


SONG = accompanied()
TWO = Score(
    96,
    [
        Track("Violin", 40, notes=notes_from([(96 * i, 90, 72, 60) for i in range(9)])),
        Track("Viola", 41, notes=notes_from([(96 * i, 90, 60, 61) for i in range(9)])),
        Track("Cello", 32, notes=notes_from([(96 * i, 90, 48, 62) for i in range(9)])),
    ],
)


@pytest.mark.parametrize(
    ("score", "fill", "words"),
    [
        (SONG, "flute 1-2", "fill=flute: expected parts and bars, such as bass 5-8, of voice,"),
        (
            TWO,
            "violin 1-2",
            "Viola, Cello and it are one part of the model, Strings; fill=strings writes",
        ),
        (SONG, "3-9", "fill: expected some of its 4 bars"),
    ],
)
def test_a_part_that_cannot_be_filled_is_said_in_one_line(score, fill, words):
    with pytest.raises(UserError, match=words):
        music_model(SONGS).generate(score, fill=fill)


def test_a_part_is_named_by_its_track_or_is_new():
    score = accompanied()
    (piece,) = music_model(GAPS).generate(score, fill="singstimme 2-3", seed=1)
    assert piece.prompt.targets == [0]
    (piece,) = music_model(GAPS).generate(score, fill="bass", seed=1)
    assert [GAPS.instruments[i].name for i in piece.prompt.targets] == ["Bass"]
    with pytest.raises(UserError, match="fill=bass: expected bars alone with keep"):
        music_model(GAPS).generate(score, fill="bass", keep="voice")


def test_a_kept_piece_is_as_long_as_the_positions():
    model = music_model(SONGS, position=partial(Learnable, max_length=300))
    request = model.request(fill="piano")
    prompt = model.prompt(SONG, request=request)
    assert request.num_new_tokens(prompt, model.model) == 300 - len(prompt.tokens)


def test_all_tracks_of_a_part_are_named_if_it_is_written():
    quartet = Score(96, [*TWO.tracks[:2], replace(TWO.tracks[2], name="", program=42)])
    prompt = music_model(SONGS).prompt(quartet, request=music_model(SONGS).request(fill="strings"))
    expected = "Violin, Viola, a track without a name written, as one part of the model"
    assert prompt.summary.rules == [expected]


def test_a_tune_alone_is_a_voice_below_which_a_part_is_filled():
    tune = Score(96, [Track("tune", 0, notes=TWO.tracks[0].notes)])
    (piece,) = music_model(SONGS).generate(tune, fill="piano", seed=1)
    assert "tune read as Voice" in piece.prompt.summary.rules
    names = [SONGS.instruments[i].name for i in piece.prompt.targets]
    assert names == ["Piano"]
    assert piece.prompt.kept.unchanged.tracks[0].notes.tolist() == tune.tracks[0].notes.tolist()


def song_file(seed, path):
    """A composed song with controllers, lyrics and bends of all channels at random ticks."""
    rng = np.random.default_rng(seed)
    write(compose_song(seed, 0), path)
    file = mido.MidiFile(path)
    for track in file.tracks[1:]:
        channel = next((m.channel for m in track if m.type == "note_on"), None)
        events = timed(track)
        if channel is None:
            continue
        for tick in rng.integers(0, events[-1][0], 12).tolist():
            for message in (
                mido.Message("control_change", channel=channel, control=7, value=tick % 100),
                mido.Message("control_change", channel=channel, control=64, value=tick % 128),
                mido.MetaMessage("lyrics", text=f"la{tick}"),
            ):
                events.append((tick, message))
        events.sort(key=lambda row: (row[0], row[1].type == "end_of_track"))
        ticks = [0, *(tick for tick, _ in events)]
        track[:] = [
            message.copy(time=tick - before)
            for before, (tick, message) in zip(ticks, events, strict=False)
        ]
    file.save(path)
    return file


@pytest.mark.parametrize("seed", range(8))
def test_outside_the_gap_every_event_stays(seed, tmp_path):
    """Byte for byte, of random songs and gaps."""
    path = tmp_path / "song.mid"
    before = song_file(seed, path)
    rng = np.random.default_rng(seed)
    first = int(rng.integers(1, 6))
    last = first + int(rng.integers(0, 4))
    part = rng.choice(["", "piano "])
    model = music_model(GAPS)
    (piece,) = model.generate(path, fill=f"{part}{first}-{last}", seed=seed, performance="none")
    found = piece.midi_file()
    assert found.notice == ""
    (tmp_path / "filled.mid").write_bytes(found.data)
    after = mido.MidiFile(tmp_path / "filled.mid")
    begin, end = piece.prompt.kept.span
    names = {piece.score.tracks[i].name.lower() for i in piece.prompt.targets}
    for own, new in zip(before.tracks, after.tracks, strict=True):
        is_target = any(GAPS.part_names[i] in names for i in [find(own)] if i is not None)
        removed = removed_notes(own, begin, end) if is_target else Counter()
        gone, added = counted(own), counted(new)
        gone, added = gone - added, added - gone
        assert all(begin <= tick <= end for tick, _ in added)
        for (tick, message), number in gone.items():
            held = message[0] >> 4 == 0xB and begin <= tick < end
            assert held or number <= removed[tick, message]
        if not is_target:
            assert not gone
            assert not added


def find(track):
    """The part of a track of a file."""
    program = next((m.program for m in track if m.type == "program_change"), 0)
    notes = [m for m in track if m.type == "note_on"]
    if not notes:
        return None
    return GAPS.find_track(Track(track.name, program, notes[0].channel == 9))


def counted(track):
    """The events of a track with their ticks, as bytes."""
    return Counter((tick, bytes(message.bin())) for tick, message in timed(track)[:-1])


def removed_notes(track, begin, end):
    """The events of the notes that begin in a span."""
    removed, sounding = Counter(), {}
    for tick, message in timed(track):
        if message.type == "note_on" and message.velocity:
            sounding[message.note] = begin <= tick < end
            removed[tick, bytes(message.bin())] += sounding[message.note]
        elif message.type in ("note_on", "note_off"):
            removed[tick, bytes(message.bin())] += sounding.get(message.note, False)
    return removed
