"""MusicXML: what sounds, by durations counted by hand."""

import struct
import tracemalloc
import zipfile

import pytest

from musicgen.errors import UserError
from musicgen.plugins.scores.printed_scores import read_score

TIME = "<time><beats>4</beats><beat-type>4</beat-type></time>"
TRANSPOSE = "<transpose><chromatic>{}</chromatic></transpose>".format


def note(step, duration, inside="", octave=4):
    pitch = f"<pitch><step>{step}</step><octave>{octave}</octave></pitch>"
    return f"<note>{pitch}<duration>{duration}</duration>{inside}</note>"


def attributes(fifths=None, time=TIME, inside="", divisions=2):
    key = "" if fifths is None else f"<key><fifths>{fifths}</fifths></key>"
    return f"<attributes><divisions>{divisions}</divisions>{key}{time}{inside}</attributes>"


def score_of(*parts, heads=()):
    """A file whose parts are lists of bars; `heads` are insides of their score-parts."""
    listed, bodies = "", ""
    for i, bars in enumerate(parts):
        head = heads[i] if i < len(heads) else f"<part-name>{i}</part-name>"
        listed += f'<score-part id="P{i}">{head}</score-part>'
        measures = "".join(f'<measure number="{n}">{bar}</measure>' for n, bar in enumerate(bars))
        bodies += f'<part id="P{i}">{measures}</part>'
    return f"<score-partwise><part-list>{listed}</part-list>{bodies}</score-partwise>"


def read_text(tmp_path, text, **options):
    path = tmp_path / "song.musicxml"
    path.write_text(text)
    return read_score(path, **options)


def quarters(track):
    return [(n["onset"] / 480, n["duration"] / 480, int(n["pitch"])) for n in track.notes]


def test_the_key_is_that_of_staves_with_pitches_as_it_sounds(tmp_path):
    drums = "<note><unpitched/><duration>8</duration></note>"
    clarinet = [attributes(5, inside=TRANSPOSE(-2)) + note("B", 8), attributes(2) + note("D", 8)]
    flute = [attributes(3) + note("A", 8), attributes(0) + note("C", 8)]
    horn = [attributes(0) + note("C", 8), note("C", 8)]
    horn_in_f = [attributes(0, inside=TRANSPOSE(-7)) + note("E", 8), note("G", 8)]
    kit = [attributes(0) + drums, drums]
    expected = [(0, 3, False), (1920, 0, False)]
    for parts in (
        [flute, clarinet],
        [clarinet],
        [clarinet, flute, kit],
        [flute, horn, horn, kit],
        [flute, horn_in_f, horn_in_f],
    ):
        assert read_text(tmp_path, score_of(*parts)).key_signatures == expected
    for parts, fifths in (([horn_in_f, horn_in_f, horn], 0), ([horn_in_f], -1)):
        found = read_text(tmp_path, score_of(*parts)).key_signatures
        assert found == [(0, fifths, False)]
    guitar = [attributes(2, inside="<transpose><octave-change>-1</octave-change></transpose>")]
    score = read_text(tmp_path, score_of([guitar[0] + note("D", 8)]))
    assert (score.key_signatures, quarters(score.tracks[0])) == ([(0, 2, False)], [(0, 4, 50)])


def test_a_key_is_minor_if_a_staff_says_so(tmp_path):
    minor, major = (
        attributes(fifths).replace("</fifths>", f"</fifths><mode>{mode}</mode>")
        for fifths, mode in ((-3, "minor"), (-3, "major"))
    )
    silent = attributes(-3)
    bars = [minor + note("C", 8), major + note("E", 8)], [silent + note("G", 8), note("G", 8)]
    for parts in (bars, bars[::-1]):
        found = read_text(tmp_path, score_of(*parts)).key_signatures
        assert found == [(0, -3, True), (1920, -3, False)]


