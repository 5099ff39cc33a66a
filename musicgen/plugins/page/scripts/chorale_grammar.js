// The grammar of Chorale for one sequence, in the plain order or after `Lead_*`, as
// musicgen/tokenization/chorale_grammar.py has it for a batch.

class ChoraleGrammar extends Grammar {
  constructor(tokenizer) {
    super(tokenizer);
    this.limit = tokenizer.max_frames;
    this.header = this.pad;
    this.sounding = false; // whether a leading voice sounds in their last or current frame
    this.end = NO_LIMIT; // the frame in which a leading voice is empty for the first time
    this.mayBeParallel = true;
    // The pitches of the last tokens, counted from the lowest; silence where there is none.
    const { numVoices, silence } = CONSTANTS;
    this.recent = Array(numVoices * (tokenizer.lead + 2)).fill(silence);
  }

  /** The frame up to which all voices are written. */
  get complete() {
    return Math.max(0, placeOf(this.index + 1)[0] - this.tokenizer.lead);
  }

  /** Return whether a token counts in the index, on which its voice depends. */
  counts(token) {
    return super.counts(token) && !within(token, this.tokenizer.families.Key);
  }

  /** @param forbids whether no two voices may move in parallel fifths or octaves */
  forbidParallels(forbids) {
    this.mayBeParallel = !forbids;
  }

  copy() {
    return Object.assign(Object.create(ChoraleGrammar.prototype), this);
  }

  fill(mask) {
    const { families, bos } = this.tokenizer;
    const set = ([first, stop], value) => mask.fill(value ? 1 : 0, first, stop);
    if (this.index < 0) return [families.BOS, families.Lead].forEach((ids) => set(ids, true));
    if (this.tokenizer.hasModes && this.last === this.header) return set(families.Key, true);
    const [frame, voice] = placeOf(this.index);
    const { leading, delay } = this.tokenizer.order(this.header);
    const leads = leading[voice];
    const [isFirst, isLast] = [
      voice === leading.indexOf(true),
      voice === leading.lastIndexOf(true),
    ];
    const isOver = frame >= this.end + delay;
    const mustWait = leads ? frame >= this.end : frame < delay;
    const sings = !isOver && !mustWait && (!leads || frame < this.limit);
    // The last frame that fits must have a note, or else the piece could not end there.
    const isLastChance = leads && frame === this.limit - 1 && isLast;
    set(families.Pitch, sings && !(leads && delay));
    set(families.Ahead, sings && leads && delay);
    if (!this.mayBeParallel) {
      for (const [first, stop] of [families.Pitch, families.Ahead]) {
        for (let token = first; token < stop; token++) {
          if (mask[token] && this.isParallel(token - first, voice)) mask[token] = 0;
        }
      }
    }
    set(families.Silence, sings && (!isLastChance || this.sounding));
    set(families.EOS, voice === 0 && (this.header === bos ? frame === 0 || this.sounding : isOver));
    const mayStop = leads && isFirst && delay && this.sounding && frame > 0;
    set(families.Empty, !isOver && (mustWait || mayStop));
  }

  /** Return whether a pitch would make parallel fifths or octaves, as NoParallels in Python. */
  isParallel(pitch, voice) {
    const { numVoices, perfectIntervals } = CONSTANTS;
    const { leading, delay } = this.tokenizer.order(this.header);
    const behind = leading.map((leads) => (leads ? 0 : delay));
    const previous = this.recent.at(-numVoices); // pitch of this voice
    return behind.some((frames, other) => {
      const distance = numVoices * (behind[voice] - frames) + voice - other; // in tokens
      if (distance <= 0) return false; // a voice that is still to come
      const [before, now] = [this.recent.at(-distance - numVoices), this.recent.at(-distance)];
      return perfectIntervals.includes(parallelInterval([previous, before], [pitch, now]));
    });
  }

  keepTimeTokens(mask, until) {
    const { Silence, Key } = this.tokenizer.families;
    if (placeOf(this.index)[0] >= until) return;
    mask.forEach((_, token) => {
      if (!within(token, Silence) && !within(token, Key)) mask[token] = 0;
    });
  }

  move(token) {
    const { families } = this.tokenizer;
    if (within(token, families.BOS) || within(token, families.Lead)) this.header = token;
    const [frame, voice] = placeOf(this.index - 1);
    const { leading } = this.tokenizer.order(this.header);
    const family = [families.Pitch, families.Ahead].find((ids) => within(token, ids));
    this.recent = [...this.recent.slice(1), family ? token - family[0] : CONSTANTS.silence];
    if (this.index > 0 && leading[voice]) {
      this.sounding = family !== undefined || (this.sounding && voice !== leading.indexOf(true));
      if (within(token, families.Empty)) this.end = Math.min(this.end, frame);
    }
    this.time = this.tokenizer.timeOf(this.header, this.index, token === this.eos);
  }
}

/**
 * Return the interval in which two voices move in parallel, in semitones without octaves, or silence;
 * as parallel_intervals in musicgen/metrics/part_writing.py.
 *
 * @param before the pitches of both voices before, or silence
 * @param after their pitches now
 */
function parallelInterval(before, after) {
  const { silence } = CONSTANTS;
  const moves = before.every((pitch, i) => pitch !== after[i]);
  if (!moves || [...before, ...after].includes(silence)) return silence;
  const interval = Math.abs(before[0] - before[1]) % 12;
  return Math.abs(after[0] - after[1]) % 12 === interval ? interval : silence;
}
