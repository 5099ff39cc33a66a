"""Songs: multi-track bars, part by part; the first parts of each bar can be kept."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from musicgen.errors import ParameterError
from musicgen.midi import TICKS_PER_BEAT, KeySignature, Score, Track
from musicgen.midi.key import found_signature, tonic_of, with_modes
from musicgen.midi.score import PIANO, is_line
from musicgen.tokenization.bar_constraints import (
    KeptSongParts,
    LowestPitches,
    MaxNotesOfParts,
    PlannedEnds,
    SongsChords,
    bar_constraints,
)
from musicgen.tokenization.bar_grammar import SongsGrammar
from musicgen.tokenization.bar_headers import FixedKey, SongBeginning
from musicgen.tokenization.bars import FIFTHS, KEYS, Events, key_index, sorted_tokens
from musicgen.tokenization.closing import last_chord, tonic_index
from musicgen.tokenization.constraints import Constraint, TargetParts, notes_of_each, target_parts
from musicgen.tokenization.gaps import MARKS
from musicgen.tokenization.instruments import assign_by_words, instruments_of
from musicgen.tokenization.part_orders import MAX_PARTS, TUNE, PartOrders
from musicgen.tokenization.phrases import (
    FULL,
    HALF,
    LEFT,
    LEFT_COUNTS,
    LEFT_ENDS,
    PIECE,
    bars_left,
    in_force,
    is_dominant,
    phrase_ends,
)
from musicgen.tokenization.quantization import (
    QuantizationReport,
    find_changes,
    nearest_bin,
    printed_rhythm,
    ratio_bins,
)
from musicgen.tokenization.vocabulary import IntArray, within
from musicgen.validation import check_bool, check_float

POSITIONS_PER_BEAT = 12
# In positions: the printed values with dots, doubled dots and triplets; then ties.
DURATIONS = (
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 16, 18, 20, 21, 24, 27, 28, 30, 32, 33,
    36, 40, 42, 45, 48, 54, 60, 66, 72, 84, 96, 108, 120, 144, 168, 192,
)  # fmt: skip
NUM_PITCHES = 128  # MIDI pitches: a voice of a part's pitch is 128 part + pitch

_OF_PARTS = ("words", "lowest")  # settings of a part that other instruments lack
_HEADER_PLACES = 4  # bar, key, tempo and the part of chords, before the other parts of a bar


class Songs(PartOrders):
    """Bars: signature and bars left; key and tempo if they change; then the parts; EOS at the end.

        Bar_3/4 Left_full_4 Key_-3m Tempo_95 Part_Chords Beat_0 Chord_C_m Part_Voice Beat_0 Pitch_60
            Duration_12
            … Part_Piano Beat_0 Pitch_48 Duration_24 Pitch_55 Duration_24 Beat_12 …

    A grid step is a twelfth of a quarter. Onsets and ends are rounded to steps, durations, which
    may pass bar lines, and tempi to the nearest by ratio. A part has each pitch once at a time.
    Drums have no durations. The key, in fifths, is the score's signature, else found from its
    notes. Keys and tempi are of whole bars, the last in each; chords come from markers.

    Pieces are encoded with the chords, where they change, as the first part, and then the others in
    the order of `parts`. In training crops other parts may lead, in all of their bars: so a model
    learns to write the chords and the other parts to them.

    Args:
        parts: name, program and drum flag of each, the programs that it takes, words in the names
            of tracks that it takes, see `find_by_words`, and the lowest pitch that is generated.
        time_signatures: those of the vocabulary, see `TimeSignatures`.
        pitch_range: lowest and highest MIDI pitch.
        velocity_bins: lowest, highest and step; None: no Velocity tokens.
        tempo_bins: lowest and highest in quarters a minute, and how many at equal ratios; None: no
            Tempo tokens.
        chords: whether the vocabulary has Chord tokens, and a part of them.
        max_bars: maximum number of bars; later events are dropped.
        max_transposition: training crops are shifted by up to this many semitones up or down.
        lead_probability: share of the crops in which any part that they have leads, or in half
            of these any set of parts, chords among them.
        gap_probability: share of the crops in the order of `gaps`. The tokens of this order are in
            the vocabulary if it is positive.
        phrases: whether keys are major or minor, and bars have the tokens of `phrases`.
    """

    name: ClassVar[str] = "songs"
    note_families = ("Pitch", "Drum")
    steps_per_beat = POSITIONS_PER_BEAT
    header_in_training = True
    drums = range(27, 88)  # General MIDI 2
    durations = np.array(DURATIONS) * (TICKS_PER_BEAT // POSITIONS_PER_BEAT)

    def __init__(  # noqa: PLR0913
        self,
        *,
        parts: Sequence[Mapping[str, Any]],
        time_signatures: Sequence[str],
        pitch_range: Sequence[int] = (21, 108),
        velocity_bins: Sequence[int] | None = None,
        tempo_bins: Sequence[int] | None = (30, 240, 37),
        chords: bool = True,
        max_bars: int = 4096,
        max_transposition: int = 6,
        lead_probability: float = 0,
        gap_probability: float = 0,
        phrases: bool = False,
    ) -> None:
        super().__init__(
            time_signatures,
            pitch_range,
            velocity_bins,
            tempo_bins,
            chords,
            max_bars,
            max_transposition,
        )
        check_float("lead_probability", lead_probability, maximum=1)
        check_float("gap_probability", gap_probability, maximum=1)
        check_bool("phrases", phrases)
        self.lead_probability, self.gap_probability = lead_probability, gap_probability
        self.phrases = phrases
        self.parts = [dict(part) for part in parts]
        self.words = [part.get("words", ()) for part in self.parts]
        self.instruments = instruments_of(
            [{name: part[name] for name in part if name not in _OF_PARTS} for part in self.parts]
        )
        self._is_drum = np.array([part.is_drum for part in self.instruments])
        self.part_names = [part.name.lower() for part in self.instruments]
        self._tune_part = self.part_names.index(TUNE) if TUNE in self.part_names else 0
        if len(self.parts) + chords > MAX_PARTS:
            raise ParameterError("parts", len(self.parts), f"expected up to {MAX_PARTS - chords}")
        lowest = [part.get("lowest", 0) - self.pitches.start for part in self.parts]
        self.lowest_pitches = np.maximum([*lowest, 0], 0)  # ranks; the last part is of chords
        self.tempi = [] if tempo_bins is None else ratio_bins(tempo_bins)
        self.header = ("Key", "Tempo")
        part_names = [part.name for part in self.instruments]
        if chords:
            self.header = ("Key", "Tempo", "Part", "Beat", "Chord")
            part_names.append("Chords")
        order = "Beat", "Key", "Tempo", "Chord", "Part", "Pitch", "Drum", "Velocity", "Duration"
        self.number_tokens(
            (*order, "Left", "Gap"),
            Gap=MARKS if gap_probability else (),
            Left=LEFT if phrases else (),
            Key=KEYS if phrases else KEYS[: len(FIFTHS)],
            Part=part_names,
            Drum=self.drums,
            Duration=DURATIONS,
        )

    def grammar(self) -> SongsGrammar:
        return SongsGrammar(self)

    def constraints(self, request: Any, prompts: Sequence[Any]) -> list[Constraint]:
        grammar = self.grammar()
        targets = target_parts(len(grammar.is_drum), [prompt.targets for prompt in prompts])
        targets |= grammar.is_chords
        own: list[Constraint] = [TargetParts(grammar, "Part", targets)]
        is_whole = request.piece.is_whole_piece
        if is_whole:
            conditioning = [prompt.kept.conditioning.ids for prompt in prompts]
            own = [KeptSongParts(grammar, conditioning, targets)]
        if self.chords:
            asked = [last_chord(request, prompt) for prompt in prompts]
            own.append(SongsChords(grammar, asked, targets, always_chooses=is_whole))
        if self.lowest_pitches.any():
            own.append(LowestPitches(grammar, self.lowest_pitches))
        if max_notes := request.sampling.max_notes:
            own.append(MaxNotesOfParts(grammar, notes_of_each(grammar, max_notes), targets))
        tempo = None
        if request.piece.tempo is not None:
            asked_tempo = np.array([request.piece.tempo])
            tempo = int(nearest_bin(asked_tempo, self.tempi, by_ratio=True)[0])
        tonic = tonic_index(request.piece.tonic) if self.chords else None
        if not is_whole:
            own.append(FixedKey(grammar))
        if tempo is not None or tonic is not None:
            own.append(SongBeginning(grammar, tempo, tonic))
        if self.phrases and not is_whole:
            own.append(PlannedEnds(grammar, [request.planned_ends(prompt) for prompt in prompts]))
        return bar_constraints(self, grammar, request, prompts, own, targets)

    def times(self, tokens: IntArray) -> IntArray:
        """Return the grid step of each id, see `InBars.times`. [L] -> [L]

        The future of a gap begins where the last bar ends.
        """
        first = self.future_length(tokens)
        times = super().times(tokens[first:])
        if not first:
            return times
        bars = tokens[first:][within(tokens[first:], self.families["Bar"])]
        end = self.signatures.lengths[bars - self.families["Bar"].start].sum()
        return np.concatenate([end + super().times(tokens[: first - 1]), [0], times])

    def decode(self, tokens: IntArray) -> Score:
        """Return the music of ids [L], see `InBars.decode`, without that of a future."""
        return super().decode(tokens[self.future_length(tokens) :])

    def beginning(self, tokens: IntArray) -> IntArray:
        """Return whole bars of a piece [L] without counts of the bars behind them. -> [<= L]"""
        is_left = within(tokens, self.families["Left"])
        left = np.where(is_left, tokens - self.families["Left"].start, 0)
        bar = np.cumsum(within(tokens, self.families["Bar"]))
        is_within = bar + LEFT_COUNTS[left] - 1 <= bar.max(initial=0)
        return tokens[~is_left | (is_within & (LEFT_ENDS[left] != PIECE))]

    def find_track(self, track: Track) -> int | None:
        return self.find_tracks([track])[0]

    def find_tracks(self, tracks: Sequence[Track]) -> list[int | None]:
        return assign_by_words(tracks, self.instruments, self.words)

    def normalise_rhythm(self, score: Score) -> Score:
        return printed_rhythm(score)

    def encode_with_report(self, score: Score) -> tuple[IntArray, QuantizationReport]:
        report, lines, signatures = self.in_bars(score)

        def bar_of(steps: IntArray) -> IntArray:
            return np.searchsorted(lines, steps, side="right") - 1

        part, step, pitch, ids = self._read_notes(report)
        chord_step, chord = self.chord_changes(report)
        key_step, key = self._keys(report)
        key_bar, key = find_changes(bar_of(key_step), key)
        key_bar[:1] = 0  # also of the bars before the first signature
        tempo_step, tempo = self.tempi_inside(report, by_ratio=True)
        tempo_bar, tempo = find_changes(bar_of(tempo_step), tempo)

        first = {name: ids.start for name, ids in self.families.items()}
        # The chords are the last part, with index -1, but come first.
        parts, steps = np.append(part, np.full_like(chord, -1)), np.append(step, chord_step)
        places, bars = _HEADER_PLACES + parts, bar_of(steps)
        num_bars = int(np.concatenate([bars, key_bar, tempo_bar]).max(initial=-1)) + 1
        if num_bars and not len(key):
            key_bar, key = np.array([[0], [self._key_index(found_signature(report.score))]])
        left_bar = left = np.empty(0, np.int64)
        if self.phrases and num_bars:
            phrase = self._phrase_ends(report, part, step, ids[2])
            tonic = _tonic(in_force(lines[key_bar], key, phrase))
            is_half = is_dominant(in_force(chord_step, chord, phrase), tonic)
            left_bar, left = bars_left(bar_of(phrase), np.where(is_half, HALF, FULL), num_bars)

        num_places, end = _HEADER_PLACES + MAX_PARTS, lines[-1]
        part_bar, part_place = np.divmod(np.unique(bars * num_places + places), num_places)
        part_ids = np.array(self.families["Part"])[part_place - _HEADER_PLACES]
        beat_place, beat_step = np.divmod(np.unique(places * end + steps), end)
        beat_bar = bar_of(beat_step)
        # Keys: bar, place in the bar, grid step, and place among the events there.
        kinds: list[Events] = [
            ((np.arange(num_bars), 0, 0, 0), [first["Bar"] + signatures[:num_bars]]),
            ((left_bar, 0, 0, 1), [first["Left"] + left]),
            ((key_bar, 1, 0, 0), [first["Key"] + key]),
            ((tempo_bar, 2, 0, 0), [first["Tempo"] + tempo]),
            ((part_bar, part_place, -1, 0), [part_ids]),
            ((beat_bar, beat_place, beat_step, 0), [first["Beat"] + beat_step - lines[beat_bar]]),
            ((bar_of(chord_step), _HEADER_PLACES - 1, chord_step, 1), [first["Chord"] + chord]),
            ((bar_of(step), _HEADER_PLACES + part, step, 1 + pitch), ids),
        ]
        return np.append(sorted_tokens(kinds), first["EOS"]), report

    def _keys(self, report: QuantizationReport) -> tuple[IntArray, IntArray]:
        """Return grid step and index among the keys of the vocabulary of each key signature."""
        keys = report.score.key_signatures
        if self.phrases:
            keys = with_modes(report.score)
        ticks = np.array([each.tick for each in keys], np.int64)
        step, inside = report.inside(ticks, "key signatures")
        return step, np.array([self._key_index(each) for each in keys], np.int64)[inside]

    def _key_index(self, key: KeySignature) -> int:
        """Return the index of a key among those of the vocabulary."""
        return key_index(key._replace(minor=key.minor and self.phrases))

    def _phrase_ends(
        self, report: QuantizationReport, part: IntArray, onset: IntArray, duration: IntArray
    ) -> IntArray:
        """Return `phrase_ends` of a song: the rests of its tune count, else those in all parts.

        Args:
            part, onset, duration: of the notes; ids of the durations, -1 of drums. [num_notes]
        """
        counts = duration >= 0
        is_tune = np.isin(part, [i for i, name in enumerate(self.part_names) if name == TUNE])
        if is_tune.any():
            counts &= is_tune
        onset = onset[counts]
        ends = onset + np.array(DURATIONS)[duration[counts] - self.families["Duration"].start]
        return phrase_ends(report, onset, ends, self.steps_per_beat)

    def _read_notes(
        self, report: QuantizationReport
    ) -> tuple[IntArray, IntArray, IntArray, list[Any]]:
        """Return part, onset and pitch of the notes, [N] each, and their three ids, -1: none."""
        found = self.find_tracks(report.score.tracks)
        others = f"notes of other instruments than {', '.join(self.part_names)}"
        notes, part, track = report.numbered_notes(found, others)
        is_drum, pitch = self._is_drum[part], notes["pitch"]
        known = np.where(is_drum, np.isin(pitch, self.drums), np.isin(pitch, self.pitches))
        report.drop("notes of other pitches", report.grid(notes["onset"][~known]))
        onset, inside = report.inside(notes["onset"][known])
        notes = notes[known][inside]
        part, track = (each[known][inside] for each in (part, track))
        is_drum = self._is_drum[part]
        duration = report.grid(notes["onset"] + notes["duration"]) - onset
        longest = DURATIONS[-1]
        reason = f"notes longer than {longest // POSITIONS_PER_BEAT} beats"
        report.clip(reason, onset[~is_drum & (duration > longest)])
        nearest = np.array(DURATIONS)[nearest_bin(duration, DURATIONS, by_ratio=True)]
        voice, onset, duration, velocity = report.remove_overlaps(
            NUM_PITCHES * part + notes["pitch"],
            onset,
            np.where(is_drum, 1, nearest),
            nearest_bin(notes["velocity"], self.velocities),
            track,
        )
        part, pitch = np.divmod(voice, NUM_PITCHES)
        is_drum = self._is_drum[part]
        first = {name: ids.start for name, ids in self.families.items()}
        drum = first["Drum"] + pitch - self.drums.start
        note = np.where(is_drum, drum, first["Pitch"] + pitch - self.pitches.start)
        # A note that was shortened has the longest duration that fits.
        fits = np.searchsorted(DURATIONS, duration, side="right") - 1
        duration = np.where(is_drum, -1, first["Duration"] + fits)
        return (
            part,
            onset,
            pitch,
            [note, first["Velocity"] + velocity if self.velocities else -1, duration],
        )

    def name_tune(self, score: Score) -> tuple[Score, int | None]:
        """Return a score of a tune alone with the name of a part, and the index of that part.

        It is the voice, as chords soon follow on a tune of a piano; without a voice, the first
        part. The instrument is unknown if the track's name tells none, and its program is that of
        files without programs.
        """
        sounding = [i for i, track in enumerate(score.tracks) if len(track.notes)]
        if len(sounding) == 1:
            tune, part = score.tracks[sounding[0]], self._tune_part
            is_unknown = tune.program == PIANO and not self.tells_part(tune)
            if is_unknown and is_line(tune.notes):
                return self.with_name(score, sounding[0], part), part
        return score, None


def _tonic(key: IntArray) -> IntArray:
    """Return the tonics, as pitch classes, of keys of the vocabulary. [N]"""
    minor, fifths = np.divmod(key, len(FIFTHS))
    tonics: IntArray = tonic_of(fifths + FIFTHS.start, minor)
    return tonics
