// Scores: what readMidi returns and what tokenizers decode; their fields are listed in midi_reader.js.

const allNotes = (score) => score.tracks.flatMap((track) => track.notes);

/** Return the least of some numbers; Infinity without any. */
const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);

/** Return the greatest of some numbers; 0 without any above it. */
const greatest = (values) => values.reduce((a, b) => Math.max(a, b), 0);

/** Return the last event, an array that begins with its time, of those until `time`. */
const latestAt = (events, time) => events.findLast(([at]) => at <= time);

/** Return the time signature in force at a tick: [numerator, denominator]. */
function timeSignatureAt(score, tick) {
  const [, ...signature] = latestAt(score.signatures, tick) ?? [0, ...CONSTANTS.timeSignature];
  return signature;
}

/** Return tempi that begin with `bpm`; later ones are as much faster or slower than before. */
function temposFrom(tempos, bpm) {
  const [, first] = latestAt(tempos, 0) ?? [0, CONSTANTS.tempo];
  const later = tempos.filter(([tick]) => tick > 0);
  return [[0, bpm], ...later.map(([tick, each]) => [tick, (each * bpm) / first])];
}

/** Return the tick of the first note; 0 without notes. */
function firstOnset(score) {
  const first = least(allNotes(score).map(([onset]) => onset));
  return Number.isFinite(first) ? first : 0;
}

/** Return the tick of the last event of a score. */
function lastTick(score) {
  const events = [...allNotes(score), ...score.tempos, ...score.markers];
  return greatest(events.map(([tick]) => tick));
}

/** Return [first tick, numerator, denominator] of each bar until the last note ends. */
function barsOf(score, maxBars) {
  const later = score.signatures.filter(([tick]) => tick > 0);
  const signatures = [[0, ...timeSignatureAt(score, 0)], ...later];
  const end = Math.max(1, greatest(allNotes(score).map(([onset, duration]) => onset + duration)));
  const bars = [];
  signatures.forEach(([tick, numerator, denominator], i) => {
    const length = Math.max(1, Math.floor((4 * score.ticksPerBeat * numerator) / denominator));
    const stop = Math.min(signatures[i + 1]?.[0] ?? end, end, tick + length * maxBars);
    for (let start = tick; start < stop && bars.length < maxBars; start += length) {
      bars.push([start, numerator, denominator]);
    }
  });
  return bars;
}
