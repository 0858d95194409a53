"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("chart-data").textContent);
  const looks = JSON.parse(document.getElementById("chart-looks").textContent);
  const isDark = matchMedia("(prefers-color-scheme: dark)");
  const isTouched = matchMedia("(pointer: coarse)").matches;
  const NARROW = 520, PAPER = 690;
  let isPrinting = false;

  // Plotly reads a little markup in text; nothing here is markup.
  const text = (words) => words.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const broken = (words, most) => words.split(" ").reduce((lines, word) => {
    const last = lines[lines.length - 1];
    if (last !== undefined && last.length + word.length < most) lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(word);
    return lines;
  }, []).map(text).join("<br>");

  const axis = (one, look) => ({
    type: one.type,
    title: one.label ? { text: text(one.label), standoff: 8 } : undefined,
    range: one.range,
    tickmode: one.ticks || one.categories ? "array" : "auto",
    tickvals: one.ticks || one.categories,
    ticktext: one.words ? one.words.map(text) : one.categories?.map((name) => broken(name, 30)),
    color: look.ink, gridcolor: look.line, linecolor: look.line, zeroline: false, automargin: true,
    showgrid: one.type !== "category",
  });

  const trace = (chart, one, look, isShown) => {
    const color = one.color < 0 ? look.ink : look.series[one.color];
    const shared = {
      name: text(one.name), hovertext: one.hover.map((words) => text(words).replaceAll("\n", "<br>")),
      hoverinfo: "text", visible: isShown, showlegend: false,
    };
    if (one.mark === "bar")
      return { ...shared, type: "bar", orientation: "h", x: one.y, y: one.x, textposition: "none",
        marker: one.color < 0
          ? { color: look.raised, line: { color: look.soft, width: 1 } }
          : { color, line: { color: look.ground, width: 1 }, pattern: { shape: one.pattern, solidity: 0.5 } } };
    return { ...shared, type: "scatter", x: one.x, y: one.y,
      mode: one.mark === "points" ? "markers" : one.marker ? "lines+markers" : "lines",
      line: { color, width: 2, dash: one.dash },
      marker: { color, size: 8, symbol: one.marker || "circle", line: { color: look.ground, width: 1 } } };
  };

  const draw = (chart) => {
    const place = document.getElementById(`plot-${chart.key}`);
    const look = looks[isDark.matches && !isPrinting ? "dark" : "light"];
    const width = isPrinting ? PAPER : place.clientWidth;
    const isNarrow = width < NARROW;
    const bars = chart.isBars ? chart.x.categories.length * (chart.isStacked ? 1 : chart.series.length) : 0;
    const shown = [...document.querySelectorAll(`[data-chart="${chart.key}"]`)]
      .map((button) => button.getAttribute("aria-pressed") === "true");
    const [x, y] = chart.isBars ? [chart.y, chart.x] : [chart.x, chart.y];
    const layout = {
      width, height: chart.isBars ? 84 + Math.max(2, bars) * 38 : isNarrow ? 320 : 400,
      margin: { l: 12, r: 16, t: 12, b: 12 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: isNarrow ? 12 : 13, color: look.ink },
      xaxis: { ...axis(x, look), nticks: 5 }, yaxis: axis(y, look),
      barmode: chart.isStacked ? "stack" : "group", bargap: 0.3, showlegend: false, hovermode: "closest",
      dragmode: isTouched ? false : "zoom",
      hoverlabel: { bgcolor: look.raised, bordercolor: look.line, font: { color: look.ink }, align: "left" },
    };
    if (chart.isBars) layout.yaxis = { ...layout.yaxis, autorange: "reversed", range: undefined };
    if (chart.isBars && isNarrow) {
      // There is no room beside the bars: each name stands above its own.
      Object.assign(layout, { bargap: 0.6, height: 84 + Math.max(2, bars) * 52 });
      layout.yaxis.showticklabels = false;
      layout.annotations = chart.x.categories.map((name) => ({ text: text(name), x: 0, xref: "paper", xanchor: "left",
        y: name, yref: "y", yanchor: "bottom", yshift: 10, showarrow: false, font: { color: look.ink } }));
    }
    if (isNarrow && x.ticks && x.ticks.length > 5)
      layout.xaxis.ticktext = layout.xaxis.ticktext.map((words, index) => (index % 2 ? "" : words));
    const traces = chart.series.map((one, index) => trace(chart, one, look, shown[index] ?? true));
    return Plotly.react(place, traces, layout, { displayModeBar: false, responsive: false });
  };
  const drawAll = () => charts.forEach(draw);

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-chart]");
    if (!button) return;
    button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
    draw(charts.find((chart) => chart.key === button.dataset.chart));
  });
  isDark.addEventListener("change", drawAll);
  let lastWidth = document.documentElement.clientWidth;
  addEventListener("resize", () => {
    const width = document.documentElement.clientWidth;
    if (width === lastWidth || isPrinting) return;
    lastWidth = width;
    drawAll();
  });
  addEventListener("beforeprint", () => { isPrinting = true; drawAll(); });
  addEventListener("afterprint", () => { isPrinting = false; drawAll(); });
  drawAll();
})();
