// Where each token is, in the coordinates that the model reads, as in musicgen/tokenization.

class Coordinates {
  /**
   * @param names such as index, time, bar, beat, pitch
   * @param barLength grid steps in a bar, for tokens without bars
   * @param gapEnd grid step at which the future of a gap begins
   */
  constructor(tokenizer, names, barLength, gapEnd = 0) {
    Object.assign(this, { tokenizer, names, barLength, gapEnd });
    this.numBars = 0;
    this.barStart = 0;
    this.latest = Object.fromEntries(Object.keys(tokenizer.changes).map((name) => [name, 0]));
  }

  copy() {
    const copy = Object.create(Coordinates.prototype);
    return Object.assign(copy, this, { latest: { ...this.latest } });
  }

  /** Return the coordinates of a token that a grammar has just accepted. */
  next(token, { index, time: ofGrammar, isFuture }) {
    const { barTokens, changes, families } = this.tokenizer;
    const time = isFuture ? this.gapEnd + ofGrammar : ofGrammar;
    if (barTokens && within(token, barTokens)) {
      this.numBars++;
      this.barStart = time;
    } else if (families.Gap && within(token, families.Gap)) {
      this.barStart = time;
    }
    for (const name of Object.keys(this.latest)) {
      const value = changes[name][token];
      if (value >= 0) this.latest[name] = value;
    }
    const found = { index, time, ...this.barAndBeat(time), ...this.latest };
    return this.names.map((name) => found[name]);
  }

  barAndBeat(time) {
    if (this.tokenizer.barTokens) {
      return { bar: Math.max(0, this.numBars - 1), beat: time - this.barStart };
    }
    return { bar: Math.floor(time / this.barLength), beat: time % this.barLength };
  }
}
