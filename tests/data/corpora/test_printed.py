"""The reader of printed scores on small files, and on music21's own against its parser."""

import zipfile

import pytest

from musicgen.data.corpora.music21_corpus import Music21Corpus, find_corpus
from musicgen.data.corpora.printed import read_printed
from musicgen.errors import UserError
from musicgen.midi import dumps, loads

QUARTER = 480


def note(pitch, duration, inside=""):
    step, octave = pitch[0], pitch[-1]
    alter = {"#": "<alter>1</alter>", "b": "<alter>-1</alter>"}.get(pitch[1:-1], "")
    return (
        f"<note><pitch><step>{step}</step>{alter}<octave>{octave}</octave></pitch>"
        f"<duration>{duration}</duration>{inside}</note>"
    )


REST = "<note><rest/><duration>{}</duration></note>"
FERMATA = "<notations><fermata/></notations>"
CHORD = note("E5", 4).replace("<note>", "<note><chord/>")
GRACE = note("A5", 0).replace("<note>", "<note><grace/>")
HEAD = (
    "<attributes><divisions>4</divisions><key><fifths>-1</fifths><mode>major</mode></key>"
    "<time><beats>3</beats><beat-type>4</beat-type></time></attributes>"
)


def musicxml(*parts):
    names = "".join(
        f'<score-part id="P{i}"><part-name>{name}</part-name></score-part>'
        for i, (name, _) in enumerate(parts)
    )
    bodies = "".join(
        f'<part id="P{i}">{"".join(f"<measure>{bar}</measure>" for bar in bars)}</part>'
        for i, (_, bars) in enumerate(parts)
    )
    return f"<score-partwise><part-list>{names}</part-list>{bodies}</score-partwise>"


MELODY = [
    HEAD + note("C5", 4),  # a pickup
    note("F5", 6) + note("G5", 2) + note("A5", 4, '<tie type="start"/>'),
    note("A5", 4, '<tie type="stop"/>') + GRACE + note("Bb5", 4, FERMATA),  # two beats, then
    note("C5", 4) + CHORD,  # the third, after a repeat sign
    note("F5", 4) + note("F#5", 4),  # a bar of two beats
    note("G5", 12) + note("G5", 4),  # a bar of four
    note("F5", 8, FERMATA),
]
SECOND = [
    HEAD + REST.format(4),
    note("F3", 12) + "<backup><duration>8</duration></backup>" + note("C4", 8),
    "<forward><duration>8</duration></forward>",
    note("C3", 4),
    note("F3", 8),
    note("C3", 16),
    note("F3", 8, FERMATA),
]


def check_example(score):
    melody, second = score.tracks
    assert (melody.name, second.name) == ("Melody", "Second")
    rows = [(n["onset"] / QUARTER, n["duration"] / QUARTER, n["pitch"]) for n in melody.notes]
    assert rows == [
        *[(2, 1, 72), (3, 1.5, 77), (4.5, 0.5, 79), (5, 2, 81), (7, 1, 82)],
        *[(8, 1, 72), (8, 1, 76), (9, 1, 77), (10, 1, 78), (11, 3, 79), (14, 1, 79), (15, 2, 77)],
    ]
    rows = [(n["onset"] / QUARTER, n["duration"] / QUARTER, n["pitch"]) for n in second.notes]
    assert rows == [(3, 3, 53), (4, 2, 60), (8, 1, 48), (9, 2, 53), (11, 4, 48), (15, 2, 53)]
    assert [(s.tick / QUARTER, *s[1:]) for s in score.time_signatures] == [
        *[(0, 3, 4), (9, 2, 4), (11, 4, 4), (15, 3, 4)]
    ]
    assert (score.bar_starts() / QUARTER).tolist() == [0, 3, 6, 9, 11, 15]
    assert [(tick / QUARTER, text) for tick, text in score.markers] == [
        *[(0, "Key signature: 1 flat"), (7, "Fermata"), (15, "Fermata")]
    ]


def test_ties_in_a_part_of_many_notes(tmp_path):
    """Two voices of one part: a note held over the bar line, of which the other plays ten."""
    tie = '<tie type="{}"/>'.format
    bars = [
        HEAD + note("C5", 12, tie(kind)) + "<backup><duration>12</duration></backup>"
        + "".join(note(f"{step}4", 1) for step in "CDEFGABAGFED")
        for kind in ("start", "stop")
    ]  # fmt: skip
    path = tmp_path / "tied.musicxml"
    path.write_text(musicxml(("Piano", bars)))
    (track,) = read_printed(path).tracks
    held = track.notes[track.notes["pitch"] == 72]
    assert held["duration"].tolist() == [6 * QUARTER]
    assert len(track.notes) == 25


