"""Chords and keys that people type on the page are those of Python."""

import numpy as np
import pytest

from musicgen.errors import ParameterError
from musicgen.generation.decoder import form_biases
from musicgen.generation.prompt import empty_prompt
from musicgen.generation.request import PieceParams
from musicgen.midi import KeySignature
from musicgen.tokenization.chords import parse_progression, schedule
from tests.plugins.page.music import TOKENIZERS, run_tokenizer
from tests.plugins.page.node import needs_node, run_worker
from tests.plugins.page.test_changes import SESSION

pytestmark = needs_node

PROGRESSIONS = [
    *("C", "C Am F G7", "Bb, F#m7 , Ebmaj7", "C Am | F/A | % | G / /", "N.C. Bdim C♯m7♭5 Dsus4"),
    *("A_m7 E+ Gø", "(Am7) Fm6 B°7", "H", "C x", "|", "Am7 | | D"),
]
KEYS = ["C", "Eb", "F#m", "-3", "H", "c"]


def key_signatures(text):
    return [[*each] for each in PieceParams(key=text).key_signatures]


def answer(read, text):
    try:
        return read(text)
    except ParameterError:
        return "refused"


@pytest.mark.parametrize("name", ["remi", "songs"])
def test_chords_and_keys_are_read_as_in_python(name, tmp_path):
    body = """
        const answer = (read, text) => {
          try { return read(text, tokenizer); }
          catch (error) { if (!(error instanceof UserError)) throw error; return "refused"; }
        };
        return [data.progressions.map((text) => answer(parseProgression, text)),
          data.keys.map((text) => answer(keySignatures, text)),
          data.bars.map((bars) => scheduleChords(bars, data.lines)), parseProgression(" ", tokenizer), keySignatures("")];
    """
    lines, bars = [7, 20, 30, 45, 60], [[[3], [5, 5, 9], [5]], [[1, 2]]]
    data = {"progressions": PROGRESSIONS, "keys": KEYS, "lines": lines, "bars": bars}
    progressions, keys, schedules, no_chords, no_key = run_tokenizer(tmp_path, name, body, **data)
    assert progressions == [answer(parse_progression, text) for text in PROGRESSIONS]
    assert progressions.count("refused") == 3
    assert keys == [answer(key_signatures, text) for text in KEYS]
    assert schedules == [schedule(each, lines).tolist() for each in bars]
    assert (no_chords, no_key) == (None, [])


def test_chords_of_one_continuation_do_not_bind_the_next(tmp_path):
    body = f"""
        {SESSION}
        return (async () => {{
          await send("compose", {{ bars: 1, settings: {{ ...settings, chords: "C" }} }});
          const asked = session.composer.model.grammar.progression;
          model.rewind = (tokens) => tokens.length; // it has read them all
          await send("compose", {{ bars: 1, settings }});
          return [asked, session.composer.model.grammar.progression];
        }})();
    """
    asked, afterwards = run_tokenizer(tmp_path, "songs", body)
    assert asked
    assert afterwards is None


def test_a_form_is_that_of_python(tmp_path):
    asked = [("AABA", 8), ("ab", 2), (" A ", 1)]
    body = """
        const refused = (text) => {
          try { return formBiases(text, 8, 3); } catch (error) { return error.message; }
        };
        return [data.map(([form, bars]) => formBiases(form, bars, 10)), formBiases(" ", 8, 3), refused("A-B")];
    """
    found, none, refused = run_worker(tmp_path, asked, body)
    assert found == [form_biases(form.strip(), bars, 9).tolist() for form, bars in asked]
    assert none is None
    assert refused.startswith("form=A-B: expected a letter for each section")


def test_a_piece_from_nothing_has_the_key_and_the_chords_of_the_fields(tmp_path):
    tokenizer = TOKENIZERS["songs"]
    body = f"""
        {SESSION}
        const asked = {{ ...settings, key: "Eb", chords: "Eb Cm | Ab" }};
        return (async () => {{
          await send("compose", {{ bars: 3, settings: asked }});
          const {{ score: {{ markers }}, prompt }} = session.composer;
          const written = [...session.composer.tokens];
          await send("retake", {{ bars: 99, settings: {{ ...asked, take: 1, key: "F#m" }} }});
          const again = session.composer.prompt.tokens;
          const kept = [...session.composer.tokens];
          await send("retake", {{ bars: 1, settings: {{ ...settings, chords: "X" }} }});
          return {{ written, markers, prompt: prompt.tokens, again,
            kept, afterwards: session.composer.tokens, refused: messages.at(-1) }};
        }})();
    """
    found = run_tokenizer(tmp_path, "songs", body)
    for prompt, fifths in (("prompt", -3), ("again", 3)):
        expected = empty_prompt(tokenizer, keys=[KeySignature(0, fifths)])
        assert found[prompt] == expected.tokens.tolist()
    assert found["written"][: len(found["prompt"])] == found["prompt"]
    assert found["markers"] == [
        *([0, "Eb_M"], [960, "C_m"], [1920, "Ab_M"], [3840, "Eb_M"], [4800, "C_m"])
    ]
    assert tokenizer.decode(np.array(found["written"])).num_notes > 0
    assert found["refused"]["kind"] == "error"
    assert found["afterwards"] == found["kept"]
    assert found["refused"]["message"].startswith("chords=X: expected chords such as C, Bb")
