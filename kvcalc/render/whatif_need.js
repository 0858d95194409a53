"use strict";
// Bytes as the command line prints them, and the need of a workload. Whole numbers are BigInt: totals pass 2^53.

const kvcalcUnits = (() => {
  const names = ["B", "KiB", "MiB", "GiB", "TiB"];
  const scale = (power) => 1024n ** BigInt(power);
  const thousands = (count) => String(count).replace(/\B(?=(\d{3})+$)/g, ",");

  // The largest unit that keeps the count at 1 or more; below 10 KiB bytes read better.
  const unitOf = (bytes) => [4, 3, 2].find((power) => bytes >= scale(power)) ?? (bytes >= 10n * scale(1) ? 1 : 0);

  function memory(bytes, power = unitOf(bytes)) {
    if (power === 0) return `${thousands(bytes)} B`;
    const digits = power > 1 ? 2 : 1;
    const shift = 10n ** BigInt(digits);
    const rounded = (bytes * shift * 2n + scale(power)) / (2n * scale(power));
    if (rounded === 1024n * shift && power < 4) return memory(bytes, power + 1);
    return `${thousands(rounded / shift)}.${String(rounded % shift).padStart(digits, "0")} ${names[power]}`;
  }

  return { memory, thousands };
})();

// What `kvcalc.sizing.need` computes, from the rows and terms of `kvcalc.sizing.panel_data`.
const kvcalcNeed = (() => {
  const least = (one, other) => (one < other ? one : other);
  const most = (counts) => counts.reduce((one, other) => (one > other ? one : other), 0n);
  const sum = (counts) => counts.reduce((one, other) => one + other, 0n);
  const roundedUp = (count, parts) => (count + parts - 1n) / parts;

  function entries(span, tokens) {
    if (span.starts_full) return BigInt(span.cap ?? 0);
    const left = tokens / BigInt(span.ratio);
    return span.cap === null ? left : least(left, BigInt(span.cap));
  }

  function stored(row, tokens) {
    const each = entries(row.span, tokens) * BigInt(row.entry_bytes) + BigInt(row.fixed_bytes);
    return BigInt(row.layers) * each;
  }

  function read(row, tokens) {
    const kept = entries(row.span, tokens);
    const taken = row.reads.map(([limit, count]) => BigInt(count) * (limit === null ? kept : least(kept, BigInt(limit))));
    return sum(taken) * BigInt(row.entry_bytes) + BigInt(row.layers) * BigInt(row.fixed_bytes);
  }

  function held(terms, tokens) {
    return sum(terms.map((term) => {
      const kept = roundedUp(entries(term.span, tokens), BigInt(term.split));
      return BigInt(term.count) * (kept * BigInt(term.entry_bytes) + BigInt(term.fixed_bytes));
    }));
  }

  function need({ form, ranks, stages, ctx, batch }, mostBytes) {
    const sequence = sum(form.rows.map((row) => stored(row, ctx)));
    const found = {
      sequence,
      total: sequence * batch,
      read: sum(form.rows.map((row) => read(row, ctx))) * batch,
      parts: form.rows.map((row) => [row, stored(row, ctx) * batch]),
    };
    if (found.total * BigInt(ranks.stage_ranks) > BigInt(mostBytes)) {
      return { refused: "the cache would pass 8 EiB: lower the context or the batch" };
    }
    if (typeof stages === "string") return { ...found, refusedRanks: stages };
    const bytes = stages.map((terms) => held(terms, ctx));
    return {
      ...found,
      rank: most(bytes) * roundedUp(batch, BigInt(ranks.dp)),
      all: sum(bytes) * BigInt(ranks.stage_ranks) * batch,
    };
  }

  return need;
})();
