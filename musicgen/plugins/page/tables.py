"""What the scripts of the page know of music: constants, and the tables of a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from musicgen.errors import UserError
from musicgen.metrics.part_writing import FIFTH, UNISON
from musicgen.midi import DEFAULT_VELOCITY, TICKS_PER_BEAT, Track
from musicgen.midi.donors import (
    DONOR_BARS,
    LIMITS,
    LONGEST_ARTICULATION,
    MOST_MOVED,
    SAME_POSITION,
    WEIGHTS,
)
from musicgen.midi.key import (
    CHORD_SPELLINGS,
    KEYS,
    NO_CHORDS,
    fifths_of_keys,
    key_fits,
    spelling,
)
from musicgen.midi.score import DEFAULT_TEMPO, DOUBLE_BAR, FERMATA, PITCH_CLASSES
from musicgen.report.html import CHORD_SUFFIXES, track_voice
from musicgen.tokenization import REMI, Chorale, Songs
from musicgen.tokenization.augmentation import tritone
from musicgen.tokenization.bars import FIFTHS
from musicgen.tokenization.bars import KEYS as KEY_VALUES
from musicgen.tokenization.base import MAX_TOKENS_PER_BAR, Tokenizer
from musicgen.tokenization.chorale_grammar import LEAD, LEADING
from musicgen.tokenization.chord_recognition import recognition_tables
from musicgen.tokenization.chords import CHORDS, chord_index
from musicgen.tokenization.coordinates import Coordinates
from musicgen.tokenization.gaps import FUTURE_BARS
from musicgen.tokenization.instruments import BASS_PROGRAMS, CHOIR_PROGRAMS, find_by_words
from musicgen.tokenization.part_orders import TUNE
from musicgen.tokenization.phrases import COUNTS
from musicgen.tokenization.quantization import bin_edges
from musicgen.tokenization.voices import NUM_VOICES, SILENCE, VOICE_CENTRES
from musicgen.tokenization.whole_bars import COMMON_TIME, MAX_EMPTY_BARS

ACCOMPANY = {"chorale": "Harmonise", "songs": "Accompany"}  # label of what writes to a melody


def constants() -> dict[str, Any]:
    """Return the constants that the page's scripts share with Python, as `CONSTANTS` in them."""
    return {
        "ticksPerBeat": TICKS_PER_BEAT,  # of decoded scores
        "velocity": DEFAULT_VELOCITY,  # of notes whose tokens have none
        "tempo": DEFAULT_TEMPO,  # quarters a minute, for a MIDI file without tempi
        "timeSignature": COMMON_TIME,  # for a MIDI file without time signatures
        "noteNames": PITCH_CLASSES,
        "fermata": FERMATA,  # the texts of markers where phrases end
        "doubleBar": DOUBLE_BAR,
        "tune": TUNE,  # the name of the part whose rests end phrases
        "leftCounts": COUNTS.tolist(),  # of bars to the ends of phrases, of each kind of end
        "chordSpellings": CHORD_SPELLINGS,  # of chords that people type, by quality
        "noChords": NO_CHORDS,  # what they type for none
        "keys": fifths_of_keys(),
        "chordSuffixes": CHORD_SUFFIXES,  # of names for people, by quality
        "donorBars": DONOR_BARS,  # this and the following: how new notes are played
        "donorWeights": WEIGHTS,
        "donorLimits": LIMITS,
        "longestArticulation": LONGEST_ARTICULATION,
        "mostMoved": MOST_MOVED,
        "samePosition": SAME_POSITION,
        "maxEmptyBars": MAX_EMPTY_BARS,
        "maxTokensPerBar": MAX_TOKENS_PER_BAR,
        "futureBars": FUTURE_BARS,
        "numVoices": NUM_VOICES,  # of a chorale, as the following
        "silence": SILENCE,  # in place of the pitch of a voice
        "voiceCentres": VOICE_CENTRES,
        "perfectIntervals": (UNISON, FIFTH),  # in which voices must not move in parallel
    }


