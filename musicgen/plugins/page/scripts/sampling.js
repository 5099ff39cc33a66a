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
 * Draw a token, as musicgen/generation/logits_processors.py does.
 *
 * @param allowed a byte for each token, not 0 for those that may come
 * @param params temperature, top_k, top_p, variation, min_p, typical_p
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
    throw new UserError(
      "the model's output is not finite: its training diverged. Take an earlier checkpoint",
    );
  }
  const { temperature, top_k, top_p, variation, min_p, typical_p } = params;
  if (temperature === 0) return best;
  const isVaried = variation != null;
  if (!isVaried && top_k && top_k < tokens.length) {
    const kth = tokens.map((token) => logits[token]).sort((x, y) => y - x)[top_k - 1];
    tokens = tokens.filter((token) => logits[token] >= kth);
  }
  // Of each token that remains, [token, probability].
  let probabilities = normalised(
    tokens.map((token) => [token, Math.exp((logits[token] - logits[best]) / temperature)]),
  );
  if (isVaried) probabilities = keepOfOthers(probabilities, best, params);
  else if (top_p < 1) probabilities = keepFirst(probabilities, ([, p], [, q]) => q - p, top_p);
  if (!isVaried && min_p > 0) {
    const smallest = min_p * Math.max(...probabilities.map(([, p]) => p));
    probabilities = normalised(probabilities.filter(([, p]) => p >= smallest));
  }
  if (typical_p < 1) probabilities = keepTypical(probabilities, typical_p);
  let rest = uniform * total(probabilities);
  for (const [token, p] of probabilities) {
    rest -= p;
    if (rest < 0) return token;
  }
  return probabilities.findLast(([, p]) => p > 0)[0];
}

const total = (probabilities) => probabilities.reduce((sum, [, p]) => sum + p, 0);

function normalised(probabilities) {
  const sum = total(probabilities);
  return probabilities.map(([token, p]) => [token, p / sum]);
}

/** Keep the first tokens in an order that together reach a probability; the one that crosses stays. */
function keepFirst(probabilities, order, share) {
  let sum = 0;
  const sorted = probabilities.toSorted(order);
  const last = sorted.findIndex(([, p]) => (sum += p) >= share);
  const first = new Set(sorted.slice(0, last < 0 ? sorted.length : last + 1));
  return normalised(probabilities.filter((each) => first.has(each)));
}

/** Keep the most probable token, and of the others the first that reach a share; see `top_p_of_others`. */
function keepOfOthers(probabilities, best, { top_k, top_p, variation, min_p }) {
  const others = probabilities.filter(([token]) => token !== best);
  const sum = variation * total(others);
  if (sum === 0) return [[best, 1]];
  const descending = ([, p], [, q]) => q - p;
  const smallest = min_p * probabilities.find(([token]) => token === best)[1];
  const nucleus = keepFirst(normalised(others), descending, top_p).toSorted(descending);
  const first = new Set(nucleus.slice(0, top_k ? top_k - 1 : Infinity).map(([token]) => token));
  const kept = normalised(others.filter(([token, p]) => first.has(token) && p >= smallest));
  if (!kept.length) return [[best, 1]];
  return probabilities
    .map(([token]) => [token, token === best ? 1 - sum : 0])
    .map(([token, p]) => [token, p + sum * (kept.find(([other]) => other === token)?.[1] ?? 0)]);
}

/** Keep the tokens whose surprise is nearest to the entropy (Meister et al. 2023). */
function keepTypical(probabilities, share) {
  const surprise = (p) => (p > 0 ? -Math.log(p) : Infinity);
  const entropy = probabilities.reduce((sum, [, p]) => sum + (p > 0 ? p * surprise(p) : 0), 0);
  const distance = (p) => Math.abs(surprise(p) - entropy);
  return keepFirst(probabilities, ([, p], [, q]) => distance(p) - distance(q), share);
}
