"""Endings that close, best of n, and streaming, with small untrained models."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from musicgen.errors import UserError
from musicgen.generation import sampler
from musicgen.generation.model import MusicModel
from musicgen.generation.prompts import empty_prompt, make_prompt
from musicgen.generation.sampling import SamplingParams
from musicgen.generation.selection import Candidate, Selection, ends_on, measure, restfulness
from musicgen.metrics.key import Key, find_key, find_scale, in_scale_share
from musicgen.midi import Score, TimeSignature, Track, notes_from, pitched_notes
from musicgen.random import NoiseKey
from musicgen.tokenization import REMI, Chorale
from tests.generation.test_continuation import SCORES, TOKENIZERS, run, small_model

BAR = 4 * 480


@pytest.fixture(params=["remi", "groove2groove"])
def tokenizer(request):
    return TOKENIZERS[request.param]


def log_probs(model, tokenizer, tokens, seed=0):
    """Log-probabilities of tokens from the second on, from one pass over the piece."""
    positions = torch.from_numpy(
        tokenizer.coordinates(tokens, ("index", "time"))[None, :, : model.num_position_columns]
    )
    with torch.inference_mode():
        logits = model(torch.from_numpy(tokens)[None], positions=positions, noise=NoiseKey((seed,)))
    logits = logits[0, :-1].double().log_softmax(-1)
    return logits[torch.arange(len(tokens) - 1), torch.from_numpy(tokens[1:])].numpy()


@pytest.mark.parametrize("bars", [1, 3])
def test_a_closed_piece_ends_in_its_last_bar(tokenizer, bars):
    eos = tokenizer.vocabulary.id("EOS")
    for done in run(tokenizer, bars=bars, ending="close", num_samples=2):
        assert done.tokens.tolist().index(eos) == len(done.tokens) - 1
        assert tokenizer.grammar().accepts(torch.from_numpy(done.tokens)[None]).all()
        times = tokenizer.times(done.tokens)
        assert (bars - 1) * done.prompt.bar_length <= times[-1] - done.prompt.end_time
        # No note that begins in it sounds after it: the longest of REMI lasts a bar.
        assert 0 < done.new_score.end <= bars * BAR


def test_the_bars_before_the_ending_are_those_of_an_open_piece(tokenizer):
    (opened,), (closed,) = (run(tokenizer, bars=3, ending=ending) for ending in ("open", "close"))
    before = opened.prompt.end_tick + 2 * BAR
    for piece in (opened, closed):
        assert piece.score.clip(0, before).num_notes
    assert opened.score.clip(0, before).num_notes == closed.score.clip(0, before).num_notes


def test_the_surest_of_the_endings_is_taken(tokenizer, monkeypatch):
    model = small_model(tokenizer)
    monkeypatch.setattr(sampler, "restfulness", lambda *_: 0.0)  # equal for all
    monkeypatch.setattr(sampler, "ends_on", lambda *_: False)

    def surety(num_endings):
        monkeypatch.setattr(sampler, "NUM_ENDINGS", num_endings)
        done = run(tokenizer, model, bars=1, ending="close", num_samples=3)
        return np.array([log_probs(model, tokenizer, c.tokens)[-1] for c in done])

    first, best = surety(1), surety(8)
    assert (best >= first - 1e-4).all()  # the first candidate is one of the eight
    assert (best > first + 1e-3).any()


def test_of_equally_sure_endings_the_most_restful_is_taken(tokenizer, monkeypatch):
    model, measured = small_model(tokenizer), []
    torch.nn.init.zeros_(model.head.weight)

    def recorded(*args):
        measured.append(restfulness(*args))
        return measured[-1]

    monkeypatch.setattr(sampler, "restfulness", recorded)
    monkeypatch.setattr(sampler, "ends_on", lambda *_: True)
    (done,) = run(tokenizer, model, bars=2, ending="close")
    assert len(measured) == sampler.NUM_ENDINGS
    last_bar = done.new_score.clip(BAR, 2 * BAR)
    assert (
        restfulness(last_bar, find_key(pitched_notes(done.prompt.score)), BAR)
        == max(measured)
        > min(measured)
    )


def test_endings_on_the_tonic_come_first(tokenizer, monkeypatch):
    found = []

    def recorded(*args):
        found.append(ends_on(*args))
        return found[-1]

    monkeypatch.setattr(sampler, "ends_on", recorded)
    for done in run(tokenizer, bars=2, ending="close", num_samples=4):
        bar, key = done.new_score.clip(BAR, 2 * BAR), find_key(pitched_notes(done.prompt.score))
        assert ends_on(bar, key) == any(found[: sampler.NUM_ENDINGS])
        del found[: sampler.NUM_ENDINGS]


def notes_at(rows):
    """A piano of (beat, pitch, beats) rows."""
    notes = [(round(480 * beat), round(480 * beats), pitch, 64) for beat, pitch, beats in rows]
    return Score(480, [Track("Piano", notes=notes_from(notes))])


@pytest.mark.parametrize(
    ("basses", "expected"), [((0, 5, 7, 0), (0, True)), ((9, 2, 4, 9), (9, False))]
)
@pytest.mark.parametrize("shift", [0, 5])
def test_a_key_and_its_relative_differ_by_their_basses(basses, expected, shift):
    """The same notes of C major, a scale a bar, over the basses of C major or of A minor."""
    scale = [(0.5 * i, 60 + pitch, 0.5) for i, pitch in enumerate((0, 2, 4, 5, 7, 9, 11, 12))]
    rows = []
    for bar, bass in enumerate(basses):
        rows += [(4 * bar, 36 + bass, 4), *((4 * bar + beat, *note) for beat, *note in scale)]
    score = notes_at([(beat, pitch + shift, beats) for beat, pitch, beats in rows])
    assert find_key(pitched_notes(score)) == ((expected[0] + shift) % 12, expected[1])
    assert find_key(pitched_notes(Score())) is None


def test_the_last_bass_by_hand():
    c_major = Key(0, True)
    assert ends_on(notes_at([(0, 43, 2), (2, 48, 2), (0, 64, 4)]), c_major)
    assert not ends_on(notes_at([(0, 48, 2), (2, 43, 2), (0, 60, 4)]), c_major)
    assert not ends_on(Score(), c_major)


def test_restfulness_by_hand():
    c_major, a_minor = Key(0, True), Key(9, False)
    held = notes_at([(0, 48, 4), (0, 64, 4), (0, 67, 4)])
    assert restfulness(held, c_major, BAR) == 1
    assert restfulness(held, a_minor, BAR) == pytest.approx((2 / 3 + 0 + 1) / 3)  # C, E; not A
    late = notes_at([(0, 50, 3), (3, 60, 1)])  # D for three beats, then C for one
    assert restfulness(late, c_major, BAR) == pytest.approx((1 / 4 + 0 + 1 / 4) / 3)
    assert restfulness(Score(), c_major, BAR) == 0


@pytest.mark.parametrize("batch_size", [1, 32])
def test_endings_depend_on_the_seed_alone(tokenizer, batch_size):
    model = small_model(tokenizer)
    torch.nn.init.zeros_(model.head.weight)
    prompts = [make_prompt(tokenizer, SCORES[tokenizer.name], f"p{n}", n) for n in (1, 2)]
    options = {"bars": 1, "ending": "close", "num_samples": 2}
    done = run(tokenizer, model, prompts, batch_size=batch_size, **options)
    alone = run(tokenizer, model, prompts[1:], **options)
    assert [c.tokens.tolist() for c in done[2:]] == [c.tokens.tolist() for c in alone]
    assert done[0].tokens.tolist() != done[1].tokens.tolist()


def test_a_piece_without_room_stays_open():
    (done,) = run(TOKENIZERS["remi"], bars=8, max_new_tokens=9, ending="close")
    assert done.num_new_tokens == 9


@pytest.mark.parametrize("hold_metre", [True, False])
def test_pieces_close_in_any_metre(hold_metre):
    """Also where the model's own bars do not end with those of the prompt."""
    tokenizer = REMI(time_signatures=("4/4", "3/4", "2/4"))
    beats = [(0.5 * i, 60 + i % 7, 0.5) for i in range(16)]
    score = replace(notes_at(beats), time_signatures=[TimeSignature(0, 2, 4)])
    prompt = make_prompt(tokenizer, score, "p", 2)
    assert prompt.bar_length == 8
    options = {"bars": 2, "ending": "close", "num_samples": 12}
    for done in run(tokenizer, prompts=[prompt], hold_metre=hold_metre, **options):
        assert done.tokens[-1] == tokenizer.vocabulary.id("EOS")
        assert tokenizer.grammar().accepts(torch.from_numpy(done.tokens)[None]).all()
        assert done.new_score.end <= 2 * 2 * 480


