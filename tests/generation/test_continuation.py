"""Continuation with small untrained models: what is tested does not depend on training."""

import re
from dataclasses import replace
from functools import partial
from io import BytesIO

import numpy as np
import pretty_midi
import pytest
import torch
from scipy.io import wavfile

from musicgen.errors import UserError
from musicgen.generation.continuation import Continuation
from musicgen.generation.engines import Engine
from musicgen.generation.prompt import empty_prompt, make_prompt
from musicgen.generation.request import GenerationRequest
from musicgen.generation.sampler import Sampler
from musicgen.generation.sampling import SamplingParams
from musicgen.midi import TEMPO, Score, TimeSignature, Track, dumps, loads, notes_from, read
from musicgen.position import Learnable, RoPE
from musicgen.tokenization import REMI, Chorale, Groove2Groove
from musicgen.tokenization.chords import chord_index, parse_chord
from musicgen.tokenization.coordinates import Coordinates
from tests.generation.builders import SCORES, TOKENIZERS, music_model, run, small_model
from tests.midi.test_audio import soundfont_bytes
from tests.tokenizers import frozen_tokenizers


@pytest.fixture(params=["remi", "groove2groove"])
def tokenizer(request):
    return TOKENIZERS[request.param]


def notes_before(score, tick):
    """Track, pitch and onset of what begins before a tick."""
    return {
        (track.name, int(note["pitch"]), int(note["onset"]))
        for track in score.tracks
        for note in track.notes
        if note["onset"] < tick
    }


def test_prompt_stays_in_front_unchanged_and_the_rest_is_grammatical(tokenizer):
    prompt = make_prompt(tokenizer, SCORES[tokenizer.name], "p", 3)
    assert prompt.end.tick == 3 * 4 * 480
    original = tokenizer.decode(tokenizer.encode(SCORES[tokenizer.name]))
    first = min(int(t.notes["onset"].min()) for t in original.tracks if len(t.notes))
    start = first // 1920 * 1920
    expected = notes_before(original.clip(start, original.end + 1), prompt.end.tick)
    for continuation in run(tokenizer, prompts=[prompt], num_samples=3):
        assert notes_before(continuation.score, prompt.end.tick) == expected
        tokenizer.grammar().start(torch.from_numpy(continuation.tokens)[None])
        encoded = tokenizer.encode(tokenizer.decode(continuation.tokens))
        assert np.array_equal(encoded[: len(prompt.tokens)], prompt.tokens)


def test_a_closed_piece_may_end_with_the_first_note_of_its_last_bar_and_not_before():
    remi = TOKENIZERS["remi"]
    model = small_model(remi)
    model.head.bias.data[remi.vocabulary.id("EOS")] = 50.0  # always wants to end
    (done,) = run(remi, model, bars=3, ending="close")
    assert done.tokens[-1] == remi.vocabulary.id("EOS")
    assert (done.tokens == remi.vocabulary.id("Bar")).sum() == 2 + 3
    last_bar = (2 + 2) * done.prompt.bar_length
    assert remi.times(done.tokens)[-1] >= last_bar
    is_pitch = np.isin(done.tokens, remi.families["Pitch"])
    assert (remi.times(done.tokens)[is_pitch] >= last_bar).sum() == 1
    (free,) = run(remi, model, bars=3, ending="close", allow_end=True)
    assert remi.times(free.tokens)[-1] < last_bar


def test_tempi_from_where_the_continuation_begins_are_in_the_file():
    remi = TOKENIZERS["remi"]
    quarters = [(480 * beat, 480, 60 + beat % 5, 64) for beat in range(16)]
    tempos = np.array([(0, 90.0), (960, 100.0), (3840, 120.0), (5760, 150.0)], TEMPO)
    whole = Score(480, [Track("Piano", notes=notes_from(quarters))], tempos)
    first = whole.clip(0, 2 * 1920)
    prompt = make_prompt(remi, first, "first", 2, dumps(first))
    tokens = remi.encode(whole)
    own = remi.decode(tokens).tempos
    piece = Continuation(prompt, 0, tokens, remi.decode(tokens), 2)
    assert own["tick"].tolist() == [0, 960, 3840, 5760]
    found = loads(piece.midi_file().data).tempos
    assert found["tick"].tolist() == [0, 960, 3840, 5760]
    assert found["bpm"] == pytest.approx([90, 100, *own["bpm"][2:]], rel=1e-4)


