"""The drums of a staff of percussion."""

_DRUMS = {
    "D4": 44,  # hi-hat by foot
    "E4": 35,
    "F4": 36,  # bass drum
    "G4": 41,
    "A4": 43,  # floor tom
    "B4": 45,
    "C5": 38,  # snare
    "D5": 47,
    "E5": 48,  # high tom
    "F5": 51,  # ride cymbal
    "G5": 42,  # hi-hat
    "A5": 49,  # crash cymbal
    "B5": 49,
}
_SNARE = 38
_NAMES = "CDEFGAB"


def drum_on_staff(name: str) -> int:
    """Return the drum of General MIDI on a line or space, by the name that a treble clef gives it.

    As most drum sets are printed (Weinberg 1998, "Guide to standardized drumset notation"); a snare
    where none is usual.
    """
    return _DRUMS.get(name, _SNARE)


def drum_at(place: int) -> int:
    """Return the drum of a line or space by its number: 0 is the lowest line."""
    step = place + 2 + 4 * 7  # E4
    return drum_on_staff(f"{_NAMES[step % 7]}{step // 7}")
