"use strict";

// Votes between pairs of runs, and what they show.

const Z = 1.959964; // of a 95% interval

/** Return the Wilson interval of a proportion (Wilson 1927), at 95%; [0, 1] without any vote. */
function wilsonInterval(wins, count) {
  if (!count) return [0, 1];
  const share = wins / count;
  const scale = 1 + (Z * Z) / count;
  const centre = (share + (Z * Z) / (2 * count)) / scale;
  const half = (Z / scale) * Math.sqrt((share * (1 - share)) / count + (Z * Z) / (4 * count * count));
  return [Math.max(0, centre - half), Math.min(1, centre + half)];
}

/** Return every pair [first, second] of `count` runs, first < second. */
function pairsOf(count) {
  const numbers = Array.from({ length: count }, (_, i) => i);
  return numbers.flatMap((first) => numbers.slice(first + 1).map((second) => [first, second]));
}

/** Return a shuffled copy (Fisher and Yates). */
function shuffled(items, random = Math.random) {
  const copy = [...items];
  for (let i = copy.length - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1));
    [copy[i], copy[j]] = [copy[j], copy[i]];
  }
  return copy;
}

/** Return all comparisons of a listener, in random order: {trial, runs: [of A, of B]}. */
function drawComparisons(numTrials, numRuns, random = Math.random) {
  const trials = Array.from({ length: numTrials }, (_, trial) => trial);
  const all = trials.flatMap((trial) => pairsOf(numRuns).map((runs) => ({ trial, runs })));
  return shuffled(all, random).map(({ trial, runs }) => ({ trial, runs: shuffled(runs, random) }));
}

/**
 * Count votes {trial, runs, winner} by pair of runs.
 * A vote without preference has the winner null; it is counted, but not in the share.
 */
function countVotes(votes, numRuns) {
  return pairsOf(numRuns).map(([first, second]) => {
    const about = votes.filter(({ runs }) => runs.includes(first) && runs.includes(second));
    const wins = [first, second].map((run) => about.filter(({ winner }) => winner === run).length);
    const decided = wins[0] + wins[1];
    return {
      runs: [first, second],
      wins,
      undecided: about.length - decided,
      share: decided ? wins[0] / decided : null,
      interval: wilsonInterval(wins[0], decided),
    };
  });
}

/** Say in a sentence what the votes on a pair show. */
function describeResult({ runs, wins, undecided, share, interval }, names) {
  if (share === null) return `No preference in any of ${undecided} votes.`;
  const percent = (x) => `${Math.round(100 * x)}%`;
  const decided = wins[0] + wins[1];
  const figures =
    `${names[runs[0]]} was preferred in ${wins[0]} of ${decided} votes: ${percent(share)}, ` +
    `95% interval ${percent(interval[0])} to ${percent(interval[1])}` +
    (undecided ? `; ${undecided} without preference` : "");
  const [low, high] = interval;
  if (low <= 0.5 && high >= 0.5) return `${figures}. The votes do not show which is better.`;
  return `${figures}. Listeners prefer ${names[runs[low > 0.5 ? 0 : 1]]}.`;
}

/** Return the votes of a saved file; throw an Error with a line for the listener. */
function readVotes(text, page, numTrials, numRuns) {
  let saved;
  try {
    saved = JSON.parse(text);
  } catch {
    throw new Error("not a file of votes");
  }
  if (saved?.page !== page) throw new Error("votes on another page");
  const valid = (vote) =>
    Number.isInteger(vote?.trial) && vote.trial >= 0 && vote.trial < numTrials &&
    Array.isArray(vote.runs) && vote.runs.length === 2 && vote.runs[0] !== vote.runs[1] &&
    vote.runs.every((run) => Number.isInteger(run) && run >= 0 && run < numRuns) &&
    (vote.winner === null || vote.runs.includes(vote.winner));
  if (typeof saved.listener !== "string" || !Array.isArray(saved.votes) || !saved.votes.every(valid)) {
    throw new Error("a damaged file of votes");
  }
  return saved;
}