def test_as_many_bars_are_added_as_requested(tokenizer):
    for bars in (1, 2):
        (done,) = run(tokenizer, bars=bars)
        times = tokenizer.times(done.tokens)
        assert done.prompt.end.step <= times.max() < (2 + bars) * done.prompt.bar_length
        assert notes_before(done.score, (2 + bars) * 1920) == notes_before(done.score, 10**9)
    if tokenizer.name == "remi":
        assert (done.tokens == tokenizer.vocabulary.id("Bar")).sum() == 2 + bars
    else:  # whose tokens have neither
        assert done.score.tempos["bpm"][0] == SCORES[tokenizer.name].tempos["bpm"][0]
        assert loads(dumps(done.score)).time_signatures[0][1:] == (4, 4)
    (new,) = run(tokenizer, prompts=[empty_prompt(tokenizer)])
    start = tokenizer.start_tokens()
    assert new.score.num_notes > 0
    assert new.tokens[: len(start)].tolist() == start.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 0}, "num_samples=0: expected an integer from 1 to 10000"),
        ({"bars": 1.5}, "bars=1.5: expected an integer from 1 to 10000"),
        ({"tempo": 0}, "tempo=0: expected a number >= 4"),
        ({"total_tokens": 2000, "ending": "close"}, "ending=close: expected bars"),
        ({"cadence": "half@3x"}, "cadence=half@3x: expected open, close, or phrases"),
        ({"total_tokens": 2000, "chords": "C"}, "chords=C: expected bars, not length_factor"),
        ({"form": "A 2"}, "form=A 2: expected a letter for each section"),
        ({"form": "A" * 101}, "form=A+: expected a letter for each section, up to 100"),
        ({"form": "AABA", "section_bars": 10**8}, "section_bars=1.* from 1 to 1000"),
        ({"bars": 10**8}, "bars=100000000: expected an integer from 1 to 10000"),
        ({"num_samples": 10**9}, "num_samples=1.* from 1 to 10000"),
        ({"allow_end": "no"}, "allow_end=no: expected true or false"),
        ({"chords": ["C", "Am"]}, r"chords=\['C', 'Am'\]: expected chords such as C"),
        ({"chords": "C X"}, "chords=X: expected chords such as"),
        ({"keep": "alto", "bars": 8}, "bars=8: expected to be left out with keep"),
        ({"rewrite": 2, "ending": "close"}, "ending=close: expected to be left out"),
    ],
)
def test_options_that_cannot_be_used_say_so(options, message):
    with pytest.raises(UserError, match=f"^{message}"):
        GenerationRequest.of(**options)


def test_length_in_tokens_is_exact_and_counts_the_prompt(tokenizer):
    prompt = make_prompt(tokenizer, SCORES[tokenizer.name], "p", 1)
    total = len(prompt.tokens) + 50
    (done,) = run(tokenizer, prompts=[prompt], total_tokens=total)
    assert len(done.tokens) == total
    (done,) = run(tokenizer, prompts=[prompt], total_tokens=total, max_new_tokens=7)
    assert done.num_new_tokens == 7
    with pytest.raises(UserError, match="keep fewer bars of it or generate more tokens"):
        run(tokenizer, prompts=[prompt], total_tokens=5)


def test_random_numbers_do_not_depend_on_the_rest_of_the_batch(tokenizer):
    """Under uniform logits, which have no rounding, rows are the same in any batch."""
    model = small_model(tokenizer)
    torch.nn.init.zeros_(model.head.weight)
    prompts = [make_prompt(tokenizer, SCORES[tokenizer.name], f"p{n}", n) for n in (1, 2)]
    options = {"bars": 1, "engine": "eager"}
    alone = [
        run(tokenizer, model, [p], num_samples=2, **options)[1].tokens.tolist() for p in prompts
    ]
    (other,) = run(tokenizer, model, prompts[:1], seed=1, **options)
    for batch_size in (4, 32):
        done = run(tokenizer, model, prompts, num_samples=3, batch_size=batch_size, **options)
        assert len(done) == 6
        assert [c.tokens.tolist() for c in done if c.sample == 1] == alone
        assert len({tuple(c.tokens) for c in done}) == 6
        assert other.tokens.tolist() not in [c.tokens.tolist() for c in done]