@pytest.mark.parametrize("batch_size", [1, 4, 32])
def test_best_of_n_measures_every_candidate(tokenizer, batch_size):
    model = small_model(tokenizer)
    done = run(tokenizer, model, best_of=3, num_samples=2, batch_size=batch_size)
    assert len(done) == 2
    assert (
        len({tuple(c.tokens) for each in done for s in each.selections for c in s.candidates}) == 6
    )
    for each in done:
        for candidate in each.selections[0].candidates:
            start = len(each.prompt.tokens)
            expected = log_probs(model, tokenizer, candidate.tokens)[start - 1 :].mean()
            assert candidate.log_likelihood == pytest.approx(expected, abs=1e-4)
            new = tokenizer.decode(candidate.tokens)
            new = new.clip(each.prompt.end_tick, new.end + 1)
            expected = in_scale_share(new, find_scale(each.prompt.score))
            assert candidate.in_scale == pytest.approx(expected)
        assert each.tokens.tolist() == each.selections[0].tokens.tolist()


def test_likelihood_among_candidates_is_that_without_copies(tokenizer):
    model = small_model(tokenizer)
    without = deepcopy(model)
    model.add_copy_head({"window": 64, "max_lag": 4})
    for done in run(tokenizer, model.eval(), best_of=3, num_samples=2):
        for candidate in done.selections[0].candidates:
            start = len(done.prompt.tokens)
            expected = log_probs(without, tokenizer, candidate.tokens)[start - 1 :].mean()
            assert candidate.log_likelihood == pytest.approx(expected, abs=1e-4)


