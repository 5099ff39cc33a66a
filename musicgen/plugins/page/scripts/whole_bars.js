// Scores in whole bars of the tokens, as in_whole_bars in musicgen/tokenization/whole_bars.py.

/**
 * Return a score with `chords` whose time signatures begin at bar lines of the tokens.
 *
 * @param barSteps returns the grid steps in a bar of tokens in a time signature
 */
function inWholeBars(score, stepsPerBeat, barSteps) {
  const { ticksPerBeat } = score;
  const lastAtTicks = new Map(signaturesFromStart(score).map(([tick, ...metre]) => [tick, metre]));
  const signatures = [...lastAtTicks];
  const isKnown = (metre) => barSteps(metre) * ticksPerBeat === barTicks(score, metre) * stepsPerBeat;
  const [[, first], [second, following] = [Infinity, [1, 1]]] = signatures;
  const isWhole = isKnown(first) && second % barTicks(score, first) === 0;
  if (second < barTicks(score, following) && !isWhole) signatures[0][1] = following; // an upbeat
  const [points, atLines] = [[], []]; // [old tick, new tick]; new time signatures
  let [step, begin] = [0, 0];
  signatures.forEach(([tick, metre], i) => {
    atLines.push([begin, ...metre]);
    if (i === signatures.length - 1) return points.push([tick, begin]);
    const [bar, ticks] = [barSteps(metre), signatures[i + 1][0] - tick];
    const length = (ticks * stepsPerBeat) / ticksPerBeat;
    const numBars = Math.ceil((length - 0.5) / bar);
    step += numBars * bar;
    const end = Math.round((step * ticksPerBeat) / stepsPerBeat);
    const isFilled = numBars * bar - length > 0.5; // with silence, which comes first at the beginning
    const comesFirst = isFilled && i === 0 && (numBars === 1 || !isKnown(metre));
    const start = comesFirst ? end - ticks : begin;
    points.push([tick, start], [tick + ticks - 1, Math.min(start + ticks - 1, end)]);
    begin = end;
  });
  if (points.every(([old, moved]) => old === moved)) return score;
  return { ...retimed(score, points), signatures: atLines };
}

/** Return a score with its events at new ticks: between two points the time passes evenly. */
function retimed(score, points) {
  const move = (tick) => {
    const i = points.findLastIndex(([old]) => old <= tick);
    const [old, moved] = points[i];
    const [nextOld, nextMoved] = points[i + 1] ?? [old + 1, moved + 1];
    return Math.round(moved + ((tick - old) * (nextMoved - moved)) / (nextOld - old));
  };
  const movedNote = ([onset, duration, ...rest]) => {
    const start = move(onset);
    return [start, Math.max(1, move(onset + duration - 1) + 1 - start), ...rest];
  };
  const moved = (events) => events.map(([tick, ...rest]) => [tick && move(tick), ...rest]);
  return {
    ...score,
    tracks: score.tracks.map((track) => ({ ...track, notes: track.notes.map(movedNote) })),
    tempos: moved(score.tempos),
    keys: moved(score.keys),
    markers: moved(score.markers),
    chords: moved(score.chords),
  };
}