@torch.inference_mode()
def test_logits_after_a_prompt_do_not_depend_on_other_prompts():
    tokenizer = TOKENIZERS["remi"]
    sampler = Sampler(small_model(tokenizer), tokenizer, GenerationRequest.of(engine="eager"))
    one, two, three = (make_prompt(tokenizer, SCORES["remi"], "p", n) for n in (1, 2, 3))
    other = replace(two, tokens=np.roll(two.tokens, 1))  # of equal length, so read with `two`
    alone = sampler.decoder([two]).prefill([two], torch.zeros(1, dtype=torch.long))
    for prompts in ([one, two, other, three], [other, three, two]):
        index = torch.tensor([prompts.index(two), 0, prompts.index(two)])
        decoder = sampler.decoder(prompts)
        logits = decoder.prefill(prompts, index)
        torch.testing.assert_close(logits[[0, 2]], alone.expand(2, -1), rtol=1e-4, atol=1e-5)
        assert decoder.state.length.tolist()[::2] == [len(two.tokens)] * 2


def test_pieces_end_only_where_they_may():
    tokenizer = TOKENIZERS["remi"]
    eos = tokenizer.vocabulary.id("EOS")
    model = small_model(tokenizer)
    model.head.bias.data[eos] = 50.0  # always wants to end
    (never,) = run(tokenizer, model)
    assert eos not in never.tokens
    (at_once,) = run(tokenizer, model, allow_end=True)
    assert at_once.tokens[-1] == eos
    assert at_once.num_new_tokens < never.num_new_tokens


def test_a_limit_on_positions_ends_rows_of_different_lengths():
    tokenizer = TOKENIZERS["remi"]
    prompts = [make_prompt(tokenizer, SCORES["remi"], f"p{n}", n) for n in (1, 2)]
    model = small_model(tokenizer, partial(Learnable, max_length=len(prompts[1].tokens) + 30))
    short, long = run(tokenizer, model, prompts, bars=90)
    assert long.num_new_tokens == 30
    assert len(short.tokens) == len(long.tokens)
    with pytest.raises(UserError, match=r"the max_length=\d+ of .* \(learnable\)"):
        run(tokenizer, model, total_tokens=model.position.max_length + 1)


def test_coordinates_when_decoding_are_those_of_the_whole_piece(tokenizer, monkeypatch):
    position = partial(RoPE, coordinates=["time", "bar", "beat", "pitch"])
    model, step, found = small_model(tokenizer, position), Engine.step, []

    def recorded(engine, tokens, positions, state, copy_settings):
        found.append(positions)
        return step(engine, tokens, positions, state, copy_settings)

    monkeypatch.setattr(Engine, "step", recorded)
    prompt = make_prompt(tokenizer, SCORES[tokenizer.name], "p", 2)
    if tokenizer.name == "groove2groove":  # whose tokens do not tell it
        prompt = replace(prompt, bar_length=36)
    (done,) = run(tokenizer, model, [prompt], engine="eager")
    assert done.num_new_tokens > 20
    expected = Coordinates(tokenizer).of(
        done.tokens, model.coordinate_names, bar_length=prompt.bar_length
    )[len(prompt.tokens) :]
    # The last token, which passes the end, is withheld, and no step follows it.
    assert torch.cat(found).tolist() == expected.tolist()


@pytest.mark.parametrize("bars", [1, 2])
def test_a_closed_piece_ends_in_its_last_bar(tokenizer, bars):
    eos = tokenizer.vocabulary.id("EOS")
    for done in run(tokenizer, bars=bars, ending="close", num_samples=2):
        assert done.tokens.tolist().index(eos) == len(done.tokens) - 1
        tokenizer.grammar().start(done.tokens[None])
        times = tokenizer.times(done.tokens)
        assert (bars - 1) * done.prompt.bar_length <= times[-1] - done.prompt.end.step
        # No note that begins in it sounds after it: the longest of REMI lasts a bar.
        assert 0 < done.new_score.end <= bars * 1920
    (done,) = run(tokenizer, bars=8, max_new_tokens=9, ending="close")
    assert done.num_new_tokens == 9  # without room it stays open