def test_a_key_and_a_transposition_change_within_a_bar(tmp_path):
    change = f"<attributes><key><fifths>1</fifths></key>{TRANSPOSE(-3)}</attributes>"
    bar = attributes(-1) + note("F", 4) + change + note("G", 4)
    score = read_text(tmp_path, score_of([bar]))
    assert score.key_signatures == [(0, -1, False), (960, 4, False)]
    assert quarters(score.tracks[0]) == [(0, 2, 65), (2, 2, 64)]


def test_tempi_stand_at_their_beats(tmp_path):
    metronome = (
        "<direction><direction-type><metronome><beat-unit>{}</beat-unit>{}"
        "<per-minute>{}</per-minute></metronome></direction-type></direction>"
    ).format
    first = attributes(0) + metronome("quarter", "<beat-unit-dot/>", 40) + note("C", 6)
    first += '<sound tempo="90"/>' + note("D", 2)
    second = note("E", 4) + metronome("half", "", "c. 36") + note("F", 4)
    score = read_text(tmp_path, score_of([first, second]))
    assert score.tempos.tolist() == [(0, 60), (1440, 90), (2880, 72)]
    assert not len(read_text(tmp_path, score_of([attributes(0) + note("C", 8)])).tempos)


def test_an_offset_moves_a_sign_back_as_far_as_its_bar_begins(tmp_path):
    def tempo(bpm, offset):
        words = "<direction-type><words>a tempo</words></direction-type>"
        return f'<direction>{words}<offset>{offset}</offset><sound tempo="{bpm}"/></direction>'

    music = attributes(0) + tempo(60, -2) + note("C", 4) + tempo(90, -2) + note("D", 4)
    score = read_text(tmp_path, score_of([music + tempo(120, -2)]))
    assert score.tempos.tolist() == [(0, 60), (480, 90), (1440, 120)]


def test_durations_alone_say_how_long_notes_are(tmp_path):
    third = "<time-modification><actual-notes>3</actual-notes><normal-notes>2</normal-notes></time-modification>"
    tie = '<tie type="{}"/>'.format
    bars = [
        attributes(0, divisions=3) + note("C", 6) + "".join(note(x, 2, third) for x in "DEF"),
        note("G", 12, tie("start")),
        note("G", 3, tie("stop")) + note("A", 3, "<type>whole</type>") + note("B", 6),
    ]
    length = 2 / 3
    assert quarters(read_text(tmp_path, score_of(bars)).tracks[0]) == [
        *[
            (0, 2, 60),
            (2, pytest.approx(length), 62),
            (pytest.approx(2 + length), pytest.approx(length), 64),
        ],
        *[
            (pytest.approx(2 + 2 * length), pytest.approx(length), 65),
            (4, 5, 67),
            (9, 1, 69),
            (10, 2, 71),
        ],
    ]


def test_of_two_notes_that_end_together_a_tie_joins_the_one_that_fits(tmp_path):
    tie = '<tie type="{}"/>'.format
    back = "<backup><duration>4</duration></backup>"
    time = TIME.replace("<beats>4", "<beats>2")
    first = attributes(0, time) + note("A", 4, tie("start")) + back + note("E", 2) + note("A", 2)
    score = read_text(tmp_path, score_of([first, note("A", 4, tie("stop"))]))
    assert quarters(score.tracks[0]) == [(0, 1, 64), (0, 4, 69), (1, 1, 69)]


def test_rests_of_several_bars_empty_bars_and_repeated_bars(tmp_path):
    rest = '<note><rest measure="yes"/><duration>8</duration></note>'
    style = "<attributes><measure-style>{}</measure-style></attributes>".format
    flute = [
        attributes(0) + note("C", 8),
        style("<multiple-rest>2</multiple-rest>") + rest,
        rest,
        "",
        style('<measure-repeat type="start">4</measure-repeat>') + rest,
        style('<measure-repeat type="stop"/>') + note("D", 8),
    ]
    horn = [attributes(0) + note("G", 8), *[note("G", 8)] * 5]
    for parts in ([flute], [flute, horn]):
        score = read_text(tmp_path, score_of(*parts))
        assert (score.bar_starts() / 480).tolist() == [0, 4, 8, 12, 16, 20]
        assert quarters(score.tracks[0]) == [(0, 4, 60), (16, 4, 60), (20, 4, 62)]
        assert score.time_signatures == [(0, 4, 4)]