def test_musicxml_keeps_the_printed_bars_keys_and_fermatas(tmp_path):
    text = musicxml(("Melody", MELODY), ("Second", SECOND))
    path = tmp_path / "tune.xml"
    path.write_text(text)
    check_example(read_printed(path))
    container = '<container><rootfiles><rootfile full-path="a/b.xml"/></rootfiles></container>'
    path = tmp_path / "tune.mxl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("META-INF/container.xml", container)
        archive.writestr("a/b.xml", text)
    score = read_printed(path)
    check_example(score)
    check_example(loads(dumps(score)))


KERN = """\
!!!OPR: A mass
**kern\t**silbe\t**kern
!Bassus\t!\t!Cantus
*k[f#c#]\t*\t*k[f#c#]
*M4/2\t*\t*M4/2
=1\t=1\t=1
0DD;\ta\t1.r
.\t.\t[2ff#
=2\t=2\t=2
4BB-\tb\t4ff#]
4.C 4.E\tc\t4.cc
8B\td\t8qg
.\t.\t8a;
*-\t*-\t*-
"""


def test_kern_has_its_bass_first_and_notes_of_several_spines(tmp_path):
    path = tmp_path / "mass.krn"
    path.write_text(KERN)
    score = read_printed(path)
    rows = {
        track.name: [
            (n["onset"] / QUARTER, n["duration"] / QUARTER, n["pitch"]) for n in track.notes
        ]
        for track in score.tracks
    }
    assert list(rows.items()) == [
        ("Cantus", [(6, 3, 78), (9, 1.5, 72), (10.5, 0.5, 69)]),
        ("Bassus", [(0, 8, 38), (8, 1, 46), (9, 1.5, 48), (9, 1.5, 52), (10.5, 0.5, 59)]),
    ]
    assert [(tick / QUARTER, text) for tick, text in score.markers] == [
        *[(0, "Key signature: 2 sharps"), (10.5, "Fermata")]
    ]
    assert (score.bar_starts() / QUARTER).tolist() == [0, 8]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.xml", "<score", "no score that can be read"),
        ("a.xml", "<html/>", "no score"),
        ("a.mxl", "PK", "not a zip file"),
        ("a.krn", "**kern\n=1\nabc\n*-\n", "not a note: abc"),
        ("a.krn", "**kern\n*^\n4c\t4d\n", "spines that divide"),
    ],
)
def test_other_files_raise_one_line(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UserError, match=rf"^{path}: .*{message}[^\n]*$"):
        read_printed(path)


@pytest.mark.parametrize("name", ["bach/bwv269.mxl", "bach/bwv67.4.xml", "palestrina/Agnus_00.krn"])
def test_scores_are_as_the_parser_of_music21_reads_them(name):
    """Against music21: sounding notes, the places of barlines and of fermatas."""
    import music21  # slow to import

    path = find_corpus() / name
    parsed = music21.converter.parse(path, forceSource=True, storePickle=False)
    score = read_printed(path)
    first = parsed.parts[0].getElementsByClass("Measure")
    pickup = first[0].paddingLeft
    assert len(score.tracks) == len(parsed.parts)
    for track, part in zip(score.tracks, parsed.parts, strict=True):
        sounding = part.stripTies().flatten().notes
        expected = [(pickup + n.offset, n.quarterLength, n.pitch.midi) for n in sounding]
        rows = [(n["onset"] / QUARTER, n["duration"] / QUARTER, n["pitch"]) for n in track.notes]
        assert rows == expected
    # A suffix marks what follows a repeat sign within a bar.
    barlines = [pickup + bar.offset for bar in first if bar.offset and not bar.numberSuffix]
    assert (score.bar_starts() / QUARTER).tolist()[1:] == barlines
    fermatas = [
        pickup + note.getOffsetInHierarchy(parsed)
        for note in parsed.parts[0].recurse().notes
        if any(isinstance(mark, music21.expressions.Fermata) for mark in note.expressions)
    ]
    assert [m.tick / QUARTER for m in score.markers if m.text == "Fermata"] == fermatas


def test_palestrina_is_split_by_masses():
    pieces = Music21Corpus("palestrina").pieces()
    assert len(pieces) == 1318
    assert len({piece.group for piece in pieces}) < 110
    assert {piece.group for piece in pieces if piece.name == "Agnus_00.krn"} == {
        "Missa De Beata Marie Virginis (II)"
    }


def test_an_unknown_composer_lists_those_there_are():
    with pytest.raises(UserError, match=r"^composer=bachh: expected one of .*bach, .*palestrina"):
        Music21Corpus("bachh").pieces()