@pytest.mark.parametrize("fix_time_signature", [True, False])
def test_pieces_close_in_any_metre(fix_time_signature):
    """Also where the model's own bars do not end with those of the prompt."""
    tokenizer = REMI(time_signatures=("4/4", "3/4", "2/4"))
    notes = notes_from([(240 * i, 240, 60 + i % 7, 64) for i in range(16)])
    score = Score(480, [Track("Piano", notes=notes)], time_signatures=[TimeSignature(0, 2, 4)])
    prompt = make_prompt(tokenizer, score, "p", 2)
    assert prompt.bar_length == 8
    options = {"bars": 2, "ending": "close", "num_samples": 12}
    for done in run(tokenizer, prompts=[prompt], fix_time_signature=fix_time_signature, **options):
        assert done.tokens[-1] == tokenizer.vocabulary.id("EOS")
        tokenizer.grammar().start(done.tokens[None])
        assert done.new_score.end <= 2 * 2 * 480


@pytest.mark.parametrize(
    ("name", "biases", "bars", "bounds"),
    [
        ("groove2groove", {"NoteOn": 4}, 1, [1, 2, 3, 4, 1]),
        ("songs", {"Pitch": 6, "Part": 4, "Bar": -6}, 6, [1, 2, 2, 3, 1, 2, 1]),
    ],
)
def test_no_instrument_plays_more_notes_at_once_than_its_bound(name, biases, bars, bounds):
    tokenizer = frozen_tokenizers()[name]
    model = small_model(tokenizer)
    prompt = make_prompt(tokenizer, SCORES["groove2groove"], "p", 2)
    for family, bias in biases.items():
        ids = tokenizer.families[family]
        model.head.bias.data[ids.start : ids.stop] += bias
    # Drums of songs have no durations.
    bounded = [not part.is_drum or name == "groove2groove" for part in tokenizer.instruments]

    def most(**sampling):
        (done,) = run(tokenizer, model, [prompt], bars=bars, sampling=SamplingParams(**sampling))
        tokenizer.grammar().start(done.tokens[None])
        found = []
        for track in done.new_score.tracks:
            onset, end = track.notes["onset"], track.notes["onset"] + track.notes["duration"]
            sounding = (onset[:, None] >= onset) & (onset[:, None] < end)
            found.append(int(sounding.sum(1).max(initial=0)))
        return np.array(found)[bounded]

    own, unbounded = np.array(bounds)[bounded], most()
    assert (unbounded > own).sum() > 1
    assert (most(max_notes=bounds) <= own).all()
    assert max(most(max_notes=2)) == 2
    assert (most(max_notes=False) == unbounded).all()
    expected = f"expected one number, or {len(bounds)}"
    with pytest.raises(UserError, match=rf"max_notes=\[1, 2\]: {expected}"):
        most(max_notes=[1, 2])


def test_no_note_is_longer_than_the_longest_of_its_track_in_the_prompt():
    tokenizer = TOKENIZERS["groove2groove"]
    model = small_model(tokenizer)
    offs = tokenizer.families["NoteOff"]
    model.head.bias.data[offs.start : offs.stop] -= 9.0

    def longest(prompts=None, bars=4, **options):
        (done,) = run(tokenizer, model, prompts, bars=bars, **options)
        parts = done.prompt.score.tracks, done.new_score.tracks
        return [np.array([t.notes["duration"].max(initial=0) for t in each]) for each in parts]

    before, free = longest(limit_durations=False)
    assert (free > before)[before > 0].sum() > 2
    before, limited = longest()
    assert (limited <= before)[before > 0].all()
    empty = [empty_prompt(tokenizer)]
    without_limit = longest(empty, bars=2, limit_durations=False)
    assert [*map(list, longest(empty, bars=2))] == [*map(list, without_limit)]


