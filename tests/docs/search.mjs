// Prints where the search of a site finds words: node search.mjs SITE WORDS...
import { readFileSync, readdirSync } from "node:fs";
import vm from "node:vm";

const [site, ...asked] = process.argv.slice(2);
const folder = `${site}/assets/javascripts/workers/`;
const script = readdirSync(folder).find((name) => name.endsWith(".min.js"));
const index = JSON.parse(readFileSync(`${site}/search/search_index.json`, "utf8"));

// The script is a worker: it takes messages (0: the index, 2: a query), and posts its answers.
let answer;
const listeners = [];
const worker = {
  addEventListener: (kind, listener) => listeners.push(listener),
  postMessage: (message) => answer(message),
  importScripts() {},
  console,
};
worker.self = worker;
vm.runInContext(readFileSync(folder + script, "utf8"), vm.createContext(worker));
const send = (type, data) =>
  new Promise((resolve) => {
    answer = resolve;
    listeners.forEach((listener) => listener({ data: { type, data } }));
  });

await send(0, { ...index, options: { suggest: false } });
const found = {};
for (const words of asked) {
  const { data } = await send(2, words);
  found[words] = data.items.map((group) => group[0].location);
}
console.log(JSON.stringify(found));
