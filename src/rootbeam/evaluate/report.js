"use strict";
// Draws every chart of the page from its specification, and offers the numbers as a file.
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const font = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
  const config = {
    background: "transparent",
    font: font,
    view: { stroke: "transparent" },
    axis: {
      labelColor: "var(--muted)", titleColor: "var(--muted)", gridColor: "var(--line)",
      domainColor: "var(--line)", tickColor: "var(--line)", labelFontSize: 12, titleFontSize: 12,
      titleFontWeight: "normal", titlePadding: 8, labelPadding: 6, labelLimit: 150,
    },
    axisX: { tickCount: 5, labelOverlap: "greedy", labelSeparation: 8 },
    axisY: { tickCount: 5 },
    axisBand: { ticks: false, domain: false, grid: false, labelColor: "var(--text)" },
    axisPoint: { ticks: false, domain: false, grid: false, labelColor: "var(--text)" },
  };
  const charts = read("report-charts");
  for (const place of document.querySelectorAll("[data-chart]")) {
    const spec = { ...charts[place.dataset.chart], config, autosize: { type: "fit-x", contains: "padding" } };
    // `ast` interprets expressions, so that the page need not allow eval.
    const options = { mode: "vega-lite", renderer: "svg", actions: false, ast: true, tooltip: { theme: "report" } };
    vegaEmbed(place, spec, options).catch((error) => {
      place.removeAttribute("role");
      place.textContent = `The chart could not be drawn (${error.message}); the table has its numbers.`;
    });
  }
  const button = document.getElementById("save-json");
  button.hidden = false;
  button.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(read("report-data"), null, 2)], { type: "application/json" }));
    link.download = "report.json";
    link.click();
    URL.revokeObjectURL(link.href);
  });
})();
