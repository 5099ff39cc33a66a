"""Keys and their spelling, and printed chord symbols, such as Am7 or F#dim/A."""

import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from musicgen.errors import ParameterError
from musicgen.midi.score import FloatArray, KeySignature, NoteArray, Score, pitched_notes

_SCALE = {True: (0, 2, 4, 5, 7, 9, 11), False: (0, 2, 3, 5, 7, 8, 10)}  # major, natural minor
# Probe-tone ratings of the pitch classes from the tonic on (Krumhansl & Kessler 1982).
_PROFILES = {
    True: (6.35, 2.23, 3.48, 2.33, 4.38, 4.09, 2.52, 5.19, 2.39, 3.66, 2.29, 2.88),
    False: (6.33, 2.68, 3.52, 5.38, 2.60, 3.53, 2.54, 4.75, 3.98, 2.69, 3.34, 3.17),
}
# Weights of the pitch classes in corpora. Together they find the tonic of 90% of 346 beginnings of
# scores (OpenScore Lieder, Mutopia). The probe tones alone find it of 73%: they take a long
# dominant for the tonic.
_CORPUS_PROFILES = (
    {  # Temperley 2001, of the Kostka-Payne corpus
        True: (0.748, 0.06, 0.488, 0.082, 0.67, 0.46, 0.096, 0.715, 0.104, 0.366, 0.057, 0.4),
        False: (0.712, 0.084, 0.474, 0.618, 0.049, 0.46, 0.105, 0.747, 0.404, 0.067, 0.133, 0.33),
    },
    {  # Bellmann 2005, of chords by Budge 1943
        True: (16.8, 0.86, 12.95, 1.41, 13.49, 11.93, 1.25, 20.28, 1.8, 8.04, 0.62, 10.57),
        False: (18.16, 0.69, 12.99, 13.34, 1.07, 11.15, 1.38, 21.07, 7.49, 1.53, 0.92, 10.21),
    },
    {  # Albrecht & Shanahan 2013
        True: (0.238, 0.006, 0.111, 0.006, 0.137, 0.094, 0.016, 0.214, 0.009, 0.08, 0.008, 0.081),
        False: (0.22, 0.006, 0.104, 0.123, 0.019, 0.103, 0.012, 0.214, 0.062, 0.022, 0.061, 0.052),
    },
)
_CADENCE = 0.05
"""What the last cadence adds to the mean correlation of its key with `_CORPUS_PROFILES`."""
# A signature of C is ignored if the share of notes in the key that the notes have exceeds the share
# in C by more than this. So it is in 72 of 120 songs of POP909 with this signature.
_CONTRADICTION = 0.2
LETTERS = "FCGDAEB"
"""Names of notes in ascending fifths, the order of the sharps of key signatures."""
_FIFTHS = [letter + sign for sign in ("b", "", "#") for letter in LETTERS]  # F flat to B sharp

_MAJOR, _MINOR = r"(?:[Mm]ajor|[Mm]aj|ma|M|Δ|\^)", r"(?:[Mm]inor|[Mm]in|mi|m|-)"
_SEVENTH = r"(?:7|9|11|13)"
_TENSIONS = r"(?:(?:add|no|[b#+-])(?:2|3|4|5|6|9|11|13))*"
# What follows the root, by quality; the first match decides. Tensions are left out. Sixths and
# ninths without a seventh are triads, for the markers have no sixths.
CHORD_SPELLINGS = {
    "sus2": rf"{_SEVENTH}?sus[29]",
    "sus4": rf"4|{_SEVENTH}?sus4?{_TENSIONS}",
    "/o7": rf"ø7?|h7|0|/o7|{_MINOR}{_SEVENTH}[b-]5",
    "o7": r"(?:dim|o|°)[79]",
    "o": rf"dim|o|°|{_MINOR}[b-]5",
    "+": r"aug|\+5?|#5",
    "m7": rf"{_MINOR}{_SEVENTH}{_TENSIONS}",
    "m": rf"{_MINOR}(?:6/9|69|6|/?{_MAJOR}{_SEVENTH})?{_TENSIONS}",
    "M7": rf"(?:{_MAJOR}{_SEVENTH}|Δ|\^){_TENSIONS}",
    "7": rf"(?:(?:aug|\+|dom)?{_SEVENTH}\+?|7?alt){_TENSIONS}(?:alt)?",
    "M": rf"{_MAJOR}?(?:2|5|6/9|69|6)?{_TENSIONS}",
}
_LONGEST = 40  # characters
NO_CHORDS = ("NC", "N.C.", "N.C", "n.c.", "N", "none")
_SYMBOL = re.compile(r"([A-G][#b]?)(.*?)(?:/([A-G][#b]?))?")
_PLAIN = str.maketrans({"♯": "#", "♭": "b", "−": "-", "△": "Δ", " ": None})


