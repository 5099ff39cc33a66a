"""What prompts hold of pieces, and the tempo and programs of what is put behind them."""

import io
from dataclasses import replace

import mido
import numpy as np
import pytest

from musicgen.composer import compose_pop
from musicgen.errors import UserError
from musicgen.generation.prompt import make_prompt
from musicgen.generation.sampling import SamplingParams
from musicgen.midi import (
    TEMPO,
    KeySignature,
    Score,
    TimeSignature,
    Track,
    loads,
    notes_from,
    write,
)
from musicgen.midi.key import key_fifths
from musicgen.tokenization import REMI, TIME_SIGNATURES, Chorale, Groove2Groove, Songs
from tests.generation.builders import (
    BAR,
    BEAT,
    FILES,
    READERS,
    TOKENIZERS,
    chunks,
    music_model,
    timed,
    track_bytes,
)
from tests.tokenizers import frozen_tokenizers

METRE_CHANGES = [TimeSignature(0, 4, 4), TimeSignature(4 * BEAT, 3, 4)]


@pytest.mark.parametrize(
    ("num_bars", "end_beat", "last_bar"), [(1, 4, 16), (2, 7, 12), (None, 13, 12)]
)
def test_a_prompt_ends_where_its_bar_does(num_bars, end_beat, last_bar):
    notes = notes_from([(beat * BEAT, BEAT, 60 + beat, 64) for beat in range(13)])
    score = Score(BEAT, [Track("Piano", notes=notes)], time_signatures=METRE_CHANGES)
    prompt = make_prompt(REMI(time_signatures=TIME_SIGNATURES), score, "waltz", num_bars)
    assert prompt.end.step == 4 * end_beat
    assert prompt.end.tick == end_beat * prompt.score.ticks_per_beat
    assert prompt.bar_length == last_bar
    assert prompt.score.num_notes == end_beat