def tokenizer_tables(tokenizer: Tokenizer, chord_source: str = "auto") -> dict[str, Any]:
    """Return what the page's tokenizer and grammar read."""
    families = {name: [ids.start, ids.stop] for name, ids in tokenizer.families.items()}
    tables: dict[str, Any] = {
        "name": tokenizer.name,
        "size": len(tokenizer.vocabulary),
        "families": families,
        "stepsPerBeat": tokenizer.steps_per_beat,
        "negativePrompt": tritone(tokenizer).tolist(),
        "changes": {
            name: values.tolist() for name, values in Coordinates(tokenizer).values.items()
        },
        "keyFits": [(k.fifths, fit) for k, fit in zip(KEYS, key_fits().tolist(), strict=True)],
        "firstKey": FIFTHS.start,
        "hasModes": len(tokenizer.families.get("Key", ())) == len(KEY_VALUES),
        "spellings": {fifths: spelling(fifths) for fifths in range(-9, 10)},
        "tracks": [
            {"name": x.name, "program": x.program, "isDrum": x.is_drum, "voice": track_voice(x)}
            for x in tokenizer.decode(tokenizer.start_tokens()).tracks
        ],
        "played": tokenizer.find_track(Track("Piano")) or 0,  # with the keys of the page
        "accompany": ACCOMPANY[tokenizer.name] if getattr(tokenizer, "lead_probability", 0) else "",
        "rewrites": isinstance(tokenizer, Songs) and tokenizer.lead_probability > 0,
    }
    if isinstance(tokenizer, Chorale):
        return tables | {
            "max_frames": tokenizer.grammar().limit,
            "pitches": {"start": tokenizer.pitches.start, "size": len(tokenizer.pitches)},
            "lead": LEAD,
            "leading": LEADING if tokenizer.families["Lead"] else [],
        }
    if not isinstance(tokenizer, REMI | Songs):
        raise UserError(f"tokenizer={tokenizer.name} has no page; remi, songs and chorale have")
    return tables | _bar_tables(tokenizer, chord_source)


def _bar_tables(tokenizer: REMI | Songs, chord_source: str) -> dict[str, Any]:
    is_songs, parts = isinstance(tokenizer, Songs), tokenizer.instruments
    grammar = tokenizer.grammar()

    def bins(values: Sequence[int], by_ratio: bool = False) -> dict[str, list[Any]] | None:
        edges = bin_edges(values, by_ratio).tolist()
        return {"values": [*values], "edges": edges} if len(values) else None

    def parts_of(track: Track) -> list[int]:
        if isinstance(tokenizer, Songs):
            return find_by_words(track, parts, tokenizer.words)
        return [part for part in tokenizer.find_tracks([track]) if part is not None]

    names = [
        f"{note}{accidental}_{chord.partition('_')[2]}"
        for note in "ABCDEFG"
        for accidental in ("", "#", "##", "b", "bb")
        for chord in CHORDS[:11]
    ]
    return {
        "followers": {name: sorted(x) for name, x in grammar.followers.items()},
        "header": tokenizer.header,
        "bar_lengths": tokenizer.signatures.lengths.tolist(),
        "max_bars": tokenizer.max_bars,
        "timeSignatures": tokenizer.signatures.fractions,
        "lowest": {"Pitch": tokenizer.pitches.start, "Drum": tokenizer.drums.start},
        "unit": grammar.unit,
        "durations": bins(grammar.durations.tolist(), is_songs),
        "velocities": bins(tokenizer.velocities),
        "tempi": bins(tokenizer.tempi, is_songs),
        "places": tokenizer.places.tolist(),
        "lowestPitches": tokenizer.lowest_pitches.tolist() if isinstance(tokenizer, Songs) else [],
        "words": [
            [word.lower(), i]
            for i, part in enumerate(tokenizer.parts if isinstance(tokenizer, Songs) else ())
            for word in ([] if parts[i].is_drum else [part["name"], *part.get("words", ())])
        ],
        "programs": [parts_of(Track("", program)) for program in range(128)],
        "drums": parts_of(Track("", is_drum=True)),
        "choirPrograms": [*CHOIR_PROGRAMS],
        "basses": [i for i, part in enumerate(parts) if part.program in BASS_PROGRAMS],
        "chords": tokenizer.chords,
        "chordSource": chord_source,
        "chordNames": CHORDS,
        "chordIndices": {name: chord_index(name) for name in (*names, "N_N")},
        "recognition": recognition_tables(),
    }
