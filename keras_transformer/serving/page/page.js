"use strict";
// All text of models and of people is set as text, never as HTML.
const $ = (id) => document.getElementById(id);
let verbs = [], chosen = null, running = null;
let talk = [];  // the messages of a conversation so far

function made(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function said(text, wrong = false) {
  $("state").textContent = text;
  $("state").className = wrong ? "wrong" : "";
}

function input(field) {
  const common = { id: `field-${field.name}`, name: field.name };
  if (["text", "texts", "messages"].includes(field.kind)) {
    return made("textarea", { ...common, required: !field.optional, spellcheck: false });
  }
  if (field.kind === "file") {
    return made("input", { ...common, type: "file", required: true });
  }
  const step = field.kind === "integer" ? "1" : "any";
  return made("input", {
    ...common, type: "number", step, min: field.least, max: field.most,
    value: field.default ?? "", required: !field.optional,
  });
}

function choose(index) {
  chosen = verbs[index];
  $("preset").textContent = chosen.preset;
  $("fields").replaceChildren(...chosen.fields.map((field) => {
    const label = made("label", { htmlFor: `field-${field.name}`, textContent: field.label });
    const box = made("div", {}, label, input(field));
    if (field.kind === "integer" || field.kind === "number") box.className = "row";
    return box;
  }));
  for (const file of document.querySelectorAll("input[type=file]")) {
    file.addEventListener("change", () => show(file));
  }
  $("ask").textContent = chosen.title;
  $("look").hidden = !chosen.explains;
  $("anew").hidden = !chosen.fields.some((field) => field.kind === "messages");
  begin();
  $("seen").hidden = true;
}

function begin() {
  talk = [];
  $("found").replaceChildren();
  said("");
}

function show(file) {
  file.parentElement.querySelector(".given")?.remove();
  const [given] = file.files;
  const tag = given && { image: "img", audio: "audio" }[given.type.split("/")[0]];
  if (!tag) return;
  const more = tag === "img" ? { alt: "The image that was chosen" } : { controls: true };
  const element = made(tag, { className: "given", src: URL.createObjectURL(given), ...more });
  file.parentElement.append(element);
}

async function base64(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let i = 0; i < bytes.length; i += 0x8000) {
    text += String.fromCharCode(...bytes.subarray(i, i + 0x8000));
  }
  return btoa(text);
}

async function values() {
  const given = {};
  for (const field of chosen.fields) {
    const element = $(`field-${field.name}`);
    if (field.kind === "file") given[field.name] = await base64(element.files[0]);
    else if (field.kind === "messages") {
      given[field.name] = [...talk, { role: "user", content: element.value }];
    }
    else if (field.kind === "texts") {
      given[field.name] = element.value.split("\n").filter((line) => line.trim());
    } else if (element.value.trim() !== "") {
      given[field.name] = field.kind === "text" ? element.value : Number(element.value);
    }
  }
  return given;
}

async function post(form, given, signal) {
  const path = ["/api", chosen.preset, chosen.verb].map((part, i) => i ? encodeURIComponent(part) : part);
  const response = await fetch(path.join("/") + form, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(given), signal,
  });
  if (!response.ok) {
    const told = await response.json().catch(() => ({ error: response.statusText }));
    throw new Error(told.error);
  }
  return response;
}

const number = (value) => Number.isInteger(value) ? String(value) : value.toFixed(3);

function cell(name, value) {
  if (typeof value !== "number") return made("td", { textContent: value });
  const bar = name === "score" && value >= 0 && value <= 1;
  return made("td", { className: "number" }, ...(bar ? [made("meter", { value })] : []), number(value));
}

function table(rows, title) {
  if (!rows.length) return made("p", { className: "text", textContent: `${title}: nothing was found.` });
  const names = Object.keys(rows[0]);
  const head = made("tr", {}, ...names.map((n) => made("th", { scope: "col", textContent: n })));
  const body = rows.map((row) => made("tr", {}, ...names.map((n) => cell(n, row[n]))));
  return made("div", { className: "scroll" },
    made("table", {}, made("caption", { textContent: title }), made("thead", {}, head), made("tbody", {}, ...body)));
}

