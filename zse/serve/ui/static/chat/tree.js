// Messages are a tree: an edit or another answer is a sibling. One branch is shown.
export class Tree {
  constructor(messages) {
    this.byId = new Map();
    this.children = new Map();
    this.chosen = new Map();
    for (const message of messages) this.add(message);
  }

  /** Add a message, which is shown from now on. */
  add(message) {
    this.byId.set(message.id, message);
    const siblings = this.children.get(message.parent) ?? [];
    this.children.set(message.parent, [...siblings, message]);
    this.chosen.set(message.parent, message.id);
  }

  siblings(message) { return this.children.get(message.parent); }

  /** Show the sibling before or after a message. */
  step(message, by) {
    const all = this.siblings(message);
    const other = all[all.indexOf(message) + by];
    if (other) this.chosen.set(message.parent, other.id);
  }

  /** The messages of the branch that is shown, the first one first. */
  branch() {
    const shown = [];
    for (let id = this.chosen.get(null); id; id = this.chosen.get(id)) shown.push(this.byId.get(id));
    return shown;
  }
}
