// Draws what the page's data describe. Everything drawn is Chart.js; here is
// what it is told.
"use strict";

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 40rem)");
  const marks = ["circle", "rect", "triangle", "rectRot", "star", "crossRot", "cross", "rectRounded"];
  let drawn = [];

  const color = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const number = (value) =>
    value === null ? "none" : Number(value.toPrecision(4)).toLocaleString("en-US", {
      maximumSignificantDigits: 4,
    });

  // On a narrow screen a long name takes several lines.
  function lines(text) {
    const most = narrow.matches ? 18 : 40;
    const cut = (word) => (word.length > most ? `${word.slice(0, most - 1)}\u2026` : word);
    const all = [];
    for (const word of text.split(" ")) {
      const longer = all.length > 0 ? `${all[all.length - 1]} ${word}` : word;
      if (all.length > 0 && longer.length <= most) {
        all[all.length - 1] = longer;
      } else {
        all.push(cut(word));
      }
    }
    return all;
  }

  function scaleOf(axis, { stacked, lies, kind }) {
    const scale = {
      title: { display: axis.title !== "", text: axis.title },
      grid: { color: color("--line"), borderColor: color("--soft") },
      ticks: {},
    };
    if (axis.labels.length > 0) {
      scale.type = "category";
      scale.labels = axis.labels;
      scale.offset = true;
      scale.ticks.autoSkip = !lies;
      scale.ticks.callback = (value) => lines(axis.labels[value]);
    } else {
      scale.type = axis.logarithmic ? "logarithmic" : "linear";
      scale.beginAtZero = kind !== "line";
      scale.ticks.maxTicksLimit = narrow.matches ? 5 : 9;
      scale.ticks.maxRotation = 0;
      // A logarithmic axis has room for powers of ten and what is near them.
      scale.ticks.callback = (value) => {
        const lead = value / 10 ** Math.floor(Math.log10(value) + 1e-9);
        const few = !axis.logarithmic || [1, 2, 5].includes(Math.round(lead * 1e6) / 1e6);
        return few ? number(value) : "";
      };
    }
    scale.stacked = stacked;
    return scale;
  }

  function datasetOf(chart, series, index, lies) {
    const own = color(`--color-${series.color}`);
    const dataset = {
      label: series.name,
      backgroundColor: own,
      borderColor: own,
      pointStyle: chart.kind === "points" ? marks[index % marks.length] : "rect",
    };
    if (chart.kind === "bars" || chart.kind === "stacked") {
      return Object.assign(dataset, { data: series.values, maxBarThickness: 48 });
    }
    if (chart.kind === "line") {
      return Object.assign(dataset, {
        data: series.points.map(([x, y]) => ({ x, y })),
        borderWidth: 2,
        pointRadius: series.points.length > 60 ? 0 : 3,
        pointStyle: "circle",
      });
    }
    if (chart.kind === "points") {
      const place = (axis, value) => axis.labels[value] ?? value;
      return Object.assign(dataset, {
        data: series.points.map(([x, y]) => ({ x: place(chart.x, x), y: place(chart.y, y) })),
        radius: narrow.matches ? 7 : 9,
        hoverRadius: narrow.matches ? 8 : 11,
        borderWidth: 2,
      });
    }
    return Object.assign(dataset, {
      data: series.spans.map(([row, start, end, label]) => ({
        x: [start, end],
        y: chart.y.labels[row],
        label,
      })),
      grouped: false,
      barPercentage: 1,
      categoryPercentage: 0.8,
      minBarLength: 1,
    });
  }

  function limitOf(chart, lies) {
    const { name, value, onX } = chart.limit;
    const own = color("--color-8");
    const dataset = {
      type: "line",
      label: name,
      borderColor: own,
      backgroundColor: own,
      borderDash: [6, 4],
      borderWidth: 2,
      pointRadius: 0,
      pointHitRadius: 8,
      pointStyle: "line",
      order: -1,
      stack: "limit",
    };
    if (chart.kind === "points") {
      const all = chart.series.flatMap((series) => series.points.map(([, y]) => y));
      const most = Math.max(...all);
      const least = chart.y.logarithmic ? Math.min(...all) : 0;
      dataset.data = onX
        ? [{ x: value, y: least }, { x: value, y: most }]
        : chart.x.labels.map((_, x) => ({ x, y: value }));
    } else {
      const labels = lies ? chart.y.labels : chart.x.labels;
      dataset.data = labels.map(() => value);
      // A line needs two ends.
      if (labels.length === 1) {
        Object.assign(dataset, { pointRadius: 60, rotation: lies ? 90 : 0 });
      }
    }
    return dataset;
  }

  function tooltipOf(chart, lies) {
    const at = (axis, value) =>
      axis.labels.length > 0 ? axis.labels[value] ?? value : `${axis.title}: ${number(value)}`;
    return {
      label: (item) => {
        const name = item.dataset.label;
        if (chart.kind === "timeline") {
          const { x, label } = item.raw;
          return `${label}: ${number(x[0])} to ${number(x[1])}, ${number(x[1] - x[0])} long`;
        }
        if (chart.kind === "points" || chart.kind === "line") {
          return `${name}: ${at(chart.x, item.parsed.x)}, ${at(chart.y, item.parsed.y)}`;
        }
        return `${name}: ${number(lies ? item.parsed.x : item.parsed.y)}`;
      },
      title: (items) =>
        chart.kind === "bars" || chart.kind === "stacked" ? items[0]?.label : "",
    };
  }

  function configOf(chart) {
    const lies = chart.y.labels.length > 0 && chart.kind !== "points";
    const stacked = chart.kind === "stacked";
    const datasets = chart.series.map((series, i) => datasetOf(chart, series, i, lies));
    if (chart.limit) {
      datasets.push(limitOf(chart, lies));
    }
    return {
      type: { line: "line", points: "scatter" }[chart.kind] ?? "bar",
      data: { labels: lies ? chart.y.labels : chart.x.labels, datasets },
      options: {
        indexAxis: lies ? "y" : "x",
        scales: {
          x: scaleOf(chart.x, { stacked, lies, kind: chart.kind }),
          y: scaleOf(chart.y, { stacked, lies, kind: chart.kind }),
        },
        interaction: { mode: "nearest", intersect: chart.kind !== "line" },
        plugins: {
          legend: {
            display: datasets.length > 1,
            position: "top",
            align: "start",
            labels: { usePointStyle: true, padding: 12, boxWidth: 12 },
          },
          tooltip: { callbacks: tooltipOf(chart, lies) },
        },
      },
    };
  }

  // Two sliders move the window that a timeline shows.
  function addZoom(section, chart) {
    const box = document.createElement("div");
    box.className = "zoom";
    const slider = (name, most) => {
      const label = document.createElement("label");
      const input = document.createElement("input");
      Object.assign(input, { type: "range", min: 0, max: most, step: most / 400, value: 0 });
      label.append(name, input);
      box.append(label);
      return input;
    };
    const zoom = slider("Zoom", 9);
    const place = slider("From", 1);
    const ends = chart.series.flatMap((series) => series.spans.map((span) => span[2]));
    const most = ends.reduce((a, b) => Math.max(a, b), 0);
    const show = () => {
      const length = most / 2 ** zoom.value;
      const start = place.value * (most - length);
      const picture = Chart.getChart(section.querySelector("canvas"));
      Object.assign(picture.options.scales.x, { min: start, max: start + length });
      picture.update("none");
    };
    zoom.addEventListener("input", show);
    place.addEventListener("input", show);
    section.querySelector(".picture").append(box);
    return show;
  }

  const shows = new Map();

  function draw() {
    drawn.forEach((chart) => chart.destroy());
    Chart.defaults.color = color("--text");
    Chart.defaults.borderColor = color("--line");
    Chart.defaults.font.family = "system-ui, sans-serif";
    Chart.defaults.font.size = 13;
    Chart.defaults.animation = false;
    Chart.defaults.maintainAspectRatio = false;
    drawn = data.map((chart) => {
      const canvas = document.getElementById(chart.id).querySelector("canvas");
      return new Chart(canvas, configOf(chart));
    });
    shows.forEach((show) => show());
  }

  draw();
  for (const chart of data.filter(({ kind }) => kind === "timeline")) {
    const show = addZoom(document.getElementById(chart.id), chart);
    shows.set(chart.id, show);
    show();
  }
  dark.addEventListener("change", draw);
  narrow.addEventListener("change", draw);
})();