class Key(NamedTuple):
    """A key: its tonic as a pitch class (0 is C), and whether it is major."""

    tonic: int
    major: bool

    @property
    def name(self) -> str:
        """Its name, such as Eb major or F# minor."""
        return f"{spelling(self.fifths)[self.tonic]} {'major' if self.major else 'minor'}"

    @property
    def scale(self) -> tuple[int, ...]:
        """The pitch classes of its major or natural minor scale."""
        return tuple((self.tonic + step) % 12 for step in _SCALE[self.major])

    @property
    def fifths(self) -> int:
        """The sharps of its signature, or as a negative number the flats; Db to F#, Ebm to G#m."""
        flattest = -5 if self.major else -6
        relative = self.tonic + 3 * (not self.major)  # of the major key with the same signature
        return (7 * relative - flattest) % 12 + flattest

    @property
    def signature(self) -> KeySignature:
        """Its key signature, at tick 0."""
        return KeySignature(0, self.fifths, not self.major)


def tonic_of(fifths: Any, minor: Any) -> Any:
    """Return the tonic, a pitch class, of a key signature, or of arrays of them."""
    return (7 * fifths - 3 * minor) % 12


def spelling(fifths: int) -> tuple[str, ...]:
    """Return names of the pitch classes from C on, such as Bb: those nearest to a key signature.

    On the line of fifths, from three below its major tonic to eight above: no double accidentals.
    A white key has the name of another, such as B#, only in a signature that has this note.
    """
    lowest = min(max(0, _FIFTHS.index("C") + fifths - 3), len(_FIFTHS) - 12)
    nearest = _FIFTHS[lowest : lowest + 12]
    names = sorted(nearest, key=lambda note: 7 * (_FIFTHS.index(note) - 8) % 12)
    for pitch_class, plain, name, is_in_key in (
        (0, "C", "B#", fifths >= 7),
        (5, "F", "E#", fifths >= 6),
        (11, "B", "Cb", fifths <= -6),
        (4, "E", "Fb", fifths <= -7),
    ):
        if names[pitch_class] == name and not is_in_key:
            names[pitch_class] = plain
    return tuple(names)


KEYS = [Key(tonic, major) for major in (True, False) for tonic in range(12)]


def find_key(notes: NoteArray, fifths: int | None = None) -> Key | None:
    """Return the key of pitched notes; None if it is undefined, such as without notes.

    The key's profile has the highest correlation with the durations of the pitch classes
    (Krumhansl & Schmuckler; Krumhansl 1990, "Cognitive foundations of musical pitch", chapter 4).

    Args:
        fifths: a key signature, which limits the choice to its major and minor key.
    """
    weights = np.bincount(notes["pitch"] % 12, notes["duration"], 12)
    if weights.std() == 0:
        return None
    return _best_key(key_fits() @ weights, fifths)


def _best_key(fits: FloatArray, fifths: int | None) -> Key:
    """Return the key with the highest fit [24], of those with a key signature if one is given."""
    if fifths is not None:
        has_signature = np.array([(key.fifths - fifths) % 12 == 0 for key in KEYS])
        fits = np.where(has_signature, fits, -np.inf)
    return KEYS[int(np.argmax(fits))]


