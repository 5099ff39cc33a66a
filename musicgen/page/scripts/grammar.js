// What grammars of all tokenizers share, as in musicgen/tokenization/grammar.py, for one sequence.

const TICKS_PER_BEAT = 480; // of decoded scores
const COMMON_TIME = [4, 4]; // of a MIDI file before its first time signature

/** A grammar with the state of a sequence. Subclasses have fill, keepTimeTokens, move and copy. */
class Grammar {
  constructor(tokenizer) {
    this.tokenizer = tokenizer;
    this.pad = tokenizer.pad;
    this.eos = tokenizer.eos;
    this.index = -1; // of the token just accepted
    this.time = 0; // its musical time, in grid steps
    this.last = this.pad;
    this.finished = false;
    this.limit = NO_LIMIT; // musical time by which the piece ends
  }

  /**
   * Set a byte for each token that may come next; at least one is set.
   *
   * @param end whether to allow the end token
   * @param notBefore musical time until which only tokens that advance the time are allowed
   * @param until a token that ends what is written to given parts
   */
  allowed(mask, { end = true, notBefore = 0, until } = {}) {
    mask.fill(0);
    if (this.finished) {
      mask[this.pad] = 1;
      return mask;
    }
    this.fill(mask, until);
    if (this.time < notBefore) {
      this.keepTimeTokens(mask, notBefore);
      if (!mask.includes(1)) mask[this.eos] = 1;
    }
    if (!end && mask[this.eos]) {
      mask[this.eos] = 0;
      if (!mask.includes(1)) mask[this.eos] = 1;
    }
    return mask;
  }

  advance(token) {
    if (token !== this.pad) this.index++;
    if (token === this.eos) this.finished = true;
    this.move(token);
    this.last = token;
  }

  afterPrompt() {}

  hold() {}

  forbidParallels() {}

  give() {}
}

/** Where each token is, in the coordinates that the model reads; see musicgen/tokenization. */
class Coordinates {
  /**
   * @param names such as index, time, bar, beat, pitch
   * @param barLength grid steps in a bar, for tokens without bars
   */
  constructor(tokenizer, names, barLength) {
    Object.assign(this, { tokenizer, names, barLength });
    this.numBars = 0;
    this.barStart = 0;
    this.latest = Object.fromEntries(Object.keys(tokenizer.changes).map((name) => [name, 0]));
  }

  copy() {
    return Object.assign(Object.create(Coordinates.prototype), this, { latest: { ...this.latest } });
  }

  /** Return the coordinates of a token that a grammar has just accepted. */
  next(token, { index, time }) {
    const { barTokens, changes } = this.tokenizer;
    if (barTokens && within(token, barTokens)) {
      this.numBars++;
      this.barStart = time;
    }
    for (const name of Object.keys(this.latest)) {
      const value = changes[name][token];
      if (value >= 0) this.latest[name] = value;
    }
    const length = this.barLength;
    const place = barTokens
      ? { bar: Math.max(0, this.numBars - 1), beat: time - this.barStart }
      : { bar: Math.floor(time / length), beat: time % length };
    const found = { index, time, ...place, ...this.latest };
    return this.names.map((name) => found[name]);
  }
}

/** Return the metre in force at a tick. */
function metreAt(score, tick) {
  const [, ...metre] = latestAt(score.signatures, tick) ?? [0, ...COMMON_TIME];
  return metre;
}

const allNotes = (score) => score.tracks.flatMap((track) => track.notes);
const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const greatest = (values) => values.reduce((a, b) => Math.max(a, b), 0);

function firstOnset(score) {
  const first = least(allNotes(score).map(([onset]) => onset));
  return Number.isFinite(first) ? first : 0;
}

/** Return the tick of the last event of a score. */
function lastTick(score) {
  const events = [...allNotes(score), ...score.tempos, ...score.markers];
  return greatest(events.map(([tick]) => tick));
}