def test_incomplete_bars_are_one_only_in_the_same_metre(tmp_path):
    """Around a repeat sign two parts of a bar are one; a part of 3/4 and one of 4/4 are not."""
    three = TIME.replace("<beats>4", "<beats>3")
    first = attributes(0, three) + note("C", 6)
    bars = [first, note("D", 4), note("E", 2), note("F", 4), attributes(time=TIME) + note("G", 2)]
    score = read_text(tmp_path, score_of([*bars, note("A", 8)]))
    assert score.time_signatures == [(0, 3, 4), (2880, 2, 4), (3840, 2, 8), (4320, 4, 4)]
    assert (score.bar_starts() / 480).tolist() == [0, 3, 6, 8, 9]


def test_cue_notes_are_silent(tmp_path):
    cue = note("E", 4).replace("<note>", "<note><cue/>")
    score = read_text(tmp_path, score_of([attributes(0) + cue + note("C", 4)]))
    assert quarters(score.tracks[0]) == [(2, 2, 60)]


def test_unpitched_percussion_is_drums(tmp_path):
    head = "<midi-instrument id='I{0}'><midi-channel>10</midi-channel><midi-unpitched>{0}</midi-unpitched></midi-instrument>".format
    hit = (
        "<note><unpitched><display-step>C</display-step><display-octave>5</display-octave>"
        "</unpitched><duration>4</duration>{}</note>"
    ).format
    bar = attributes(0) + hit("<instrument id='I37'/>") + hit("<instrument id='I43'/>")
    score = read_text(tmp_path, score_of([bar], heads=[head(37) + head(43)]))
    assert (score.tracks[0].is_drum, score.notes["pitch"].tolist()) == (True, [36, 42])
    assert not score.repairs
    score = read_text(tmp_path, score_of([bar]))
    assert (score.tracks[0].is_drum, score.notes["pitch"].tolist()) == (True, [38, 38])
    assert score.repairs == ["2 drums without an instrument placed by their lines"]


def test_chord_symbols_are_markers(tmp_path):
    harmony = (
        "<harmony><root><root-step>{}</root-step><root-alter>{}</root-alter></root>"
        "<kind>{}</kind>{}</harmony>"
    ).format
    bar = attributes(0) + harmony("B", -1, "dominant", "") + note("C", 4)
    bar += harmony("F", 1, "half-diminished", "<bass><bass-step>A</bass-step></bass>")
    score = read_text(tmp_path, score_of([bar + note("D", 4)]))
    assert score.markers == [(0, "Bb_7_Bb"), (960, "F#_/o7_A")]


def words(*texts, sign="", sound=""):
    printed = "".join(f"<words>{text}</words>" for text in texts)
    return f"<direction><direction-type>{printed}{sign}</direction-type>{sound}</direction>"


@pytest.mark.parametrize(
    ("segno", "to_coda", "dal_segno", "coda"),
    [
        tuple(
            words("text", sound=f"<sound {each}/>")
            for each in ("segno='s'", "tocoda='c'", "dalsegno='s'", "coda='c'")
        ),
        (words(sign="<segno/>"), words("To Coda"), words("D.S. al Coda"), words("Coda")),
        (words("Segno"), words(sign="<coda/>"), "<sound dalsegno='s'/>", words(sign="<coda/>")),
    ],
)
def test_dal_segno_goes_to_the_coda(tmp_path, segno, to_coda, dal_segno, coda):
    bars = [
        attributes(0) + note("C", 8),
        segno + note("D", 8) + to_coda,
        note("E", 8) + dal_segno,
        coda + note("F", 8),
    ]
    # The marks of the first part hold for a longer second one, too.
    score = read_text(tmp_path, score_of(bars, [note("G", 8)] * 5), repeats=True)
    assert score.tracks[0].notes["pitch"].tolist() == [60, 62, 64, 62, 65]
    assert len(score.bar_starts()) == 6
    once = read_text(tmp_path, score_of(bars))
    assert once.notes["pitch"].tolist() == [60, 62, 64, 65]