def found_signature(score: Score) -> KeySignature:
    """Return the signature of the key that a score's notes are in; C major without notes."""
    return (find_key(pitched_notes(score)) or Key(0, major=True)).signature


def first_signature(score: Score) -> KeySignature:
    """Return the first key signature of a score, see `with_modes`; without one the found one."""
    return (with_modes(score) or [found_signature(score)])[0]


def with_modes(score: Score) -> list[KeySignature]:
    """Return the key signatures of a score with the modes that its notes have.

    Most programs write major for all keys, so where none of them is minor, each is of the major or
    the minor key that fits the notes up to the next one better, see `find_key`. That is the printed
    mode of 90% of 503 signatures (Mutopia).
    """
    signatures, notes = score.key_signatures, pitched_notes(score)
    if any(each.minor for each in signatures):
        return signatures
    found = []
    for each, after in zip_longest(signatures, signatures[1:]):
        end = score.end if after is None else after.tick
        inside = (notes["onset"] >= each.tick) & (notes["onset"] < end)
        key = find_key(notes[inside], each.fifths)
        found.append(each._replace(minor=key is not None and not key.major))
    return found


def in_key_share(score: Score, key: Key | None) -> float:
    """Return the share of pitched notes in the scale of a key (major or natural minor).

    It is NaN without a key or without pitched notes.
    """
    notes = pitched_notes(score)
    if key is None or not len(notes):
        return np.nan
    return float(np.isin(notes["pitch"] % 12, key.scale).mean())


def final_key(score: Score) -> Key | None:
    """Return the key at the end of a score, one of the two of its key signature if it has one.

    The key's profiles have the highest mean correlation with the durations of the pitch classes;
    the key of the last cadence has an advantage. A signature of C is ignored if the notes
    contradict it: sequencers write C if no key is set. One that says minor tells the key. None
    without a key, such as without notes.
    """
    notes = pitched_notes(score)
    fifths = score.key_signatures[-1].fifths if score.key_signatures else None
    if fifths is not None and score.key_signatures[-1].minor:
        return key_of(score.key_signatures[-1])
    if fifths == 0:
        shares = [in_key_share(score, key) for key in (find_key(notes), Key(0, major=True))]
        fifths = None if shares[0] - shares[1] > _CONTRADICTION else 0
    weights = np.bincount(notes["pitch"] % 12, notes["duration"], 12)
    if weights.std() == 0:
        return None
    standardised = (weights - weights.mean()) / weights.std()
    fits = sum(key_fits(each) @ standardised for each in _CORPUS_PROFILES)
    fits = fits / (12 * len(_CORPUS_PROFILES))
    cadence = last_cadence(notes, score.ticks_per_beat)
    if cadence is not None:
        fits[KEYS.index(cadence)] += _CADENCE
    return _best_key(fits, fifths)


