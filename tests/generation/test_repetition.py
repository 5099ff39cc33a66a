"""Repetition control, with models whose logits are constant: they repeat one bar for ever."""

from __future__ import annotations

import pytest
import torch

from musicgen.generation.prompts import empty_prompt, make_prompt
from musicgen.generation.repetition import SAME_SHARE, BarRepeats, cap_repeats
from musicgen.generation.request import GenerationRequest
from musicgen.generation.sampler import Sampler
from musicgen.generation.sampling import SamplingParams
from tests.generation.test_continuation import SCORES, TOKENIZERS, small_model

FAVOURITES = {  # from the most to the least favourite; the grammar makes a bar of them
    "remi": [
        *("Velocity_64", "Duration_1", "Beat_0", "Pitch_60", "Pitch_64", "Beat_4", "Pitch_67"),
        *("Beat_8", "Pitch_72", "Bar"),
    ],
    "groove2groove": [
        *("NoteOff_Bass_40", "NoteOff_Piano_60", "NoteOn_Bass_40", "NoteOn_Piano_60"),
        "TimeShift_1_0",
    ],
}


def looping_model(tokenizer, strength=12.0):
    model = small_model(tokenizer)
    torch.nn.init.zeros_(model.head.weight)
    names = FAVOURITES[tokenizer.name]
    for rank, name in enumerate(names):
        model.head.bias.data[tokenizer.vocabulary.id(name)] = strength * (len(names) - rank)
    return model


def new_bars(tokenizer, num_bars=12, seed=0, prompt=None, **sampling):
    """The notes (onset, pitch) of each new bar, as sets, and the tokens."""
    request = GenerationRequest(SamplingParams(**sampling), bars=num_bars, num_samples=2, seed=seed)
    sampler = Sampler(looping_model(tokenizer), tokenizer, request)
    done = list(sampler.continuations([prompt or empty_prompt(tokenizer)]))
    bars = []
    for c in done:
        bars.append([set() for _ in range(num_bars)])
        for i, track in enumerate(c.new_score.tracks):
            for note in track.notes:
                bar, onset = divmod(int(note["onset"]), 4 * 480)
                bars[-1][bar].add((i, onset, int(note["pitch"])))
    return bars, [c.tokens.tolist() for c in done]


def longest_run(bars, period):
    """Bars in a row that share most notes with the bar a period before."""
    longest = run = 0
    for before, bar in zip(bars, bars[period:], strict=False):
        shared = len(before & bar) / max(len(before), len(bar), 1)
        run = run + 1 if shared >= SAME_SHARE else 0
        longest = max(longest, run)
    return longest


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_looping_model_must_vary_its_bars(name, temperature):
    tokenizer = TOKENIZERS[name]
    ((bars, _), _) = new_bars(tokenizer, temperature=temperature)
    assert longest_run(bars, 1) > 8
    for limit in (1, 3):
        found, tokens = new_bars(tokenizer, temperature=temperature, max_bar_repeats=limit)
        for bars in found:
            assert longest_run(bars, 1) <= limit - 1
            assert longest_run(bars, 2) <= (limit - 1) * 2
            assert all(bars)
        assert all(tokenizer.grammar().accepts(torch.tensor([row])).all() for row in tokens)


def test_the_prompts_bars_count():
    tokenizer = TOKENIZERS["remi"]
    (_, (tokens, _)) = new_bars(tokenizer, num_bars=3, temperature=0.0)
    prompt = make_prompt(tokenizer, tokenizer.decode(torch.tensor(tokens).numpy()), "p", 3)
    (old, _), _ = new_bars(tokenizer, 1, prompt=prompt, temperature=0.0)
    (new, _), _ = new_bars(tokenizer, 1, prompt=prompt, temperature=0.0, max_bar_repeats=3)
    (free, _), _ = new_bars(tokenizer, 1, prompt=prompt, temperature=0.0, max_bar_repeats=4)
    assert old == free
    assert old != new


@pytest.mark.parametrize("name", TOKENIZERS)
def test_seeds_decide_and_rows_are_independent(name):
    tokenizer = TOKENIZERS[name]
    prompts = [make_prompt(tokenizer, SCORES[name], f"p{n}", n) for n in (1, 2)]
    model = small_model(tokenizer)
    torch.nn.init.zeros_(model.head.weight)

    def tokens(prompts, **kwargs):
        request = GenerationRequest(
            SamplingParams(max_bar_repeats=1), bars=3, num_samples=2, **kwargs
        )
        done = Sampler(model, tokenizer, request).continuations(prompts)
        return {(c.prompt.name, c.sample): c.tokens.tolist() for c in done}

    together = tokens(prompts)
    assert together == tokens(prompts, batch_size=3)
    assert together == tokens(prompts[:1]) | tokens(prompts[1:])
    assert together != tokens(prompts, seed=1)


def test_caps_by_hand():
    """Of 4 notes fewer than 3 may come again: the first with 2/4, after it the next with 1/3."""
    grammar = TOKENIZERS["remi"].grammar()
    id_of = grammar.vocabulary.id
    low, high = id_of("Pitch_60"), id_of("Pitch_64")
    repeats = BarRepeats(grammar, 1, 16)
    repeats.observe([id_of("Bar"), low, high, low, high, id_of("Bar")], [0, 0, 0, 8, 8, 16])
    assert list(repeats.caps(16)) == [([low, high], 2 / 4)]
    assert list(repeats.caps(20)) == []
    fork = repeats.copy().observe([low], [16])
    assert list(fork.caps(16)) == [([high], 1 / 3)]
    fork.observe([high], [16])
    assert list(fork.caps(24)) == [([low, high], 0)]
    assert list(repeats.caps(16)) == [([low, high], 2 / 4)]
    repeats.observe([id_of("Pitch_62")], [16])  # neither note: two are left, which both may come
    assert list(repeats.caps(16)) == [([high], 2 / 3)]
    assert list(repeats.caps(24)) == []

    # At temperature 1/2 probabilities .64 and .36 of two tokens are capped at a share of 1/2.
    rows = [BarRepeats(grammar, 1, 16)]
    rows[0].observe([id_of("Bar"), low, high, low, high, id_of("Bar")], [0, 0, 0, 8, 8, 16])
    logits = torch.full((1, len(grammar.vocabulary) + 1), -100.0)
    other = id_of("Pitch_62")
    logits[0, [low, other]] = torch.tensor([0.8, 0.6]).log()
    allowed = torch.zeros_like(logits, dtype=torch.bool)
    allowed[0, [low, other]] = True
    capped, mask = cap_repeats(logits, allowed, rows, torch.tensor([16]), 0.5)
    p = (2 * capped[0, [low, other]]).softmax(0)
    torch.testing.assert_close(p, torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert torch.equal(mask, allowed)


def test_the_grammar_goes_first():
    grammar = TOKENIZERS["remi"].grammar()
    bar, pitch, other = map(grammar.vocabulary.id, ("Bar", "Pitch_60", "Pitch_61"))
    repeats = BarRepeats(grammar, 1, 16).observe([bar, pitch, bar], [0, 0, 16])
    logits = torch.zeros(1, len(grammar.vocabulary) + 1)
    allowed = torch.zeros_like(logits, dtype=torch.bool)
    allowed[0, pitch] = True
    _, mask = cap_repeats(logits, allowed, [repeats], torch.tensor([16]), 1.0)
    assert mask[0].nonzero().tolist() == [[pitch]]
    allowed[0, other] = True
    _, mask = cap_repeats(logits, allowed, [repeats], torch.tensor([16]), 1.0)
    assert mask[0].nonzero().tolist() == [[other]]