def test_the_first_candidate_is_the_one_without_others():
    tokenizer = TOKENIZERS["remi"]
    model = small_model(tokenizer)
    torch.nn.init.zeros_(model.head.weight)
    alone = run(tokenizer, model, num_samples=2)
    of_three = run(tokenizer, model, num_samples=2, best_of=3)
    first = [c.selections[0].candidates[0].tokens.tolist() for c in of_three]
    assert first == [c.tokens.tolist() for c in alone]
    closed = run(tokenizer, model, num_samples=2, best_of=3, ending="close")
    assert all(c.tokens[-1] == tokenizer.vocabulary.id("EOS") for c in closed)
    assert all(len(c.selections[0].candidates) == 3 for c in closed)


@pytest.mark.parametrize("ending", ["open", "close"])
def test_the_best_candidate_of_a_bar_is_continued(tokenizer, ending):
    model = small_model(tokenizer)
    options = {"best_of": 2, "best_of_bars": 1, "ending": ending}
    (done,) = run(tokenizer, model, bars=3, **options)
    if ending == "open":
        (split,) = run(tokenizer, model, bars=3, **options, batch_size=1)
        assert done.tokens.tolist() == split.tokens.tolist()
    assert tokenizer.grammar().accepts(torch.from_numpy(done.tokens)[None]).all()
    assert len(done.selections) == (3 if ending == "open" else 2)
    before, start, bar = done.prompt.tokens, done.prompt.end_time, done.prompt.bar_length
    for selection in done.selections:
        for candidate in selection.candidates:
            assert candidate.tokens[: len(before)].tolist() == before.tolist()
            times = tokenizer.times(candidate.tokens)[len(before) :]
            assert start <= times.min() <= times.max() < start + bar
            expected = log_probs(model, tokenizer, candidate.tokens)[len(before) - 1 :].mean()
            assert candidate.log_likelihood == pytest.approx(expected, abs=1e-4)
            step = done.prompt.end_tick // done.prompt.end_time
            new = tokenizer.decode(candidate.tokens).clip(start * step, (start + bar) * step)
            expected = in_scale_share(new, find_scale(done.prompt.score))
            assert candidate.in_scale == pytest.approx(expected)
        assert len({tuple(candidate.tokens) for candidate in selection.candidates}) == 2
        before, start = selection.tokens, start + bar
    assert done.tokens[: len(before)].tolist() == before.tolist()
    (first,) = run(tokenizer, model, bars=1, best_of=2)
    assert first.tokens.tolist() == done.selections[0].tokens.tolist()


def test_a_length_in_tokens_ends_in_the_midst_of_a_choice():
    tokenizer = TOKENIZERS["remi"]
    options = {"total_tokens": 150, "best_of": 2, "best_of_bars": 1}
    (done,) = run(tokenizer, **options)
    assert len(done.tokens) == 150
    assert done.tokens.tolist() == done.selections[-1].tokens.tolist()


