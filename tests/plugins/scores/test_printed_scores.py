"""Printed scores in every format, against hand-computed times and the parser of music21."""

import subprocess
import sys
import zipfile

import pytest

from musicgen.data.corpora import BachChorales
from musicgen.errors import UserError
from musicgen.midi import dumps, loads, read
from musicgen.plugins.scores import printed_scores
from musicgen.plugins.scores.printed_scores import read_score

QUARTER = 480


def note(pitch, duration, inside="", voice=1, staff=1):
    step, octave = pitch[0], pitch[-1]
    alter = {"#": "<alter>1</alter>", "b": "<alter>-1</alter>"}.get(pitch[1:-1], "")
    return (
        f"<note><pitch><step>{step}</step>{alter}<octave>{octave}</octave></pitch>"
        f"<duration>{duration}</duration><voice>{voice}</voice>{TYPES[duration]}"
        f"<staff>{staff}</staff>{inside}</note>"
    )


TYPES = {
    0: "<type>eighth</type>",
    2: "<type>eighth</type><time-modification><actual-notes>3</actual-notes>"
    "<normal-notes>2</normal-notes></time-modification>",
    3: "<type>eighth</type>",
    6: "<type>quarter</type>",
    9: "<type>quarter</type><dot/>",
    12: "<type>half</type>",
    18: "<type>half</type><dot/>",
    24: "<type>whole</type>",
}
REST = "<note><rest/><duration>{}</duration></note>"
BACK = "<backup><duration>{}</duration></backup>"
TIE = '<tie type="{0}"/><notations><tied type="{0}"/></notations>'.format
TUPLET = '<notations><tuplet type="{}"/></notations>'.format
FERMATA = "<notations><fermata/></notations>"
GRACE = note("A5", 0).replace("<duration>0</duration>", "").replace("<note>", "<note><grace/>")
ARPEGGIO = "<notations><arpeggiate/></notations>"


def head(beats, fifths):
    return (
        f"<attributes><divisions>6</divisions><key><fifths>{fifths}</fifths></key>"
        f"<time><beats>{beats}</beats><beat-type>4</beat-type></time></attributes>"
    )


def musicxml(*parts):
    names = "".join(
        f'<score-part id="P{i}"><part-name>{name}</part-name></score-part>'
        for i, (name, _) in enumerate(parts)
    )
    bodies = "".join(
        f'<part id="P{i}">'
        + "".join(f'<measure number="{n}">{bar}</measure>' for n, bar in enumerate(bars))
        + "</part>"
        for i, (_, bars) in enumerate(parts)
    )
    return f'<score-partwise version="3.1"><part-list>{names}</part-list>{bodies}</score-partwise>'


WORD = "<lyric><syllabic>single</syllabic><text>la</text></lyric>"
VOICE = [
    head(3, -1) + '<sound tempo="90"/>' + note("C5", 6, WORD),  # a pickup
    note("F5", 9) + note("G5", 3) + note("A5", 6, TIE("start")),
    note("A5", 6, TIE("stop")) + GRACE + note("Bb5", 6, FERMATA),  # two beats, then
    note("C5", 6),  # the third, after a repeat sign
    note("F5", 2, TUPLET("start"))
    + note("G5", 2)
    + note("A5", 2, TUPLET("stop"))
    + note("F#5", 6),  # a bar of two beats
    head(4, 1) + note("F#5", 24),
    note("G5", 12),
]
PIANO = [
    head(3, -1).replace("<time>", "<staves>2</staves><time>") + REST.format(6),
    note("F4", 18) + BACK.format(18) + note("F3", 18, "", 2, 2),
    note("C5", 12, ARPEGGIO) + note("E5", 12, ARPEGGIO).replace("<note>", "<note><chord/>"),
    note("C4", 6),
    note("C4", 6) + note("C3", 6, "", 1, 2),  # the voice goes to the other staff
    head(4, 1) + note("D4", 24) + BACK.format(24) + note("D4", 12, "", 2) + note("C4", 12, "", 2),
    note("B3", 12, FERMATA),
]
SONG = musicxml(("Voice", VOICE), ("Piano", PIANO))