@pytest.mark.parametrize(
    ("name", "never", "expected"),
    [
        ("remi", "Pitch_", "0 notes in 2 bars, after .* a bar in the prompt, which is probably"),
        ("groove2groove", "NoteOn_Guitar_", "no notes for Guitar"),
        ("groove2groove", "EOS", ""),
    ],
)
def test_what_is_not_written_is_said(name, never, expected):
    tokenizer = TOKENIZERS[name]
    model = small_model(tokenizer)
    silent = [i for i, token in enumerate(tokenizer.vocabulary.tokens) if token.startswith(never)]
    model.head.bias.data[silent] = -1e4
    (done,) = run(tokenizer, model)
    assert re.fullmatch(f"p, continuation 1: {expected}.*" if expected else "", done.notice)
    (new,) = run(tokenizer, model, [empty_prompt(tokenizer)])
    assert new.notice == ("new piece 1: no notes" if name == "remi" else "")


def test_continuations_are_objects_of_other_libraries_and_continue_them(tmp_path):
    model = music_model(TOKENIZERS["remi"], "auto")
    given = pretty_midi.PrettyMIDI(BytesIO(dumps(SCORES["remi"])))
    (piece,) = model.generate(given, prompt_bars=2, bars=1)
    expected = model.prompt(SCORES["remi"], prompt_bars=2).score.notes
    assert piece.prompt.score.notes.tolist() == expected.tolist()
    expected = sorted(piece.notes["pitch"].tolist())
    for found in (
        piece.to_pretty_midi().instruments,
        piece.to_miditoolkit().instruments,
        piece.to_muspy().tracks,
    ):
        assert sorted(note.pitch for track in found for note in track.notes) == expected
    (tmp_path / "sine.sf2").write_bytes(soundfont_bytes())
    piece.save_wav(tmp_path / "piece.wav", tmp_path / "sine.sf2")
    piece.save_musicxml(tmp_path / "piece.musicxml")
    assert sorted(read(tmp_path / "piece.musicxml").notes["pitch"].tolist()) == expected
    rate, sound = wavfile.read(tmp_path / "piece.wav")
    assert len(sound) > rate


@pytest.mark.parametrize(
    ("option", "words"),
    [("temprature", "did you mean temperature"), ("promptbars", "did you mean prompt_bars"),
     ("x", "see PieceParams")],
)  # fmt: skip
def test_unknown_options_name_the_nearest(option, words):
    with pytest.raises(UserError, match=f"no option {option}; {words}"):
        music_model(TOKENIZERS["remi"]).generate(**{option: 1})


REMI_OF_FEW = REMI(  # whose bars are short
    positions_per_beat=2, pitch_range=(60, 63), velocity_bins=(64, 64, 1)
)


def changes(score):
    """Bars (from 0 on) at which the chord changes, and to which."""
    return {marker.tick / 1920: chord_index(marker.text) for marker in score.markers}


def chords(**symbols):
    return {float(bar): parse_chord(symbol) for bar, symbol in symbols.items()}


@pytest.mark.parametrize(
    "options",
    [
        {"num_samples": 2, "temperature": 0.9},
        {"temperature": 0},
        {"ending": "close"},
        {"fix_tempo": False, "tempo": 80},
    ],
)
def test_continuations_have_the_chords_that_were_asked(options):
    model = music_model(REMI_OF_FEW, "auto")
    for piece in model.generate(
        SCORES["remi"], prompt_bars=2, bars=3, chords="Bb | Em7 F", **options
    ):
        found = {bar: chord for bar, chord in changes(piece.score).items() if bar >= 2}
        assert found == chords(**{"2": "Bb", "3": "Em7", "3.5": "F", "4": "Bb"})
    for piece in model.generate(bars=4, chords="C C G7 N.C.", **options):
        # A chord in force is not written again.
        assert changes(piece.score) == chords(**{"0": "C", "2": "G7", "3": "N.C."})


@pytest.mark.parametrize("tokenizer", [Groove2Groove(), Chorale(), REMI(chords=False)])
def test_models_without_chords_name_one_that_has_them(tokenizer):
    with pytest.raises(UserError, match="need a model with tokens of chords"):
        music_model(tokenizer, "auto").generate(SCORES["remi"], chords="C")