def sounds(name, value):
    return f"<sound {name}='{value}'/>"


@pytest.mark.parametrize("names", ["ab", ["", ""]])
def test_two_codas_by_their_names(tmp_path, names):
    """As two of one name follow each other, the last sign before and the next coda count."""
    first, second = names if names == "ab" else ("x", "x")
    bars = [
        sounds("segno", first) + note("C", 8) + sounds("tocoda", first),
        note("D", 8) + sounds("dalsegno", first),
        sounds("coda", first) + note("E", 8),
        sounds("segno", second) + note("F", 8) + sounds("tocoda", second),
        note("G", 8) + sounds("dalsegno", second),
        sounds("coda", second) + note("A", 8),
    ]
    played = read_text(tmp_path, score_of([attributes(0) + bars[0], *bars[1:]]), repeats=True)
    assert played.notes["pitch"].tolist() == [60, 62, 60, 64, 65, 67, 65, 69]


def test_one_segno_with_two_codas(tmp_path):
    """The second time the music passes the sign of the first coda, which came before."""
    bars = [
        attributes(0) + sounds("segno", "s") + note("C", 8) + sounds("tocoda", "a"),
        note("D", 8) + sounds("dalsegno", "s"),
        sounds("coda", "a") + note("E", 8) + sounds("tocoda", "b"),
        note("F", 8) + sounds("dalsegno", "s"),
        sounds("coda", "b") + note("G", 8),
    ]
    played = read_text(tmp_path, score_of(bars), repeats=True)
    assert played.notes["pitch"].tolist() == [60, 62, 60, 64, 65, 60, 62, 64, 67]


def test_a_doubled_part_and_microtones(tmp_path):
    for above, pitches in ("", [48, 60]), (" above='yes'", [60, 72]):
        double = f"<transpose><chromatic>0</chromatic><double{above}/></transpose>"
        score = read_text(tmp_path, score_of([attributes(0, inside=double) + note("C", 8)]))
        assert score.notes["pitch"].tolist() == pitches
    quarter = note("C", 8).replace("</step>", "</step><alter>0.5</alter>")
    assert read_text(tmp_path, score_of([quarter])).repairs == ["1 microtone rounded"]


def test_a_change_of_instrument_begins_another_track(tmp_path):
    head = "<midi-instrument id='{}'><midi-program>{}</midi-program></midi-instrument>".format
    heads = ["<part-name>Reeds</part-name>" + head("I1", 69) + head("I2", 1)]
    change = f"<sound>{head('I3', 74)}</sound>"
    bars = [
        attributes(0) + note("C", 4) + note("D", 4, "<instrument id='I2'/>"),
        change + note("E", 8, '<tie type="start"/>'),
        note("E", 4, '<tie type="stop"/>') + note("F", 4, "<instrument id='I1'/>"),
    ]
    tracks = read_text(tmp_path, score_of(bars, heads=heads)).tracks
    assert [(t.name, t.program) for t in tracks] == [("Reeds", n) for n in (68, 0, 73)]
    assert quarters(tracks[0]) == [(0, 2, 60), (10, 2, 65)]
    assert quarters(tracks[1]) == [(2, 2, 62)]
    assert quarters(tracks[2]) == [(4, 6, 64)]