KERN = """\
!!!AIN: 2 piano 1 vox
**kern	**kern	**kern	**text
*part2	*part2	*part1	*
*staff3	*staff2	*staff1	*
*Ipiano	*Ipiano	*Ivox	*
*I"Piano	*I"Piano	*I"Voice	*
*k[b-]	*k[b-]	*k[b-]	*
*M3/4	*M3/4	*M3/4	*
*MM90	*MM90	*MM90	*
4r	4r	4cc	la
=1	=1	=1	=1
2.F	2.f	4.ff	.
.	.	8gg	.
.	.	[4aa	.
=2	=2	=2	=2
2r	2cc: 2ee:	4aa]	.
.	.	8qaa	.
.	.	4bb-;	.
=:|!	=:|!	=:|!	=:|!
4r	4c	4cc	.
=3	=3	=3	=3
4r	4c	12ff	.
.	.	12gg	.
.	.	12aa	.
4C	4r	4ff#	.
=4	=4	=4	=4
*k[f#]	*k[f#]	*k[f#]	*
*M4/4	*M4/4	*M4/4	*
*	*^	*	*
1r	1d	2d	1ff#	.
.	.	2c	.	.
*	*v	*v	*	*
=5	=5	=5	=5
2r	2B;	2gg	.
==	==	==	==
*-	*-	*-	*-
"""

ABC = """\
X:1
M:3/4
L:1/4
Q:1/4=90
K:F
V:1 name="Voice"
c|f>ga-|a{a}b:|c|(3f/g/a/^f|
M:4/4
K:G
f4|g2|]
V:2 name="Piano"
z|[F,3F3]|[c2e2]:|C|C C,|
M:4/4
K:G
[D4]|B,2|]
"""


def mei(text):
    code = "import sys, verovio; t = verovio.toolkit(); t.loadData(sys.stdin.read()); print(t.getMEI())"
    done = subprocess.run([sys.executable, "-c", code], input=text.encode(), capture_output=True)
    return done.stdout.decode()


def mxl(path, text=SONG, name="a/b.xml"):
    container = f'<container><rootfiles><rootfile full-path="{name}"/></rootfiles></container>'
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("META-INF/container.xml", container)
        archive.writestr("a/b.xml", text)


def quarters(track):
    return [(n["onset"] / QUARTER, n["duration"] / QUARTER, n["pitch"]) for n in track.notes]


@pytest.mark.parametrize("suffix", [".musicxml", ".xml", ".mxl", ".krn", ".mei"])
def test_each_format_keeps_bars_keys_tempo_parts_and_voices(tmp_path, suffix):
    path = tmp_path / f"song{suffix}"
    if suffix == ".mxl":
        mxl(path)
    else:
        path.write_text({".krn": KERN, ".mei": mei(SONG)}.get(suffix, SONG))
    score = read(path)
    voice, piano = score.tracks
    assert [(t.name, t.program) for t in score.tracks] == [("Voice", 52), ("Piano", 0)]
    third = pytest.approx(1 / 3)
    assert quarters(voice) == [
        *[(2, 1, 72), (3, 1.5, 77), (4.5, 0.5, 79), (5, 2, 81), (7, 1, 82), (8, 1, 72)],
        *[(9, third, 77), (9 + 1 / 3, third, 79), (9 + 2 / 3, third, 81), (10, 1, 78)],
        *[(11, 4, 78), (15, 2, 79)],
    ]
    assert quarters(piano) == [
        *[(3, 3, 53), (3, 3, 65), (6, 2, 72), (6, 2, 76), (8, 1, 60), (9, 1, 60), (10, 1, 48)],
        *[(11, 2, 62), (11, 4, 62), (13, 2, 60), (15, 2, 59)],  # two voices in unison
    ]
    signatures = [(s.tick / QUARTER, *s[1:]) for s in score.time_signatures]
    assert signatures == [(0, 3, 4), (9, 2, 4), (11, 4, 4)]
    assert (score.bar_starts() / QUARTER).tolist() == [0, 3, 6, 9, 11, 15]
    assert score.key_signatures == [(0, -1, False), (11 * QUARTER, 1, False)]
    assert score.tempos.tolist() == [(0, 90)]
    assert score.markers == [(7 * QUARTER, "Fermata")]
    assert loads(dumps(score)).num_notes == score.num_notes


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-8-sig"])
def test_names_in_other_encodings(tmp_path, encoding):
    path = tmp_path / "song.krn"
    path.write_text(KERN.replace('I"Voice', 'I"Höhe'), encoding)
    assert read(path).tracks[0].name == "Höhe"