def last_cadence(notes: NoteArray, ticks_per_beat: int) -> Key | None:
    """Return the key of the last authentic cadence of pitched notes; None if there is none.

    At a beat the bass is the dominant, below the leading tone; at the next beat with a note it is
    the tonic, below the third of the tonic chord. The first half of beats counts.
    """
    begin, end = notes["onset"], notes["onset"] + notes["duration"]
    after: tuple[int, set[int]] | None = None  # bass and pitch classes of the next beat
    for beat in np.unique(begin // ticks_per_beat)[::-1].tolist():
        tick = beat * ticks_per_beat
        pitches = notes["pitch"][(begin < tick + max(1, ticks_per_beat // 2)) & (end > tick)]
        if not len(pitches):
            continue
        bass, classes = int(pitches.min()) % 12, {*(pitches % 12).tolist()}
        if after is not None and bass == (after[0] + 7) % 12 and (bass + 4) % 12 in classes:
            thirds = {(after[0] + third) % 12 for third in (3, 4)} & after[1]
            if len(thirds) == 1:
                return Key(after[0], (after[0] + 4) % 12 in thirds)
        after = bass, classes
    return None


def note_names(score: Score) -> tuple[str, ...] | None:
    """Return the spelling of a score's first key signature, else of its key; None without notes."""
    if score.key_signatures:
        return spelling(score.key_signatures[0].fifths)
    key = find_key(pitched_notes(score))
    return None if key is None else spelling(key.fifths)


def key_fits(of: Mapping[bool, Sequence[float]] = _PROFILES) -> FloatArray:
    """Return a matrix whose product with the durations of pitch classes rates `KEYS`. [24, 12]

    The products have the order of the correlations of `find_key`.

    Args:
        of: profiles of the major (True) and the minor keys, from the tonic on.
    """
    profiles = np.array([np.roll(of[key.major], key.tonic) for key in KEYS])
    return (profiles - profiles.mean(1, keepdims=True)) / profiles.std(1, keepdims=True)


def signs_of_key(fifths: int) -> dict[str, int]:
    """Return the semitones by which a key signature alters notes, by their letters."""
    sharp, flat = LETTERS[: max(0, fifths)], LETTERS[::-1][: max(0, -fifths)]
    return dict.fromkeys(sharp, 1) | dict.fromkeys(flat, -1)


def fifths_of_keys() -> dict[str, int]:
    """Return the sharps, or as a negative number flats, of all keys by name: C, Am, 0, Eb, Cm …"""
    signatures = zip(range(-7, 8), _FIFTHS[1:], _FIFTHS[4:], strict=False)
    return {name: n for n, major, minor in signatures for name in (str(n), major, f"{minor}m")}


def key_fifths(name: object) -> int:
    """Return the sharps, or as a negative number flats, of a key such as Eb, F#m or -3.

    Raises:
        ParameterError: it is no key.
    """
    keys = fifths_of_keys()
    if str(name) not in keys:
        raise ParameterError("key", name, "expected a key such as C, Eb, F#m, or -7 to 7 fifths")
    return keys[str(name)]


def named_key(name: object) -> Key:
    """Return the key of a name such as Eb, F#m or -3; a number is a major key.

    Raises:
        ParameterError: it is no key.
    """
    return key_of(KeySignature(0, key_fifths(name), str(name).endswith("m")))


def key_of(signature: KeySignature) -> Key:
    """Return the key of a signature."""
    return Key(tonic_of(signature.fifths, signature.minor), not signature.minor)


def chord_marker(symbol: str) -> str | None:
    """Return the marker of a chord symbol, such as `A_m7_E` for Am7/E; None if it is no chord."""
    if len(symbol) > _LONGEST:
        return None
    plain = symbol.translate(_PLAIN)
    if plain.startswith("("):  # a chord that may be left out
        plain = plain[1:].removesuffix(")")
    if plain in NO_CHORDS:
        return "N_N_N"
    match = _SYMBOL.fullmatch(plain)
    if match is None:
        return None
    root, ending, bass = match.groups()
    ending = re.sub(r"[(),]", "", ending)
    for quality, endings in CHORD_SPELLINGS.items():
        if re.fullmatch(endings, ending):
            return f"{root}_{quality}_{bass or root}"
    return None


def transposed_marker(marker: str, fifths: int) -> str:
    """Return the marker of a chord that is transposed and spelled by a number of fifths."""
    root, quality, bass = marker.split("_")
    if root == "N":
        return marker
    return f"{_transposed(root, fifths)}_{quality}_{_transposed(bass, fifths)}"


def _transposed(note: str, fifths: int) -> str:
    signs = note.count("#") - note.count("b")
    signs, place = divmod(LETTERS.index(note[0]) + 7 * signs + fifths, 7)
    return LETTERS[place] + ("#" * signs if signs > 0 else "b" * -signs)
