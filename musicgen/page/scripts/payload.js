// A score of the worker as the data that the roll and the player of the report read.

const DEFAULT_BPM = 120; // of a MIDI file without a tempo
const CHORD_SUFFIXES = { M: "", M7: "maj7", m: "m", m7: "m7", 7: "7", sus2: "sus2", sus4: "sus4", o: "dim", o7: "dim7", "/o7": "m7♭5", "+": "aug" };

const differences = (values) => values.map((value, i) => value - (values[i - 1] ?? 0));

function payloadOf(score, marks = []) {
  const { ticksPerBeat, end, promptEnd } = score;
  const signatures = [...score.signatures];
  if (!signatures.length || signatures[0][0] > 0) signatures.unshift([0, 4, 4]);
  const bars = [];
  signatures.forEach(([tick, top, bottom], i) => {
    const bar = (4 * ticksPerBeat * top) / bottom;
    const stop = signatures[i + 1]?.[0] ?? end;
    for (let start = tick; start < stop; start += bar) bars.push(start);
  });
  return {
    ticksPerBeat,
    end: Math.max(end, 1),
    promptEnd: promptEnd < end ? promptEnd : 0,
    tempo: tempoMap(score),
    meters: signatures.map(([tick, top, bottom]) => [tick, (4 * ticksPerBeat) / bottom, `${top}/${bottom}`]),
    bars: differences(bars.length ? bars : [0]),
    markers: score.markers.map(([tick, text]) => [tick, chordLabel(text)]),
    marks,
    tracks: score.tracks.map(({ voice, notes, kept }) => {
      const sorted = notes.toSorted((a, b) => a[0] - b[0]);
      const column = (i) => sorted.map((note) => note[i]);
      const own = column(0).map((onset) => Number(kept && onset < promptEnd)); // of the melody that others were written to
      return { voice, kept: own, onset: differences(column(0)), duration: column(1), pitch: column(2), velocity: column(3) };
    }),
  };
}

/** Return segments of constant tempo from tick 0 on: [first tick, its time in s, s per tick]. */
function tempoMap({ tempos, ticksPerBeat }) {
  const changes = [...tempos];
  if (!changes.length || changes[0][0] > 0) changes.unshift([0, DEFAULT_BPM]);
  let [tick, second, rate] = [0, 0, 0];
  return changes.map(([next, bpm]) => {
    second += (next - tick) * rate;
    [tick, rate] = [next, 60 / (bpm * ticksPerBeat)];
    return [tick, second, rate];
  });
}

/** Format a chord marker for display; keep other text. */
function chordLabel(text) {
  const [root, quality] = text.split("_");
  if (root === "N" && quality === "N") return "N.C.";
  return quality in CHORD_SUFFIXES ? root + CHORD_SUFFIXES[quality] : text;
}
