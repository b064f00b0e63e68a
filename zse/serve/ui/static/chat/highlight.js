// Colours for code of any usual language: comments, strings, numbers and words that languages keep.
const WORDS = new Set(("and as assert async await bool break case catch class const continue def default defer del do elif else enum " +
  "except export extends false final finally float fn for foreach from func function global go if impl implements import in int " +
  "interface is lambda let loop match mod module mut namespace new nil none None nonlocal not null or package pass private " +
  "protected pub public raise return select self static struct super switch this throw trait true True False try type typedef union unsafe " +
  "use using var virtual void when where while with yield SELECT FROM WHERE INSERT INTO UPDATE DELETE CREATE TABLE JOIN ORDER BY GROUP AND OR NOT NULL AS").split(" "));
const PARTS = /(\/\/[^\n]*|\/\*[\s\S]*?\*\/|(?<![\w&$])#[^\n]*|--\s[^\n]*)|("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`)|(\b\d[\w.]*)|([A-Za-z_]\w*)/g;
const LONGEST = 50000;

/** Fill an element with code; longer texts stay plain. */
export function highlight(place, text) {
  if (text.length > LONGEST) { place.textContent = text; return; }
  let end = 0;
  for (const match of text.matchAll(PARTS)) {
    const kind = match[1] ? "c" : match[2] ? "s" : match[3] ? "n" : WORDS.has(match[4]) ? "k" : "";
    if (!kind) continue;
    const span = document.createElement("span");
    span.className = kind;
    span.textContent = match[0];
    place.append(text.slice(end, match.index), span);
    end = match.index + match[0].length;
  }
  place.append(text.slice(end));
}