def band(num_bars: int) -> Score:
    """Piano and drums in quarters; 3/4 from the third bar on."""
    rows = [(beat * BEAT, BEAT // 2, 60 + beat % 12, 64) for beat in range(4 * num_bars)]
    tracks = [Track("Piano", notes=notes_from(rows)), Track("Drums", 0, True, notes_from(rows))]
    return Score(BEAT, tracks, time_signatures=[TimeSignature(8 * BEAT, 3, 4)])


def test_losses_are_counted_in_the_bars_used():
    prompt = make_prompt(REMI(chords=False), band(9), "song", 2)
    assert prompt.notice == (
        "song: 8 notes of drums dropped, goes on in 4/4, for 3/4 take checkpoint=groove-small"
    )
    assert (prompt.summary.notes_kept, prompt.summary.notes_read) == (8, 16)
    assert "3/4 read as 4/4" in make_prompt(REMI(chords=False), band(9), "song", 3).notice
    silence = Score(BEAT, [], time_signatures=METRE_CHANGES)
    with pytest.raises(UserError, match=r"silence\.mid: no note"):
        make_prompt(REMI(), silence, "silence.mid", 4)


@pytest.mark.parametrize(
    ("signature", "is_held"),
    [((3, 8), True), ((11, 16), True), ((7, 32), False), ((13, 64), False)],
)
def test_another_model_is_advised_only_if_it_has_the_metre(signature, is_held):
    """The band model has twelve steps in a beat, so that no bar of 13/64 fits."""
    score = replace(band(9), time_signatures=[TimeSignature(0, *signature)])
    notice = make_prompt(REMI(chords=False), score, "song", 2).notice
    advice = (
        "goes on in 4/4" + ", for {}/{} take checkpoint=groove-small".format(*signature) * is_held
    )
    assert advice in notice
    assert ("groove-small" in notice) == is_held
    if is_held:
        assert "goes on" not in make_prompt(Groove2Groove(), score, "song", 2).notice


def test_bars_are_in_the_metre_of_the_first_note():
    """A time signature after the beginning does not apply to it; one in a count-in does."""
    score = band(9)
    for tokenizer in (REMI(time_signatures=TIME_SIGNATURES), Groove2Groove()):
        assert tokenizer.bar_length(score) == 4 * tokenizer.steps_per_beat
        later = score.clip(8 * BEAT, score.end)
        later.time_signatures = [TimeSignature(0, 4, 4), TimeSignature(4, 3, 4)]
        for track in later.tracks:
            track.notes["onset"] += 4
        assert tokenizer.bar_length(later) == 3 * tokenizer.steps_per_beat


def test_a_bar_that_the_grid_cannot_hold_keeps_its_metre():
    """7/32 are 10.5 steps of a grid of twelfths, and 10 are in no metre."""
    score = band(9)
    score.time_signatures = [TimeSignature(0, 7, 32)]
    prompt = make_prompt(Groove2Groove(), score, "song", 4, data=b"")
    assert prompt.bar_length == 10
    assert prompt.source.time_signature is None
    assert prompt.score.time_signatures == score.time_signatures


def test_a_prompt_keeps_its_tempi_if_tokens_have_none():
    score = band(4)
    score.ticks_per_beat = 240  # so that a bar has two notes
    score.tempos = np.array([(0, 90.0), (2 * 240, 99.0), (30 * 240, 60.0)], dtype=TEMPO)
    prompt = make_prompt(Groove2Groove(), score, "song", 1)
    assert prompt.score.tempos.tolist() == [(0, 90.0), (960, 99.0)]


@pytest.mark.parametrize("tempo_at", [0, 960, 11 * BEAT, 12 * BEAT])
@pytest.mark.parametrize(
    "tokenizer",
    [REMI(), REMI(time_signatures=TIME_SIGNATURES), REMI(chords=False), Groove2Groove(), Chorale()],
)
def test_a_piece_is_encoded_once_and_begins_as_without_the_silence(
    tokenizer, tempo_at, monkeypatch
):
    score = compose_pop(1, 1)
    score.tempos["tick"] = np.maximum(score.tempos["tick"], tempo_at)
    for track in score.tracks:
        track.notes["onset"] += 3 * 4 * BEAT  # chords begin before
    grid = tokenizer.decode(tokenizer.encode(score))
    expected = tokenizer.encode(grid.clip(3 * 4 * BEAT, grid.end + 1))
    encode, calls = type(tokenizer).encode_with_report, []

    def counted(self, score):
        calls.append(score)
        return encode(self, score)

    monkeypatch.setattr(type(tokenizer), "encode_with_report", counted)
    prompt = make_prompt(tokenizer, score, "song", 2)
    assert len(calls) == 1
    assert len(prompt.tokens) > 10
    assert prompt.tokens.tolist() == expected[: len(prompt.tokens)].tolist()


@pytest.mark.parametrize(
    ("chords", "has_chords"), [("auto", True), ("recognised", True), ("none", False)]
)
def test_a_prompt_gets_chords_as_the_training_pieces_did(chords, has_chords):
    score = compose_pop(0, 1)
    score.markers.clear()
    made = music_model(REMI(), chords).prompt(score, "p", 2)
    assert bool(made.score.markers) == has_chords
    assert ("no chord markers" in made.notice) != has_chords


def test_one_prompt_needs_no_list(tmp_path):
    model, score, path = music_model(REMI()), compose_pop(0, 1), tmp_path / "song.mid"
    write(score, path)
    expected = model.prompt(score, prompt_bars=1).tokens.tolist()
    for prompts in (score, path, str(path), [path], (score,)):
        (piece,) = model.generate(prompts, prompt_bars=1, max_new_tokens=1)
        assert piece.tokens[:-1].tolist() == expected
    (new,) = model.generate(max_new_tokens=1)
    assert new.prompt.tokens.tolist() == REMI().start_tokens().tolist()
    assert model.generate([]) == []  # as of a glob without a match
    request = model.request(sampling=SamplingParams(top_p=0.5), temperature=0.3)
    assert request.sampling == SamplingParams(top_p=0.5, temperature=0.3)


@pytest.fixture
def continued(tmp_path):
    """Continues one of FILES, or nothing; returns the piece and its file."""

    def run(kind, title=None, prompt_bars=2, **options):
        path = tmp_path / "song.mid"
        path.write_bytes(FILES[title or "one note"].data())
        (piece,) = music_model(READERS[kind]).generate(
            title and path, prompt_bars=prompt_bars, bars=2, max_new_tokens=24, **options
        )
        return piece, piece.midi_file()

    return run


@pytest.mark.parametrize("kind", READERS)
def test_a_tempo_begins_behind_the_prompt_and_stays(continued, kind):
    piece, (data, end, *_) = continued(kind, "tempo changes", tempo=91.5)
    assert end == 2 * BAR
    tempi = [tuple(row) for row in loads(data).tempos.tolist()]
    assert [round(bpm, 1) for tick, bpm in tempi if tick < 2 * BAR] == [90, 180.5]
    assert tempi[-1] == (2 * BAR, pytest.approx(91.5, abs=1e-3))
    assert piece.score.tempos["bpm"].tolist() == [91.5]
    for events, body in zip(FILES["tempo changes"].tracks, chunks(data), strict=False):
        assert body.startswith(track_bytes([row for row in events if row[0] < 2 * BAR]))
    new, _ = continued(kind, tempo=50)
    assert new.score.tempos.tolist() == [(0, 50.0)]


def test_the_model_reads_the_prompt_at_its_tempo_and_may_change_it_if_told(continued):
    piece, _ = continued("remi", "tempo changes", tempo=92, fix_tempo=False)
    tempi = TOKENIZERS["remi"].families["Tempo"]
    assert [t for t in piece.prompt.tokens if t in tempi] == [tempi.start + (92 - 32) // 3]


def test_programs_begin_behind_the_prompt(continued):
    given = {"bass": "Acoustic Bass", "Piano": 4, "Strings": 48, "Guitar": "24"}
    piece, (data, end, *_) = continued("groove2groove", "band", None, program=given, seed=3)
    changes = {}
    for track in mido.MidiFile(file=io.BytesIO(data)).tracks:
        for tick, message in timed(track):
            if message.type == "program_change":
                changes.setdefault(message.channel, []).append((tick, message.program))
    assert changes == {1: [(0, 33), (end, 32)], 2: [(0, 4), (end, 4)]}
    assert {t.name: t.program for t in piece.score.tracks if not t.is_drum} == {
        "Bass": 32, "Guitar": 24, "Piano": 4, "Strings": 48,
    }  # fmt: skip
    assert continued("remi", program="violin")[0].score.tracks[0].program == 40


def test_a_program_without_a_name_is_that_of_the_only_track_that_plays(continued):
    piece, _ = continued("groove2groove", "one note", None, program="Violin")
    programs = {track.name: track.program for track in piece.score.tracks}
    assert programs["Piano"] == 40
    assert {programs["Bass"], programs["Guitar"], programs["Strings"]}.isdisjoint({40})
    with pytest.raises(
        UserError, match=r"program=Violin: expected \{PART: Violin\}, of Bass, Guitar"
    ):
        continued("groove2groove", "band", None, program="Violin")  # bass and piano play
    with pytest.raises(UserError, match=r"program=Violin: expected \{PART: Violin\}"):
        music_model(TOKENIZERS["groove2groove"]).generate(program="Violin")


@pytest.mark.parametrize(("key", "chord"), [("Gb", "Cb_M"), ("F#", "B_M"), ("C#", "B_M")])
def test_chords_and_keys_are_spelled_in_the_signature_of_the_prompt(key, chord):
    model = music_model(frozen_tokenizers()["songs"])
    (piece,) = model.generate(key=key, chords="B", bars=1, max_new_tokens=24)
    assert [marker.text for marker in piece.score.markers][:1] == [chord]
    assert {s.fifths for s in piece.score.key_signatures} == {key_fifths(key)}


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("remi", {"program": "Kazoo"}, "program=Kazoo: expected 0 to 127"),
        ("remi", {"program": 128}, "program=128: expected an integer from 0 to 127"),
        ("groove2groove", {"program": 3}, "expected {PART: Violin}, of Bass, Guitar, Piano"),
        ("groove2groove", {"program": {"Drums": 3}}, "expected {PART: Violin}, of Bass"),
    ],
)
def test_values_that_cannot_be_used(continued, kind, options, message):
    with pytest.raises(UserError, match=message):
        continued(kind, **options)


def test_a_prompt_has_the_modes_that_its_file_says():
    """Those that are found from the notes are the tokens' alone."""
    tokenizer = Songs(**frozen_tokenizers()["songs"].settings() | {"phrases": True})
    rows = [(1920 * i, 1920, p, 80) for i, x in enumerate((0, 5, -1, 0)) for p in (45 + x, 52 + x)]
    rows += [(1920 * i, 1920, p, 80) for i, p in enumerate((60, 65, 68, 60))]
    score = Score(480, [Track("Piano", notes=notes_from(rows))])
    for signatures, expected in (
        ([], []),
        ([KeySignature(0, 0)], [KeySignature(0, 0)]),
        ([KeySignature(0, 0, True)], [KeySignature(0, 0, True)]),
    ):
        prompt = make_prompt(tokenizer, replace(score, key_signatures=signatures), "a.mid", 2)
        assert "Key_0m" in [tokenizer.vocabulary.token(x) for x in prompt.tokens.tolist()]
        assert prompt.score.key_signatures == expected
        assert prompt.piece.key_signatures == expected


@pytest.mark.parametrize("options", [{}, {"key": "Dm", "tempo": 90}])
def test_a_new_piece_has_the_time_signature_that_is_asked_for(options):
    model = music_model(frozen_tokenizers()["songs"])
    for name, bar in ("7/8", 7 * 240), ("3/4", 3 * 480), ("4/4", 4 * 480):
        (piece,) = model.generate(bars=3, time_signature=name, **options)
        signatures = piece.new_on_grid.bar_starts(), loads(piece.midi_file().data).time_signatures
        assert signatures[0][:2].tolist() == [0, bar]
        assert [f"{x[1]}/{x[2]}" for x in signatures[1] or [(0, 4, 4)]] == [name]


def test_a_new_piece_has_no_time_signature_that_its_tokens_lack():
    for tokenizer in (Chorale(), Groove2Groove()):
        with pytest.raises(UserError, match="time_signature=3/4: expected one of 4/4, or a prompt"):
            music_model(tokenizer).generate(bars=2, time_signature="3/4")