def test_choices_do_not_depend_on_what_else_is_generated():
    tokenizer = TOKENIZERS["remi"]
    prompt = make_prompt(tokenizer, SCORES["remi"], "p", 1)
    # The same array of tokens with other bars.
    prompts = [prompt, replace(prompt, bar_length=prompt.bar_length // 2), empty_prompt(tokenizer)]
    options = {"num_samples": 2, "best_of": 2, "best_of_bars": 2, "bars": 3}
    together = run(tokenizer, prompts=prompts, **options)
    for each in prompts:
        expected = [piece.tokens.tolist() for piece in run(tokenizer, prompts=[each], **options)]
        assert sorted(c.tokens.tolist() for c in together if c.prompt is each) == sorted(expected)


def test_a_piece_that_the_model_ends_is_chosen_no_further():
    tokenizer = TOKENIZERS["remi"]
    options = {"best_of": 2, "best_of_bars": 1, "allow_end": True, "num_samples": 8}
    done = run(tokenizer, bars=3, **options)
    eos = tokenizer.vocabulary.id("EOS")
    assert any(len(piece.selections) < 3 for piece in done)
    for piece in done:
        assert (piece.tokens[-1] == eos) or len(piece.selections) == 3
        assert eos not in piece.tokens[:-1]


def test_the_key_is_that_of_the_first_pitches():
    tokenizer = TOKENIZERS["remi"]
    tokens = tokenizer.encode(SCORES["remi"])
    score = tokenizer.decode(tokens)
    bar = 4 * 480
    first, second = score.clip(0, bar), score.clip(bar, score.end + 1)
    empty = empty_prompt(tokenizer)
    assert measure(empty, tokens, score, bar, [-1.0]).in_scale == pytest.approx(
        in_scale_share(second, find_scale(first))
    )
    drums = Score(480, tracks=[Track("drums", 0, True, notes=notes_from([(0, 9, 36, 80)]))])
    assert measure(replace(empty, score=drums), tokens, score, 0, [-1.0]).in_scale == pytest.approx(
        in_scale_share(score, find_scale(score))
    )


@pytest.mark.parametrize(
    ("measures", "chosen"),
    [
        ([(-2.0, 0.9), (-1.0, 0.9), (-3.0, 0.9)], 1),  # an equal share does not count
        ([(-1.0, 0.8), (-1.0, 0.7), (-1.0, 0.9)], 2),
        ([(-2.0, np.nan), (-1.0, np.nan), (-3.0, np.nan)], 1),  # nor an undefined one
        ([(-2.0, 0.5), (-1.0, np.nan), (-3.0, 0.9)], 0),  # a silent candidate is not chosen
        ([(-1.0, 0.5), (-0.1, np.nan), (-1.2, 0.9), (-9.0, 0.1)], 2),
        ([(-1.0, 0.5), (-2.0, 1.0)], 0),  # of equals the first
        # Standardised: -1.22, 0, 1.22 and 1.40, -.88, -.53 (means 2 and .85)
        ([(-3.0, 0.95), (-2.0, 0.75), (-1.0, 0.78)], 2),
        ([(-3.0, 0.95), (-2.0, 0.95), (-1.0, 0.5)], 1),
    ],
)
def test_selection_by_hand(measures, chosen):
    candidates = [Candidate(np.array([i]), *each) for i, each in enumerate(measures)]
    assert Selection(candidates).chosen == chosen
    assert Selection(candidates).tokens.tolist() == [chosen]


def music_model(tokenizer):
    content = SimpleNamespace(config={"loader": {"length": 16, "chords": "none"}}, sampling=None)
    return MusicModel(small_model(tokenizer), tokenizer, content, Path("model.ckpt"))


@pytest.mark.parametrize("ending", ["open", "close"])
@pytest.mark.parametrize("tokenizer", [*TOKENIZERS.values(), Chorale()], ids=lambda t: t.name)
def test_streamed_notes_are_those_of_generate(tokenizer, ending):
    model, score = music_model(tokenizer), SCORES.get(tokenizer.name, SCORES["remi"])
    options = {"prompt_bars": 2, "bars": 2, "seed": 3, "ending": ending, "top_p": 0.9}
    groups = list(model.stream(score, **options))
    (done,) = model.generate(score, **options)
    expected = sorted(
        (track.name, int(n["pitch"]), int(n["velocity"]), int(n["onset"]), int(n["duration"]))
        for track in done.new_score.tracks
        for n in track.notes
    )
    notes = [note for group in groups for note in group]
    found = sorted((n.track, n.pitch, n.velocity, n.onset, n.duration) for n in notes)
    assert found == expected
    assert len(groups) > 2
    second = 60 / (480 * float(done.score.tempos["bpm"][0]))
    for note in notes:
        assert note.seconds == pytest.approx(note.onset * second)
        assert note.duration_seconds == pytest.approx(note.duration * second)


@pytest.mark.parametrize("tokenizer", [*TOKENIZERS.values(), Chorale()], ids=lambda t: t.name)
def test_streaming_decodes_each_token_a_constant_number_of_times(tokenizer, monkeypatch):
    model, decode, num_decoded = music_model(tokenizer), tokenizer.decode, 0

    def counted(tokens):
        nonlocal num_decoded
        num_decoded += len(tokens)
        return decode(tokens)

    monkeypatch.setattr(tokenizer, "decode", counted)
    list(model.stream(total_tokens=300, allow_end=False))
    assert 300 <= num_decoded < 700


def test_seconds_follow_the_tempi_that_the_model_writes():
    tokenizer = TOKENIZERS["remi"]
    model, options = music_model(tokenizer), {"bars": 4, "hold_tempo": False, "prompt_bars": 2}
    (done,) = model.generate(SCORES["remi"], **options)
    tempos, start = done.score.tempos, done.prompt.end_tick
    assert (tempos["tick"] > start).sum() > 2
    notes = [note for group in model.stream(SCORES["remi"], **options) for note in group]
    for note in notes[::7]:
        ticks = np.arange(start, start + note.onset)
        bpm = tempos["bpm"][np.searchsorted(tempos["tick"], ticks, side="right") - 1]
        assert note.seconds == pytest.approx((60 / (480 * bpm)).sum())


def test_notes_come_as_they_are_written(tokenizer, monkeypatch):
    """The loop may be left at any note, and an interrupt passes through."""
    model, steps = music_model(tokenizer), []
    step = sampler.Sampler.steps

    def counted(self, *args):
        for each in step(self, *args):
            steps.append(each)
            yield each

    monkeypatch.setattr(sampler.Sampler, "steps", counted)
    stream = model.stream(SCORES[tokenizer.name], prompt_bars=2, bars=50)
    next(stream)
    assert len(steps) < 200
    with pytest.raises(KeyboardInterrupt):
        stream.throw(KeyboardInterrupt)


def test_no_instrument_plays_more_notes_at_once_than_its_bound():
    tokenizer = TOKENIZERS["groove2groove"]
    model = small_model(tokenizer)
    ons = tokenizer.families["NoteOn"]
    model.head.bias.data[ons.start : ons.stop] += 4.0
    bounds = [1, 2, 3, 4, 1]

    def most(**sampling):
        (done,) = run(tokenizer, model, bars=1, sampling=SamplingParams(**sampling))
        assert tokenizer.grammar().accepts(torch.from_numpy(done.tokens)[None]).all()
        found = []
        for track in done.new_score.tracks:
            onset, end = track.notes["onset"], track.notes["onset"] + track.notes["duration"]
            sounding = (onset[:, None] >= onset) & (onset[:, None] < end)
            found.append(int(sounding.sum(1).max(initial=0)))
        return found

    assert sum(most()) > 2 * sum(bounds)
    assert all(np.array(most(max_notes=bounds)) <= bounds)
    assert max(most(max_notes=2)) == 2
    assert most(max_notes=False) == most()
    with pytest.raises(UserError, match=r"max_notes=\[1, 2\]: expected one number, or 5"):
        most(max_notes=[1, 2])


def test_a_notebook_shows_a_line_or_the_page_of_a_continuation(tokenizer):
    model = music_model(tokenizer)
    model.content.describe = lambda path: f"{path}: 3 steps"
    (done,) = model.generate(SCORES[tokenizer.name], prompt_bars=1, bars=1)
    assert repr(model) == "MusicModel(model.ckpt: 3 steps)"
    assert repr(done).startswith("Continuation('prompt 0', sample 0: ")
    assert len(repr(done)) < 100
    assert done._repr_html_().startswith('<iframe srcdoc="')
