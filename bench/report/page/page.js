(function () {
  "use strict";
  var root = document.documentElement;
  root.classList.add("js");

  document.querySelectorAll("[data-filter]").forEach(function (input) {
    var table = document.getElementById(input.dataset.filter);
    var count = document.querySelector('[data-count="' + input.dataset.filter + '"]');
    input.addEventListener("input", function () {
      var words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      var shown = 0, rows = table.querySelectorAll("tbody tr");
      rows.forEach(function (row) {
        var text = row.textContent.toLowerCase();
        row.hidden = !words.every(function (word) { return text.includes(word); });
        shown += row.hidden ? 0 : 1;
      });
      count.textContent = words.length ? shown + " of " + rows.length + " rows" : "";
    });
  });

  // A link may lead into a part that is folded, or to a row that a filter hides.
  function reveal() {
    var target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    target.hidden = false;
    for (var each = target; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
    target.scrollIntoView();
  }
  window.addEventListener("hashchange", reveal);
  if (location.hash) reveal();

  // What is folded on the screen is not on paper, unless it is opened first.
  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("main details").forEach(function (each) { each.open = true; });
  });

  function colour(name) { return getComputedStyle(root).getPropertyValue(name).trim(); }

  function look(style) {
    var number = +style.slice(1);
    if (style === "rest") return { stroke: colour("--rest"), width: 1 };
    if (style === "control") return { stroke: colour("--control"), width: 1.2, dash: [2, 3] };
    return { stroke: colour("--k" + (number % 6)), width: 2, dash: number < 6 ? undefined : [6, 3] };
  }

  function draw(box) {
    var data = JSON.parse(document.getElementById(box.dataset.chart).textContent);
    var readout = box.parentElement.querySelector(".readout");
    var width = box.clientWidth, axis = { stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false } };
    var series = [{}].concat(data.lines.map(function (line) {
      return Object.assign({ label: line.label, spanGaps: true, points: { show: false } }, look(line.style));
    }));
    var nearest = null;
    function say(plot) {
      var at = plot.cursor.idx;
      if (nearest === null || at === null || at === undefined) return;
      var value = plot.data[nearest][at];
      if (value === null || value === undefined) return;
      readout.textContent = series[nearest].label + ": " + value.toFixed(2) + " with " + plot.data[0][at] + " % left out";
    }
    var plot = new uPlot({
      width: width, height: Math.round(width * 0.64), legend: { show: false },
      scales: { x: { time: false }, y: { range: data.range } }, focus: { alpha: 0.25 },
      cursor: { focus: { prox: 80 }, drag: { x: true, y: false } },
      axes: [Object.assign({ label: "least confident queries left out, %", size: 34, labelSize: 18 }, axis),
        Object.assign({ label: data.y_title, size: 44, labelSize: 18 }, axis)],
      series: series,
      hooks: { setSeries: [function (p, index) { nearest = index; say(p); }], setCursor: [say] }
    }, [data.x].concat(data.lines.map(function (line) { return line.y; })), box);
    box.classList.add("drawn");
    return plot;
  }

  var plots = new Map();
  function drawn(box) {
    var old = plots.get(box);
    if (old) old.destroy();
    plots.set(box, draw(box));
  }
  var seen = new IntersectionObserver(function (entries) {
    entries.forEach(function (entry) {
      if (entry.isIntersecting && !plots.has(entry.target)) drawn(entry.target);
    });
  }, { rootMargin: "200px" });
  document.querySelectorAll("[data-chart]").forEach(function (box) { seen.observe(box); });
  var timer;
  window.addEventListener("resize", function () {
    clearTimeout(timer);
    timer = setTimeout(function () {
      plots.forEach(function (plot, box) {
        if (box.clientWidth && box.clientWidth !== plot.width) plot.setSize({ width: box.clientWidth, height: Math.round(box.clientWidth * 0.64) });
      });
    }, 150);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", function () { plots.forEach(function (plot, box) { drawn(box); }); });
})();
