// Markdown as elements. What a model writes is never parsed as HTML: each token becomes an element of
// a kind that stands here, and its texts become text. Pictures are links, so nothing is fetched.
import { lexer } from "../vendor/marked.js";
import { highlight } from "./highlight.js";

const DEEPEST = 30, LONGEST = 200000;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', "#39": "'", nbsp: "\u00a0" };

export function markdown(text) {
  const place = document.createDocumentFragment();
  try {
    if (text.length > LONGEST) throw new RangeError("long");
    blocks(place, lexer(text), 0);
  } catch { // nested too deeply, or too long
    place.replaceChildren(element("pre", text));
  }
  return place;
}

function element(name, text = "") {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  return made;
}

function within(name, tokens, depth, fill = inlines) {
  const made = element(name);
  fill(made, tokens ?? [], depth + 1);
  return made;
}

function blocks(place, tokens, depth) {
  if (depth > DEEPEST) throw new RangeError("deep");
  for (const token of tokens) {
    const make = BLOCKS[token.type];
    if (make) place.append(make(token, depth));
    else if (token.type !== "space" && token.type !== "def") inlines(place, [token], depth);
  }
}

const BLOCKS = {
  heading: (token, depth) => within(`h${Math.min(6, token.depth + 2)}`, token.tokens, depth),
  paragraph: (token, depth) => within("p", token.tokens, depth),
  blockquote: (token, depth) => within("blockquote", token.tokens, depth, blocks),
  hr: () => element("hr"),
  html: (token) => element("p", token.raw),
  code: (token) => code(token.text, token.lang),
  list: (token, depth) => {
    const list = element(token.ordered ? "ol" : "ul");
    if (token.ordered && token.start !== 1) list.start = Number(token.start);
    for (const item of token.items) list.append(within("li", item.tokens, depth, blocks));
    return list;
  },
  table: (token, depth) => {
    const table = element("table"), head = element("thead"), body = element("tbody");
    const line = (cells, name) => {
      const row = element("tr");
      for (const cell of cells) row.append(within(name, cell.tokens, depth));
      return row;
    };
    head.append(line(token.header, "th"));
    body.append(...token.rows.map((cells) => line(cells, "td")));
    table.append(head, body);
    return table;
  },
};

function inlines(place, tokens, depth) {
  if (depth > DEEPEST) throw new RangeError("deep");
  for (const token of tokens) {
    const make = INLINES[token.type];
    if (make) place.append(make(token, depth));
    else if (token.tokens) inlines(place, token.tokens, depth + 1);
    else place.append(token.type === "text" ? decoded(token.text) : token.text ?? token.raw);
  }
}

const INLINES = {
  strong: (token, depth) => within("strong", token.tokens, depth),
  em: (token, depth) => within("em", token.tokens, depth),
  del: (token, depth) => within("del", token.tokens, depth),
  codespan: (token) => element("code", token.text),
  br: () => element("br"),
  html: (token) => token.raw,
  checkbox: (token) => token.checked ? "☑ " : "☐ ",
  image: (token) => link(token.href, [token.text || token.href]),
  link: (token, depth) => link(token.href, [...within("span", token.tokens, depth).childNodes]),
};

function link(address, inside) {
  const made = /^(https?:|mailto:)/i.test(address) ? element("a") : element("span");
  if (made.tagName === "A") Object.assign(made, { href: address, rel: "noopener noreferrer nofollow", target: "_blank" });
  made.append(...inside);
  return made;
}

function code(text, language) {
  const place = element("div"), block = element("pre"), inner = element("code");
  place.className = "code";
  place.dir = "ltr";
  block.tabIndex = 0;
  if (language) block.setAttribute("aria-label", `Code, ${language.slice(0, 40)}`);
  highlight(inner, text);
  block.append(inner);
  place.append(block, zse.copying(element("button"), () => text));
  return place;
}

const decoded = (text) => text.replace(/&(amp|lt|gt|quot|#39|nbsp);/g, (_, name) => ENTITIES[name]);
