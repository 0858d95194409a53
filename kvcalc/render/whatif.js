// The panel: its fields, the fragment that links to them, and what it shows.

for (const panel of document.querySelectorAll(".whatif")) {
  const { memory, thousands } = kvcalcUnits;
  const data = JSON.parse(panel.querySelector("script[type='application/json']").textContent);
  const field = (name) => panel.querySelector(`[data-field="${name}"]`);
  const output = (name) => panel.querySelector(`[data-out="${name}"]`);

  // ---- an engine's pool: known at the stops; between two of them only what both say ----

  function verdict(state) {
    const { chosen, formAt, rankAt, ctx, batch } = state;
    if (!chosen.engine) return null;
    const pools = chosen.engine.pools[formAt][rankAt];
    const stops = chosen.contexts.map(BigInt);
    const at = stops.indexOf(ctx);
    if (at >= 0) return atStop(pools[at], state);
    const after = stops.findIndex((stop) => stop > ctx);
    const [longer, shorter] = [pools[after], after < 0 ? pools.at(-1) : pools[after - 1]];
    if (carries(longer, batch) === true) return said("good", `Fits: so many run even at ${tokensOf(stops[after])}`, state, longer);
    if (carries(shorter, batch) === false) {
      const stop = after < 0 ? stops.at(-1) : stops[after - 1];
      return said("bad", `Does not fit: fewer run already at ${tokensOf(stop)}`, state, shorter);
    }
    return said("", "Not known between two stops of the slider: move to one, or ask kvcalc fit", state);
  }

  function carries(pool, batch) {
    return Array.isArray(pool) ? BigInt(pool[1]) >= batch : undefined;
  }

  function atStop(pool, state) {
    if (!Array.isArray(pool)) return said("bad", `Refused: ${pool}`, state);
    const [bytes, sequences] = pool.slice(0, 2).map(BigInt);
    const what = `${memory(bytes)} a rank, which carries ${counted(sequences, "sequence")} of ${tokensOf(state.ctx)}`;
    if (bytes === 0n) return said("bad", "Does not fit: nothing is left for a pool", state, pool);
    if (sequences >= state.batch) return said("good", `Fits the pool of ${what}`, state, pool);
    return said("bad", `Does not fit the pool of ${what}`, state, pool);
  }

  function said(mood, text, state, pool) {
    const basis = pool ? `, basis: ${pool[2]}` : "";
    return { mood, text: `${text} (${state.chosen.engine.name}${basis}).` };
  }

  const counted = (count, what) => `${thousands(count)} ${what}${count === 1n ? "" : "s"}`;
  const tokensOf = (count) => counted(count, "token");

  // ---- what is asked: the fields, and the fragment that links to them ----

  const cased = () => data.cases[field("model").selectedIndex];

  function asked() {
    const chosen = cased();
    const [formAt, rankAt] = [field("kv").selectedIndex, field("tp").selectedIndex];
    const form = chosen.formats[formAt];
    const [ctx, batch] = ["ctx", "batch"].map((name) => whole(field(name).value, limitOf(name)));
    return { chosen, formAt, rankAt, form, ranks: chosen.ranks[rankAt], stages: form.stages[rankAt], ctx, batch };
  }

  const limitOf = (name) => (name === "ctx" ? BigInt(data.most_tokens) : 10n ** 9n);

  function whole(text, limit) {
    if (!/^\d{1,15}$/.test(text.trim())) return null;
    const count = BigInt(text.trim());
    return count >= 1n && count <= limit ? count : null;
  }

  function fill(select, labels) {
    select.replaceChildren(...labels.map((label) => new Option(label)));
  }

  function choose(at) {
    field("model").selectedIndex = at;
    const chosen = data.cases[at];
    fill(field("kv"), chosen.formats.map((form) => form.label));
    fill(field("tp"), chosen.ranks.map((ranks) => (ranks.ranks === ranks.tp ? String(ranks.tp) : `${ranks.tp} (${thousands(ranks.ranks)} ranks)`)));
    for (const [name, stops] of [["ctx", chosen.contexts], ["batch", chosen.batches]]) field(`${name}-slider`).max = stops.length - 1;
    output("stack").textContent = chosen.stack;
    put("kv", chosen.asked.kv);
    put("tp", chosen.asked.tp);
  }

  // Puts a value that stands in a link or a case; false where this case does not offer it.
  function put(name, value) {
    if (name === "ctx" || name === "batch") {
      const count = whole(String(value), limitOf(name));
      if (count !== null) field(name).value = String(count);
      return count !== null;
    }
    const { formats, ranks } = cased();
    const at = name === "kv"
      ? formats.findIndex((form) => form.names.includes(String(value)))
      : ranks.findIndex((one) => String(one.tp) === String(value));
    if (at >= 0) field(name).selectedIndex = at;
    return at >= 0;
  }

  function restore() {
    const linked = new URLSearchParams(location.hash.slice(1));
    const known = ["model", "ctx", "batch", "kv", "tp"].filter((name) => linked.has(name));
    const at = data.cases.findIndex((one) => one.name === linked.get("model"));
    const wrong = linked.has("model") && at < 0 ? ["model"] : [];
    if (known.length) {
      choose(Math.max(0, at));
      put("ctx", cased().asked.ctx);
      put("batch", cased().asked.batch);
      wrong.push(...known.filter((name) => name !== "model" && !put(name, linked.get(name))));
    }
    output("note").textContent = wrong.map((name) => `The link asks for ${name}=${linked.get(name)}, which is not offered here.`).join(" ");
    follow();
    show();
  }

  function remember({ chosen, form, ranks, ctx, batch }) {
    const kv = form.names[0];
    const state = new URLSearchParams({ model: chosen.name, ctx, batch, kv, tp: ranks.tp });
    history.replaceState(null, "", `#${state}`);
  }

  // ---- what is shown ----

  function write(name, bytes, text) {
    const to = output(name);
    to.textContent = text ?? memory(bytes);
    to.value = String(bytes ?? "");
    to.title = bytes === null ? "" : `${thousands(bytes)} B`;
  }

  function show() {
    const state = asked();
    const wrong = ["ctx", "batch"].filter((name) => state[name] === null);
    for (const name of ["ctx", "batch"]) field(name).setAttribute("aria-invalid", String(wrong.includes(name)));
    const found = wrong.length ? { refused: complaint(wrong[0]) } : kvcalcNeed(state, data.most_bytes);
    panel.classList.toggle("stale", Boolean(found.refused));
    if (found.refused) {
      tell("bad", found.refused);
      return;
    }
    showFigures(state, found);
    showParts(found);
    output("command").textContent = command(state);
    const past = state.chosen.most_context !== null && state.ctx > BigInt(state.chosen.most_context);
    output("limit").textContent = past ? `The model's own limit is ${tokensOf(BigInt(state.chosen.most_context))}.` : "";
    const fit = verdict(state);
    const rank = state.ranks.ranks === 1 || found.rank === undefined ? "" : `, ${memory(found.rank)} on the fullest rank`;
    tell(fit?.mood ?? "", `${fit?.text ?? ""} ${memory(found.total)} in all${rank}.`.trim());
  }

  function complaint(name) {
    const [what, limit] = [name === "ctx" ? "context" : "batch", thousands(limitOf(name))];
    return `The ${what} is a whole number from 1 to ${limit}.`;
  }

  function showFigures({ form, ranks, chosen }, found) {
    const [bytes, of] = form.token_bytes;
    const token = output("token");
    token.textContent = form.token_text;
    token.value = String(of) === "1" ? String(bytes) : `${bytes}/${of}`;
    output("fixed").textContent = form.fixed_text;
    write("sequence", found.sequence);
    write("total", found.total);
    write("read", found.read);
    write("rank", found.rank ?? null, found.refusedRanks && "not possible");
    write("all", found.all ?? null, found.refusedRanks && "not possible");
    output("refused-ranks").textContent = found.refusedRanks ?? "";
    output("ranks-label").textContent = ranks.ranks === 1 ? "the one rank" : `all ${thousands(ranks.ranks)} ranks`;
    const weights = ranks.weights_bytes === null ? null : BigInt(ranks.weights_bytes);
    write("weights", weights, weights === null ? "unknown" : undefined);
    output("weights-text").textContent = ranks.weights_text;
    const tokens = chosen.encoder_tokens;
    output("encoder").textContent = tokens === null ? "" : `The encoder's input is ${tokensOf(BigInt(tokens))}.`;
  }

  function showParts({ parts, total }) {
    output("parts").replaceChildren(...parts.map(([row, bytes]) => {
      const item = document.createElement("li");
      const share = total === 0n ? 0 : Number((bytes * 10000n) / total) / 100;
      item.append(made("span", "part", row.name), bar(share), made("data", "bytes", memory(bytes), bytes));
      const ctx = whole(field("ctx").value, limitOf("ctx"));
      item.append(made("span", "why", `${row.format}, ${row.says[ctx >= BigInt(row.full_at) ? 1 : 0]}`));
      return item;
    }));
  }

  function made(tag, name, text, value) {
    const one = document.createElement(tag);
    one.className = name;
    one.textContent = text;
    if (value !== undefined) one.value = String(value);
    return one;
  }

  function bar(share) {
    const track = made("span", "track", "");
    const filled = made("span", "filled", "");
    filled.style.width = `${share}%`;
    track.append(filled);
    track.setAttribute("aria-hidden", "true");
    return track;
  }

  function command({ chosen, form, ranks, ctx, batch }) {
    const kv = form.names[0] === "auto" ? "" : ` --kv-dtype ${form.names[0]}`;
    const tp = ranks.tp === 1 ? "" : ` --tp ${ranks.tp}`;
    return `${chosen.command} --ctx ${ctx} --batch ${batch}${kv}${tp} ${chosen.flags}`.trim();
  }

  // A slider sends dozens of events: a screen reader hears the last one.
  let waiting;
  function tell(mood, text) {
    const shown = output("verdict");
    shown.className = `verdict ${mood}`.trim();
    shown.textContent = text;
    clearTimeout(waiting);
    waiting = setTimeout(() => { output("spoken").textContent = text; }, 500);
  }

  // ---- sliders follow the numbers, and lead them ----

  function follow() {
    for (const [name, stops] of [["ctx", cased().contexts], ["batch", cased().batches]]) {
      const count = whole(field(name).value, limitOf(name)) ?? 1n;
      const at = stops.findLastIndex((stop) => BigInt(stop) <= count);
      field(`${name}-slider`).value = Math.max(0, at);
      speak(name);
    }
  }

  function speak(name) {
    const what = name === "ctx" ? "token" : "sequence";
    const count = whole(field(name).value, limitOf(name));
    field(`${name}-slider`).setAttribute("aria-valuetext", count === null ? "" : counted(count, what));
  }

  function lead(name) {
    const stops = name === "ctx" ? cased().contexts : cased().batches;
    field(name).value = stops[Number(field(`${name}-slider`).value)];
    speak(name);
  }

  function changed(event) {
    const name = event.target.dataset.field;
    if (name === "model") choose(field("model").selectedIndex);
    if (name === "ctx-slider" || name === "batch-slider") lead(name.replace("-slider", ""));
    else follow();
    output("note").textContent = "";
    show();
    const state = asked();
    if (state.ctx !== null && state.batch !== null) remember(state);
  }

  fill(field("model"), data.cases.map((one) => one.name));
  field("model").closest("label").hidden = data.cases.length === 1;
  choose(0);
  put("ctx", data.cases[0].asked.ctx);
  put("batch", data.cases[0].asked.batch);
  panel.addEventListener("input", changed);
  panel.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", restore);
  panel.hidden = false;
  restore();
}