function similarities(matrix, texts) {
  const rows = texts.map((text, i) => {
    const cells = matrix[i].map((value) => {
      const element = made("td", { className: "number", textContent: value.toFixed(2) });
      const strength = Math.round(100 * Math.max(0, value) * 0.6);
      element.style.background = `color-mix(in srgb, var(--accent) ${strength}%, transparent)`;
      return element;
    });
    return made("tr", {}, made("th", { scope: "row", textContent: `${i + 1}  ${text}` }), ...cells);
  });
  const head = made("tr", {}, made("th", {}), ...texts.map((_, i) => made("th", { scope: "col", textContent: i + 1 })));
  return made("div", { className: "scroll" },
    made("table", {}, made("caption", { textContent: "Cosine of the vectors: 1 is the same direction" }),
      made("thead", {}, head), made("tbody", {}, ...rows)));
}

function present(answer, given) {
  const names = given.texts ?? [given.question ?? "The file"];
  const parts = [];
  if (answer.rows) parts.push(...answer.rows.map((rows, i) => table(rows, names[i] ?? "")));
  if (answer.texts) parts.push(...answer.texts.map((text) => made("p", { className: "text", textContent: text })));
  if (answer.similarities) parts.push(similarities(answer.similarities, given.texts));
  $("found").replaceChildren(...parts);
}

function turn(role, text) {
  return made("div", {}, made("span", { className: "role", textContent: role }), text);
}

async function talked(given, signal) {
  const response = await post("/stream", given, signal);
  const asked = made("p", { className: "text", textContent: given.messages.at(-1).content });
  const text = made("p", { className: "text" });
  $("found").append(turn("You", asked), turn(chosen.preset, text));
  $("field-messages").value = "";
  try {
    await append(response, text);
  } finally {  // what was said before Stop is part of the conversation too
    const content = text.textContent;
    if (content.trim()) talk = [...given.messages, { role: "assistant", content }];
  }
}

async function streamed(given, signal) {
  const response = await post("/stream", given, signal);
  const text = made("p", { className: "text" }, made("span", { className: "prompt", textContent: given.prompt }));
  $("found").replaceChildren(text);
  await append(response, text);
}

async function append(response, text) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines.filter(Boolean)) {
      const told = JSON.parse(line);
      if (told.error) throw new Error(told.error);
      if (told.piece) text.append(told.piece);
    }
  }
}

function lock(locked) {
  for (const id of ["ask", "look", "anew", "choice"]) $(id).disabled = locked;
}

async function during(work) {
  if (running) return;
  running = new AbortController();
  lock(true);
  $("stop").hidden = false;
  said("Computing …");
  try {
    await work(running.signal);
    said("");
  } catch (error) {
    said(error.name === "AbortError" ? "Stopped." : error.message, error.name !== "AbortError");
  } finally {
    running = null;
    lock(false);
    $("stop").hidden = true;
  }
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  during(async (signal) => {
    const given = await values();
    if (given.messages) await talked(given, signal);
    else if (chosen.streams) await streamed(given, signal);
    else present(await (await post("", given, signal)).json(), given);
  });
});

$("look").addEventListener("click", () => {
  if (!$("form").reportValidity()) return;
  during(async (signal) => {
    const { view } = await (await post("/explain", await values(), signal)).json();
    $("view").src = view;
    $("seen").hidden = false;
  });
});

$("anew").addEventListener("click", begin);
$("stop").addEventListener("click", () => running?.abort());
$("choice").addEventListener("change", (event) => choose(event.target.value));

// A long text in a box is sent by Ctrl-Enter, without a mouse.
$("form").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit();
});

fetch("/api").then((response) => response.json()).then((found) => {
  verbs = found;
  $("choice").append(...found.map((verb, i) => made("option", { value: i, textContent: `${verb.title} · ${verb.preset}` })));
  choose(0);
}).catch(() => said("The server does not answer.", true));
