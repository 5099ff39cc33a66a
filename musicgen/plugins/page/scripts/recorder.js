// What somebody plays: notes in seconds, and the tempo in which they stand.

const SLOWEST_TEMPO = 60; // quarters per minute
const FASTEST_TEMPO = 180;
const USUAL_TEMPO = 105;

class Recorder {
  constructor() {
    this.notes = []; // { pitch, velocity, start, stop } in seconds; stop is null while a key is down
  }

  press(pitch, velocity, time) {
    this.release(pitch, time);
    this.notes.push({ pitch, velocity, start: time, stop: null });
  }

  release(pitch, time) {
    for (const note of this.notes) if (note.pitch === pitch && note.stop === null) note.stop = time;
  }

  get anyDown() {
    return this.notes.some((note) => note.stop === null);
  }

  /** Return the notes in ticks; keys that are down end now. */
  inTicks(origin, bpm, now) {
    const tick = (time) => Math.round(((time - origin) / 60) * bpm * CONSTANTS.ticksPerBeat);
    return this.notes.map(({ pitch, velocity, start, stop }) => {
      const onset = Math.max(0, tick(start));
      return [onset, Math.max(1, tick(stop ?? now) - onset), pitch, velocity];
    });
  }
}

/**
 * Return the tempo whose beats, their halves and quarters the onsets are nearest to, in quarters per
 * minute. The first onset is a beat.
 */
function estimateTempo(onsets) {
  const times = onsets.map((onset) => onset - onsets[0]).filter((time) => time > 0.04);
  if (times.length < 3) return null;
  let best = { bpm: USUAL_TEMPO, fit: -Infinity };
  for (let bpm = SLOWEST_TEMPO; bpm <= FASTEST_TEMPO; bpm++) {
    const near = (parts) =>
      times.reduce((sum, time) => sum + Math.cos(2 * Math.PI * parts * time * (bpm / 60)), 0);
    // Most notes are on beats or their halves; of tempi that fit equally well, the usual one is taken.
    const fit =
      (0.5 * near(1) + near(2) + 0.5 * near(4)) / times.length -
      0.5 * Math.log2(bpm / USUAL_TEMPO) ** 2;
    if (fit > best.fit) best = { bpm, fit };
  }
  return best.bpm;
}