def test_abc(tmp_path):
    path = tmp_path / "tune.abc"
    path.write_text(ABC)
    score = read(path)
    assert quarters(score.tracks[0])[3:9] == [
        *[(5, 2, 81), (7, 1, 82), (8, 1, 72)],
        *[(9 + i / 3, pytest.approx(1 / 3), pitch) for i, pitch in enumerate((77, 79, 81))],
    ]
    assert (score.bar_starts() / QUARTER).tolist() == [0, 3, 6, 9, 11, 15]
    assert score.key_signatures == [(0, -1, False), (11 * QUARTER, 1, False)]
    assert score.tempos.tolist() == [(0, 90)]


@pytest.mark.parametrize(
    ("tune", "expected"),
    [
        ("M:4/4\nL:1/4\nK:C\nCDEF|", [0, 1, 2, 3]),
        ("M:4/4\nL:1/4\nK:C\nC|DEFG|]", [3, 4, 5, 6, 7]),
        ("K:C\nCDE", [0, 0.5, 1]),  # eighths without a metre
    ],
)
def test_abc_of_a_bar_or_two(tmp_path, tune, expected):
    path = tmp_path / "tune.abc"
    path.write_text(f"X:1\n{tune}\n")
    assert [onset for onset, *_ in quarters(read(path).tracks[0])] == expected


def test_the_voices_of_abc_are_parts(tmp_path):
    path = tmp_path / "duo.abc"
    head = 'X:1\nM:3/4\nL:1/4\nV:T name="Flute"\nK:Dm\n'
    lines = (
        "[V:T] A d2|c3|",
        "V:B",
        "D,3|F,3|",
        "[V:T] B3|]",
        "[V:B] G,3|]",
        "",
        "X:2",
        "K:C",
        "C|D|",
    )
    path.write_text(head + "\n".join(lines))
    high, low = map(quarters, read(path).tracks)
    assert high == [(0, 1, 69), (1, 2, 74), (3, 3, 72), (6, 3, 70)]
    assert low == [(0, 3, 50), (3, 3, 53), (6, 3, 55)]


def test_repeats_are_played_on_request(tmp_path):
    bar = "<barline location='right'><repeat direction='backward'/></barline>"
    tied = note("C5", 12, TIE("start")) + note("C5", 12, TIE("stop"))
    path = tmp_path / "twice.musicxml"
    path.write_text(musicxml(("Flute", [head(4, 0) + tied + bar, note("D5", 24)])))
    once, twice = (quarters(read_score(path, repeats=r).tracks[0]) for r in (False, True))
    assert once == [(0, 4, 72), (4, 4, 74)]
    assert twice == [(0, 4, 72), (4, 4, 72), (8, 4, 74)]


def test_a_transposing_instrument_sounds_where_it_does_in_the_key_of_the_others(tmp_path):
    transpose = "<transpose><diatonic>-1</diatonic><chromatic>-2</chromatic></transpose>"
    clarinet = head(4, 2).replace("</attributes>", f"{transpose}</attributes>")
    parts = ("Clarinet", [clarinet + note("D5", 24)]), ("Flute", [head(4, 0) + note("C5", 24)])
    path = tmp_path / "duo.musicxml"
    path.write_text(musicxml(*parts))
    score = read(path)
    assert [quarters(track) for track in score.tracks] == [[(0, 4, 72)], [(0, 4, 72)]]
    assert score.key_signatures == [(0, 0, False)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("a.xml", "<score"), ("a.xml", "<html/>"), ("a.musicxml", ""), ("a.mxl", "PK")),
        *(("a.krn", "hello"), ("a.abc", "hello"), ("a.abc", "X:1\nK:C\n")),
        ("a.mei", "<mei><music/></mei>"),
        # This one ends the process of verovio.
        ("a.krn", KERN.replace("4r	8gg", "4r").replace("2r	2cc: 2ee:	4aa]	.", "2r")),
    ],
)
def test_other_files_raise_one_line(tmp_path, capfd, name, content):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UserError, match=rf"^{path}: .*no score that can be read[^\n]*$"):
        read(path)
    assert capfd.readouterr() == ("", "")


