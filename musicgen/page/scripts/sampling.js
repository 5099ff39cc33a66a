// Random numbers that a seed decides, and the tokens drawn with them.

/** Return a generator of numbers in [0, 1): sfc32 of PractRand, seeded with integers. */
function randomNumbers(...words) {
  let [a, b, c, d] = [0x9e3779b9, 0x243f6a88, 0xb7e15162, 1];
  const next = () => {
    const sum = (((a + b) | 0) + d) | 0;
    d = (d + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = ((c << 21) | (c >>> 11)) + sum;
    return sum >>> 0;
  };
  for (const word of words) {
    a ^= word;
    for (let i = 0; i < 12; i++) next();
  }
  return () => (next() + (next() >>> 11) * 2 ** 32) / 2 ** 53;
}

/**
 * Draw a token, as musicgen/generation/sampling.py does.
 *
 * @param allowed a byte for each token, not 0 for those that may come
 * @param params temperature, top_k, top_p, min_p, typical_p
 * @param uniform a number in [0, 1)
 */
function sampleToken(logits, allowed, params, uniform) {
  let best = -1;
  let tokens = [];
  for (let i = 0; i < logits.length; i++) {
    if (!allowed[i]) continue;
    tokens.push(i);
    if (best < 0 || logits[i] > logits[best]) best = i;
  }
  if (!Number.isFinite(logits[best])) {
    throw new UserError("the model's output is not finite: its training diverged. Take an earlier checkpoint");
  }
  const { temperature, top_k, top_p, min_p, typical_p } = params;
  if (temperature === 0) return best;
  if (top_k && top_k < tokens.length) {
    const kth = tokens.map((token) => logits[token]).sort((x, y) => y - x)[top_k - 1];
    tokens = tokens.filter((token) => logits[token] >= kth);
  }
  let p = normalised(tokens.map((token) => [token, Math.exp((logits[token] - logits[best]) / temperature)]));
  if (top_p < 1) p = keepFirst(p, ([, x], [, y]) => y - x, top_p);
  if (min_p > 0) {
    const least = min_p * Math.max(...p.map(([, x]) => x));
    p = normalised(p.filter(([, x]) => x >= least));
  }
  if (typical_p < 1) {
    const surprise = (x) => (x > 0 ? -Math.log(x) : Infinity);
    const entropy = p.reduce((sum, [, x]) => sum + (x > 0 ? x * surprise(x) : 0), 0);
    const distance = (x) => Math.abs(surprise(x) - entropy);
    p = keepFirst(p, ([, x], [, y]) => distance(x) - distance(y), typical_p);
  }
  let threshold = uniform * p.reduce((sum, [, x]) => sum + x, 0);
  return (p.find(([, x]) => (threshold -= x) < 0) ?? p.findLast(([, x]) => x > 0))[0];
}

function normalised(p) {
  const total = p.reduce((sum, [, x]) => sum + x, 0);
  return p.map(([token, x]) => [token, x / total]);
}

/** Keep the first tokens in an order that together reach a probability; the one that crosses stays. */
function keepFirst(p, order, share) {
  let sum = 0;
  const sorted = p.toSorted(order);
  const last = sorted.findIndex(([, x]) => (sum += x) >= share);
  const kept = new Set(sorted.slice(0, last < 0 ? p.length : last + 1));
  return normalised(p.filter((each) => kept.has(each)));
}
