// Filters for long tables: a box for words, and a list for each column of few values. Without this
// script the tables are whole. Nothing is fetched.
(function () {
  "use strict";
  const LONG = 15; // rows of a table that is given filters
  const FEW = 100; // values of a column that is given a list

  function text(cell) {
    return cell ? cell.textContent.trim() : "";
  }

  // The different values of a column, sorted; null where a list would be no help.
  function choices(rows, column) {
    const values = new Set(rows.map((row) => text(row.cells[column])).filter(Boolean));
    const few = values.size > 1 && values.size <= FEW && values.size * 3 <= rows.length;
    const short = [...values].every((value) => value.length <= 50);
    const words = [...values].some((value) => /[a-z]/i.test(value));
    return few && short && words ? [...values].sort() : null;
  }

  function labelled(name, control) {
    const label = document.createElement("label");
    const title = document.createElement("span");
    title.textContent = name;
    label.append(title, control);
    return label;
  }

  function list(name, values) {
    const control = document.createElement("select");
    control.append(new Option("all", ""));
    values.forEach((value) => control.append(new Option(value, value)));
    return labelled(name, control);
  }

  function filter(table) {
    const rows = [...table.tBodies[0].rows];
    if (rows.length < LONG) return;
    const form = document.createElement("form");
    form.className = "table-filter";
    form.setAttribute("role", "search");
    form.setAttribute("aria-label", "Filter of the table");
    const box = document.createElement("input");
    box.type = "search";
    box.placeholder = "words, in any order";
    box.autocomplete = "off";
    form.append(labelled("find", box));
    const lists = [];
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const values = choices(rows, column);
      if (!values) return;
      const label = list(text(head), values);
      lists.push([column, label.querySelector("select")]);
      form.append(label);
    });
    const count = document.createElement("output");
    count.setAttribute("aria-live", "polite");
    form.append(count);

    function apply() {
      const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      rows.forEach((row) => {
        const all = row.textContent.toLowerCase();
        const fits =
          words.every((word) => all.includes(word)) &&
          lists.every(([column, one]) => !one.value || text(row.cells[column]) === one.value);
        row.hidden = !fits;
        shown += fits;
      });
      count.textContent = shown + " of " + rows.length;
    }

    form.addEventListener("input", apply);
    form.addEventListener("submit", (event) => event.preventDefault());
    // A link with words in it, such as presets.html?find=whisper, shows the rows that have them.
    const asked = new URLSearchParams(location.search).get("find");
    if (asked) box.value = asked;
    (table.closest(".md-typeset__scrollwrap") || table).before(form);
    apply();
  }

  function start() {
    document.querySelectorAll(".md-content article table").forEach((table) => {
      if (table.tHead && table.tBodies.length && !table.dataset.filtered) {
        table.dataset.filtered = "yes";
        filter(table);
      }
    });
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