def test_hostile_files_raise_one_line(tmp_path, monkeypatch):
    def refusal(path):
        with pytest.raises(UserError, match=rf"^{path}: [^\n]*$") as raised:
            read(path)
        return str(raised.value)

    monkeypatch.setattr(printed_scores, "MAX_BYTES", len(SONG) * 2)
    bomb = tmp_path / "bomb.mxl"
    mxl(bomb, SONG + " " * 100_000)
    assert bomb.stat().st_size < 5_000
    assert "smaller score" in refusal(bomb)
    locked = tmp_path / "locked.mxl"
    mxl(locked)
    data = bytearray(locked.read_bytes())
    for start in (data.find(b"PK\1\2") + 8, 6):  # the flag of encryption, in both headers
        data[start] |= 1
    locked.write_bytes(data)
    assert "no score" in refusal(locked)
    with zipfile.ZipFile(tmp_path / "empty.mxl", "w") as archive:
        archive.writestr("META-INF/container.xml", '<rootfile full-path="missing.xml"/>')
    assert "no score" in refusal(tmp_path / "empty.mxl")
    laughs = "".join(f"<!ENTITY a{i + 1} '{f'&a{i};' * 10}'>" for i in range(9))
    entities = f"<!DOCTYPE score-partwise [<!ENTITY a0 'C'>{laughs}]>"
    path = tmp_path / "laughs.musicxml"
    monkeypatch.setattr(printed_scores, "MAX_BYTES", 2**20)
    path.write_text(entities + SONG.replace("<part-name>Voice", "<part-name>&a9;"))
    assert read(path).tracks[0].name == "&a9;"  # no entity is expanded
    assert "No such file" in refusal(tmp_path / "gone.krn")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("bars.xml", "<score-part/>" + "<measure/>" * 10**6, "more than 20,000 elements measure"),
        ("chord.xml", "<note><chord/></note>" * 200_001, "more than 200,000 elements note"),
        ("tune.abc", "X:1\nK:C\n" + "C" * 2**19 + "|\n", "a tune of more than 524,288 characters"),
    ],
)
def test_scores_of_endless_length_are_refused_unread(tmp_path, monkeypatch, name, text, message):
    for reader in ("parse_xml", "read_tune"):
        monkeypatch.setattr(printed_scores, reader, None)
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=f"{name}: {message}"):
        read(tmp_path / name)


def test_a_score_is_read_as_the_parser_of_music21_reads_it():
    """Sounding notes, the places of bar lines and of fermatas."""
    import music21  # slow to import

    path = BachChorales().root / "bwv269.mxl"
    parsed = music21.converter.parse(path, forceSource=True, storePickle=False)
    score = read(path)
    first = parsed.parts[0].getElementsByClass("Measure")
    pickup = first[0].paddingLeft
    for track, part in zip(score.tracks, parsed.parts, strict=True):
        sounding = part.stripTies().flatten().notes
        assert quarters(track) == [
            (pickup + n.offset, n.quarterLength, n.pitch.midi) for n in sounding
        ]
    # A suffix marks what follows a repeat sign within a bar.
    barlines = [pickup + bar.offset for bar in first if bar.offset and not bar.numberSuffix]
    assert (score.bar_starts() / QUARTER).tolist()[1:] == barlines
    fermatas = [
        pickup + note.getOffsetInHierarchy(parsed)
        for note in parsed.parts[0].recurse().notes
        if any(isinstance(mark, music21.expressions.Fermata) for mark in note.expressions)
    ]
    assert [m.tick / QUARTER for m in score.markers] == fermatas
