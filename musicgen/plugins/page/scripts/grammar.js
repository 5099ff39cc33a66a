// What the grammars of all tokenizers share, as in musicgen/tokenization/grammar.py, for one sequence,
// and the constraints of its requests: musicgen/generation/constraints.py.

const NO_LIMIT = 2 ** 60; // a musical time that no piece reaches

/** Return whether a token is in a family: [its first id, the id after its last]. */
const within = (token, [first, stop]) => token >= first && token < stop;

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
   * @param until the conditioning token that comes after what the model writes here
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

  /** Return logits with the probability of some tokens that may not come given to others. */
  redirected(logits) {
    return logits;
  }

  counts(token) {
    return token !== this.pad;
  }

  advance(token) {
    if (this.counts(token)) this.index++;
    if (token === this.eos) this.finished = true;
    this.move(token);
    this.last = token;
  }

  // Constraints, which a subclass has where its tokens can fulfil them.

  /** After a prompt without chords, or without some of the parts, allow none. */
  afterPrompt() {}

  /** Let the chords be those of a progression: [grid step, index] of each. */
  followProgression() {}

  planEnds() {}

  fixTempo() {}

  fixTimeSignature() {}

  forbidParallels() {}

  /** Write only the target parts, to parts that are kept. */
  keepParts() {}
}
