(function () {
  "use strict";
  // A click on a heading, or Enter, sorts by its column: numbers the largest first, gaps last.
  function value(row, place) {
    var cell = row.cells[place];
    return "sort" in cell.dataset ? cell.dataset.sort : cell.textContent.trim();
  }
  function sort(heading) {
    var table = heading.closest("table"), place = heading.cellIndex;
    var down = heading.getAttribute("aria-sort") !== "descending";
    table.querySelectorAll("th[aria-sort]").forEach(function (each) { each.removeAttribute("aria-sort"); });
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    Array.from(table.tBodies[0].rows).sort(function (a, b) {
      var x = value(a, place), y = value(b, place);
      if (x === "" || y === "") return (x === "") - (y === "");
      return (down ? -1 : 1) * (x - y || x.localeCompare(y));
    }).forEach(function (row) { table.tBodies[0].append(row); });
  }
  document.querySelectorAll(".sortable thead th").forEach(function (heading) {
    heading.tabIndex = 0;
    heading.addEventListener("click", function () { sort(heading); });
    heading.addEventListener("keydown", function (event) { if (event.key === "Enter") sort(heading); });
  });
  // A link may lead into a part that is folded; what is folded on the screen is not on paper.
  function reveal() {
    var target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (var each = target; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
    if (target) target.scrollIntoView();
  }
  window.addEventListener("hashchange", reveal);
  reveal();
  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details").forEach(function (each) { each.open = true; });
  });
})();