def test_timewise_files_and_containers_that_are_no_xml(tmp_path):
    text = score_of([attributes(0) + note("C", 8), note("D", 8)])
    timewise = (
        "<score-timewise><part-list><score-part id='P0'><part-name>0</part-name></score-part></part-list>"
        f"<measure number='1'><part id='P0'>{attributes(0)}{note('C', 8)}</part></measure>"
        f"<measure number='2'><part id='P0'>{note('D', 8)}</part></measure></score-timewise>"
    )
    assert read_text(tmp_path, text) == read_text(tmp_path, timewise)
    name = "Rock'n'Roll & more.musicxml"
    for container in (f"<rootfile full-path='{name}'/>", f'<rootfile full-path="{name}"/>', ""):
        path = tmp_path / "song.mxl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("META-INF/container.xml", container)
            archive.writestr(name, text)
        assert read_score(path) == read_text(tmp_path, text)


@pytest.mark.parametrize(
    ("music", "reason"),
    [
        (attributes(0, TIME.replace(">4</beat-type", ">0</beat-type")), "a beat of 1/0"),
        (attributes(0, TIME.replace(">4</beat-type", ">-4</beat-type")), "a beat of '-4'"),
        (attributes(0, divisions=0), "0 divisions"),
        (attributes(9), "a key of 9 signs"),
        (note("C", "9" * 30), "a duration"),
        (note("C", -4), "a duration"),
        ("<forward><duration>999999999</duration></forward>" + note("C", 4), "last time"),
        (note("C", 4, octave=99), "a pitch"),
        (note("H", 4), "a pitch"),
        ("<x>" * 5000 + "</x>" * 5000, "nested too deeply"),
    ],
)
def test_impossible_values_raise_one_line(tmp_path, music, reason):
    with pytest.raises(UserError, match=rf"^[^\n]*{reason}[^\n]*$"):
        read_text(tmp_path, score_of([music + note("C", 4)]))


def test_programs_outside_midi_are_left_out_and_endless_repeats_refused(tmp_path):
    head = "<midi-instrument><midi-program>{}</midi-program></midi-instrument>".format
    for number, program in ((41, 40), (0, 0), (-3, 0), (999, 0)):
        score = read_text(tmp_path, score_of([note("C", 4)], heads=[head(number)]))
        assert score.tracks[0].program == program
    repeat = "<barline><repeat direction='backward' times='99'/></barline>"
    text = score_of([note("C", 4) + repeat] * 300)
    with pytest.raises(UserError, match="more than 20,000 bars"):
        read_text(tmp_path, text, repeats=True)
    assert len(read_text(tmp_path, text).notes) == 300


def test_many_notes_are_read_in_time(tmp_path):
    chord = note("C", 4).replace("<note>", "<note><chord/>")
    score = read_text(tmp_path, score_of([note("C", 4) + chord * 9_999]))
    assert score.num_notes == 10_000
    keys = "".join(attributes(n % 7) + note("C", 1) for n in range(3_000))
    assert len(read_text(tmp_path, score_of([keys])).key_signatures) == 3_000


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_an_archive_that_lies_about_sizes_is_not_inflated(tmp_path, method):
    """Its directory says 100 bytes, and it inflates to 64 MB."""
    path = tmp_path / "bomb.mxl"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("a.xml", bytes(2**26))
    data, size = path.read_bytes(), struct.pack("<I", 2**26)
    path.write_bytes(data.replace(size, struct.pack("<I", 100)))
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match="no score that can be read"):
            read_score(path)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_tuplets_with_rounded_durations_do_not_move_the_bars_behind_them(tmp_path):
    thirteen = note("C", 148) * 13  # 1924 of 1920 divisions
    seven = note("C", 274) * 7  # 1918
    begin = attributes(0, divisions=480)
    score = read_text(tmp_path, score_of([begin + thirteen, seven, note("D", 1920)]))
    assert [each.tick for each in score.time_signatures] == [0]
    assert quarters(score.tracks[0])[-1] == (8, 4, 62)
    short = read_text(
        tmp_path, score_of([begin + note("C", 1920), note("D", 1905), note("E", 1920)])
    )
    assert quarters(short.tracks[0])[-1] == (4 + 1905 / 480, 4, 64)  # as printed
