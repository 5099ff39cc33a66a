"""Continuation with small untrained models: what is tested does not depend on training."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from musicgen.attention import FAVOR, LinearAttention, SoftmaxAttention
from musicgen.composer import compose_groove, compose_pop
from musicgen.errors import UserError
from musicgen.generation.engines import Engine, make_engine
from musicgen.generation.prompts import empty_prompt, make_prompt
from musicgen.generation.request import GenerationRequest
from musicgen.generation.sampler import Sampler, prefill
from musicgen.midi import dumps, loads
from musicgen.models import Transformer
from musicgen.position import ConvSPE, Learnable, RoPE, SineSPE
from musicgen.random import NoiseKey
from musicgen.tokenization import REMI, Groove2Groove

SCORES = {"remi": compose_pop(0, 1), "groove2groove": compose_groove(0, "bossa", 0, 0)}
TOKENIZERS = {"remi": REMI(), "groove2groove": Groove2Groove()}


def small_model(tokenizer, position=None, attention=None) -> Transformer:
    torch.manual_seed(0)
    return Transformer(
        len(tokenizer.vocabulary),
        dim=16,
        num_layers=2,
        num_heads=2,
        ff_dim=32,
        position=position or partial(SineSPE, num_realizations=8),
        attention=attention or partial(LinearAttention, feature_map=FAVOR),
        init_std=0.3,
    ).eval()


@pytest.fixture(params=["remi", "groove2groove"])
def tokenizer(request):
    return TOKENIZERS[request.param]


def run(tokenizer, model=None, prompts=None, **kwargs):
    prompts = prompts or [make_prompt(tokenizer, SCORES[tokenizer.name], "p", 2)]
    if "total_tokens" not in kwargs:
        kwargs = {"bars": 2, **kwargs}
    request = GenerationRequest(**kwargs)
    done = Sampler(model or small_model(tokenizer), tokenizer, request).continuations(prompts)
    return sorted(done, key=lambda c: (c.prompt.name, c.sample))


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
    assert prompt.end_tick == 3 * 4 * 480
    original = tokenizer.decode(tokenizer.encode(SCORES[tokenizer.name]))
    first = min(int(t.notes["onset"].min()) for t in original.tracks if len(t.notes))
    start = first // 1920 * 1920
    expected = notes_before(original.clip(start, original.end + 1), prompt.end_tick)
    for continuation in run(tokenizer, prompts=[prompt], num_samples=3):
        assert notes_before(continuation.score, prompt.end_tick) == expected
        tokenizer.grammar().start(torch.from_numpy(continuation.tokens)[None])
        encoded = tokenizer.encode(tokenizer.decode(continuation.tokens))
        assert np.array_equal(encoded[: len(prompt.tokens)], prompt.tokens)


def test_as_many_bars_are_added_as_requested(tokenizer):
    for bars in (1, 3):
        (done,) = run(tokenizer, bars=bars)
        times = tokenizer.times(done.tokens)
        assert done.prompt.end_time <= times.max() < (2 + bars) * done.prompt.bar_length
        assert notes_before(done.score, (2 + bars) * 1920) == notes_before(done.score, 10**9)
    if tokenizer.name == "remi":
        assert (done.tokens == tokenizer.vocabulary.id("Bar")).sum() == 2 + bars


@pytest.mark.parametrize(
    "wrong", [{"num_samples": 0}, {"batch_size": 0}, {"seed": -1}, {"bars": 1.5}, {"bars": "abc"}]
)
def test_invalid_values_are_refused_by_name(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(UserError, match=f"^{name}={value}: expected an integer >= "):
        GenerationRequest(**wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"total_tokens": 2000, "ending": "close"}, "ending=close: expected bars"),
        ({"form": "A 2"}, "form=A 2: expected a letter for each section"),
        ({"best_of_bars": 2}, "best_of_bars=2: expected best_of > 1 beside it"),
        ({"allow_end": "no"}, "allow_end=no: expected true or false"),
        ({"chords": ["C", "Am"]}, r"chords=\['C', 'Am'\]: expected chords such as C"),
        ({"fill": 2.5}, "fill=2.5: expected bars from 1 on"),
        ({"fill": 2, "tracks": 1, "keep": 3}, "keep=3: expected no fill beside it"),
    ],
)
def test_options_that_cannot_be_used_say_so(options, message):
    with pytest.raises(UserError, match=f"^{message}"):
        GenerationRequest(**options)


def test_length_in_tokens_is_exact_and_counts_the_prompt(tokenizer):
    prompt = make_prompt(tokenizer, SCORES[tokenizer.name], "p", 1)
    total = len(prompt.tokens) + 50
    (done,) = run(tokenizer, prompts=[prompt], total_tokens=total)
    assert len(done.tokens) == total
    (done,) = run(tokenizer, prompts=[prompt], total_tokens=total, max_new_tokens=7)
    assert done.num_new_tokens == 7
    with pytest.raises(UserError, match="keep fewer bars of it or generate more tokens"):
        run(tokenizer, prompts=[prompt], total_tokens=5)


def test_the_same_seed_gives_the_same_bytes(tokenizer):
    model = small_model(tokenizer)
    prompts = [make_prompt(tokenizer, SCORES[tokenizer.name], f"p{n}", n) for n in (1, 2, 3)]
    first, again = (
        [dumps(c.score) for c in run(tokenizer, model, prompts, num_samples=3, batch_size=6)]
        for _ in range(2)
    )
    assert first == again
    assert len(set(first)) == 9
    other = run(tokenizer, model, prompts[:1], seed=1)[0]
    assert dumps(other.score) not in first


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_random_numbers_do_not_depend_on_the_rest_of_the_batch(tokenizer, batch_size):
    """Under uniform logits, which have no rounding, rows are the same in any batch."""
    model = small_model(tokenizer)
    torch.nn.init.zeros_(model.head.weight)
    prompts = [make_prompt(tokenizer, SCORES[tokenizer.name], f"p{n}", n) for n in (1, 2)]
    alone = [run(tokenizer, model, [p], num_samples=2)[1].tokens.tolist() for p in prompts]
    done = run(tokenizer, model, prompts, num_samples=3, batch_size=batch_size)
    assert len(done) == 6
    assert [c.tokens.tolist() for c in done if c.sample == 1] == alone
    assert len({tuple(c.tokens) for c in done}) == 6


@pytest.mark.parametrize("position", [partial(ConvSPE, filter_length=30, num_realizations=8), None])
@pytest.mark.parametrize("attention", [SoftmaxAttention, None])
@torch.inference_mode()
def test_logits_of_a_row_do_not_depend_on_its_neighbours(position, attention):
    tokenizer = TOKENIZERS["remi"]
    model = small_model(tokenizer, position, attention)
    score = SCORES["remi"]
    one, two, three = (
        torch.from_numpy(make_prompt(tokenizer, score, "p", n).tokens[:-1]) for n in (1, 2, 3)
    )
    other = two.roll(1)  # of equal length, so prefilled with `two`
    engine = make_engine(model, NoiseKey((0,)), engine="eager")

    def decode(tokens, wanted):
        """Logits [3, V] of a row: after the prefill, and after each of two steps."""
        positions = [torch.arange(len(t))[:, None] for t in tokens]
        contexts = [SimpleNamespace(tokens=t.numpy(), earlier=None, gap=None) for t in tokens]
        logits, state = prefill(engine, contexts, positions, torch.arange(len(tokens)))
        rows = [logits[wanted]]
        for _ in range(2):
            positions = state.length[:, None]
            logits, state = engine.step(torch.full((len(tokens),), 5), positions, state)
            rows.append(logits[wanted])
        return torch.stack(rows)

    alone = decode([two], 0)
    for tokens, wanted in (([one, two, other, three], 1), ([other, three, two], 2)):
        torch.testing.assert_close(decode(tokens, wanted), alone, rtol=1e-4, atol=1e-5)


def test_a_model_can_begin_by_itself(tokenizer):
    (done,) = run(tokenizer, prompts=[empty_prompt(tokenizer)])
    assert done.score.num_notes > 0
    assert (
        done.tokens[: len(tokenizer.start_tokens())].tolist() == tokenizer.start_tokens().tolist()
    )


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


def test_no_chord_tokens_after_a_prompt_without_chords():
    tokenizer = TOKENIZERS["remi"]
    bare = compose_pop(0, 1)
    bare.markers.clear()
    model = small_model(tokenizer)
    chords = [i for i, t in enumerate(tokenizer.vocabulary.tokens) if t.startswith("Chord_")]
    model.head.bias.data[chords] += 10.0
    prompt = make_prompt(tokenizer, bare, "p", 2)
    assert "no chord markers" in prompt.notice
    (done,) = run(tokenizer, model, [prompt])
    assert not set(chords) & set(done.tokens.tolist())
    (with_chords,) = run(tokenizer, model)
    assert set(chords) & set(with_chords.tokens[len(with_chords.prompt.tokens) :].tolist())


def test_tempo_and_metre_of_a_groove_prompt_stay():
    tokenizer = TOKENIZERS["groove2groove"]
    score = SCORES["groove2groove"]
    (done,) = run(tokenizer)
    assert done.score.tempos["bpm"][0] == score.tempos["bpm"][0]
    assert loads(dumps(done.score)).time_signatures[0][1:] == (4, 4)


def test_a_model_whose_positions_end_says_so():
    tokenizer = TOKENIZERS["remi"]
    model = small_model(tokenizer, partial(Learnable, max_length=100))
    with pytest.raises(UserError, match=r"the max_length=100 of .* \(learnable\)"):
        run(tokenizer, model, total_tokens=101)


def test_a_limit_on_positions_ends_rows_of_different_lengths():
    tokenizer = TOKENIZERS["remi"]
    prompts = [make_prompt(tokenizer, SCORES["remi"], f"p{n}", n) for n in (1, 2)]
    model = small_model(tokenizer, partial(Learnable, max_length=len(prompts[1].tokens) + 30))
    short, long = run(tokenizer, model, prompts, bars=90)
    assert long.num_new_tokens == 30
    assert len(short.tokens) == len(long.tokens)


def test_empty_music_is_no_prompt(tokenizer):
    score = compose_pop(0, 1)
    score.tracks.clear()
    with pytest.raises(UserError, match=r"silence\.mid: no note"):
        make_prompt(tokenizer, score, "silence.mid", 4)


@pytest.mark.parametrize("coordinates", ["time", ["pitch", "bar", "index"], ["beat", "pitch"]])
@pytest.mark.parametrize("attention", [None, SoftmaxAttention])
@torch.inference_mode()
def test_coordinates_when_decoding_are_those_of_the_whole_piece(
    tokenizer, attention, coordinates, monkeypatch
):
    position = partial(RoPE, coordinates=coordinates)
    model = small_model(tokenizer, position, attention)
    found = []

    def step(self, *args, step=Engine.step):
        logits, state = step(self, *args)
        found.append(logits[0])
        return logits, state

    monkeypatch.setattr(Engine, "step", step)
    prompt = make_prompt(tokenizer, SCORES[tokenizer.name], "p", 2)
    if tokenizer.name == "groove2groove":  # whose tokens do not tell it
        prompt = replace(prompt, bar_length=36)
    (done,) = run(tokenizer, model, [prompt], bars=2)
    names, bar_length = model.coordinate_names, prompt.bar_length
    coordinates = tokenizer.coordinates(done.tokens, names, bar_length=bar_length)
    positions = torch.from_numpy(coordinates)[None]
    expected = model(torch.from_numpy(done.tokens)[None], positions=positions)[0]
    start = len(done.prompt.tokens)
    assert len(found) > 20
    # The last step is of the token that passed the end, which is withheld.
    torch.testing.assert_close(
        torch.stack(found)[: len(done.tokens) - start],
        expected[start:],
        atol=1e-4,
        rtol=0,
    )
