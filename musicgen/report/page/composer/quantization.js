// Times and values on a tokenizer's grid, as in musicgen/tokenization/quantization.py.

/** Return the nearest grid step of a tick; halves round up. */
function toGrid(tick, stepsPerBeat, ticksPerBeat) {
  return Math.floor((2 * stepsPerBeat * tick + ticksPerBeat) / (2 * ticksPerBeat));
}

/** Return a score that was played with its onsets and ends at sixteenths, or at thirds of a beat. */
function inTime(score) {
  const [notes, beat] = [allNotes(score), score.ticksPerBeat];
  const nearest = (tick, perBeat) => Math.floor((toGrid(tick, perBeat, beat) * beat) / perBeat);
  const between = notes.filter(([onset, duration]) => nearest(onset + duration, 12) !== onset + duration);
  if (2 * between.length <= notes.length) return score;
  const far = { 3: {}, 4: {} };
  for (const [onset] of notes) {
    const at = Math.floor(onset / beat);
    for (const each of [3, 4]) far[each][at] = (far[each][at] ?? 0) + Math.abs(nearest(onset, each) - onset);
  }
  const move = (tick) => nearest(tick, 2 * far[3][Math.floor(tick / beat)] < far[4][Math.floor(tick / beat)] ? 3 : 4);
  const moved = ([onset, duration, ...rest]) => {
    return [move(onset), Math.max(move(onset + duration) - move(onset), Math.floor(beat / 4)), ...rest];
  };
  return { ...score, tracks: score.tracks.map((track) => ({ ...track, notes: track.notes.map(moved) })) };
}

/** Return the index of the nearest value of bins, which have edges between them. */
const binOf = (value, { edges }) => edges.findLastIndex((edge) => edge <= value) + 1;

/**
 * Make each voice play one note at a time; return the notes by voice, then onset.
 *
 * Notes { voice, onset, duration, velocity } of a voice that begin together are merged into one with
 * the longest duration and the highest velocity. A note ends where the next of its voice begins.
 */
function removeOverlaps(notes) {
  const sorted = notes.toSorted((a, b) => a.voice - b.voice || a.onset - b.onset);
  const kept = [];
  for (const note of sorted) {
    const last = kept.at(-1);
    if (last && last.voice === note.voice && last.onset === note.onset) {
      last.duration = Math.max(last.duration, note.duration);
      last.velocity = Math.max(last.velocity, note.velocity);
    } else {
      kept.push({ ...note });
    }
  }
  for (let i = 1; i < kept.length; i++) {
    const [note, next] = [kept[i - 1], kept[i]];
    if (note.voice === next.voice) note.duration = Math.min(note.duration, next.onset - note.onset);
  }
  return kept;
}

/** Return the last value of each step where it changes; [step, value] are sorted by step. */
function findChanges(events) {
  const last = events.filter(([step], i) => step !== events[i + 1]?.[0]);
  return last.filter(([, value], i) => i === 0 || value !== last[i - 1][1]);
}

/** Return the last element whose first entry is at most `value`. */
function latestAt(events, value) {
  return events.findLast(([at]) => at <= value);
}

const within = (token, [first, stop]) => token >= first && token < stop;
