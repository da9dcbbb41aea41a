// The numbers that the writers of the soak test insert, and those that the table must contain.
//
// Every insert returns the timeline of the server that committed it. A cluster that a restore
// brings in has another timeline than the one that it replaces, so each acknowledged commit
// belongs to exactly one cluster, also while the two are exchanged.
import { once } from './soak_load.mjs';

/** Longest time until the writers have no insert in progress, in milliseconds. */
const QUIET_MAX = 60_000;
/** Time without commits after the moment of a restore, in milliseconds. */
const MARGIN = 1_500;
/** Numbers of a list that are printed. */
const SHOWN = 10;

export class Ledger {
  #next = 1;
  #closed = false;
  /** Inserts in progress. */
  pending = new Set();
  /** Inserts without an answer: they may have been committed or not. */
  unanswered = new Set();
  commits = 0;
  /** The cluster of the project, the one that it replaced, and the one of a restore in progress. */
  current;
  replaced;
  coming;
  /** Commits on a timeline that no cluster of this history has. */
  strange = [];
  /** Commits that restores and their undoing have taken away so far. */
  abandoned = 0;
  /** Commits that undoing a restore has brought back so far. */
  broughtBack = 0;

  constructor(timeline) {
    this.current = { timeline, numbers: new Set() };
  }

  /** Returns whether writers must wait. */
  get isClosed() {
    return this.#closed;
  }

  /** Returns the next number, whose insert is in progress from now on. */
  take() {
    const number = this.#next;
    this.#next += 1;
    this.pending.add(number);
    return number;
  }

  /** Records the answer to an insert. */
  acknowledge(number, timeline) {
    this.pending.delete(number);
    this.commits += 1;
    const { current, coming, replaced } = this;
    if (timeline !== current.timeline && coming) coming.timeline ??= timeline;
    const found = [current, coming, replaced].find((cluster) => cluster?.timeline === timeline);
    if (found) found.numbers.add(number);
    else this.strange.push({ number, timeline });
  }

  /** Records an insert that failed. */
  fail(number) {
    this.pending.delete(number);
    this.unanswered.add(number);
  }

  /**
   * Stops the writers, and returns the second to which a restore brings back exactly the commits
   * until now, with their numbers. The writers go on when the second is over.
   */
  async moment() {
    this.#closed = true;
    try {
      const isQuiet = () => this.pending.size === 0;
      await once('no insert in progress', isQuiet, { millis: QUIET_MAX, every: 5 });
      const numbers = new Set(this.current.numbers);
      const second = Math.ceil(Date.now() / 1000);
      await once('the end of a second', () => Date.now() > second * 1000 + MARGIN, { every: 20 });
      return { second, numbers };
    } finally {
      this.#closed = false;
    }
  }

  /** Notes that a restore was requested. Its cluster has these numbers, and a new timeline. */
  restoring(numbers) {
    this.coming = { timeline: undefined, numbers: new Set(numbers) };
  }

  /** Notes that undoing the last restore was requested. */
  undoing() {
    this.coming = this.replaced;
  }

  /** Notes the end of a restore. Returns whether the server has the timeline of a new cluster. */
  settle(timeline) {
    const { current, coming } = this;
    this.coming = undefined;
    if (timeline === current.timeline) return false;
    if ((coming.timeline ??= timeline) !== timeline) this.strange.push({ timeline });
    const missing = (from, other) => [...from].filter((number) => !other.has(number)).length;
    this.abandoned += missing(current.numbers, coming.numbers);
    if (coming === this.replaced) this.broughtBack += missing(coming.numbers, current.numbers);
    [this.current, this.replaced] = [coming, current];
    return true;
  }

  /** Compares the table with the acknowledged commits. Inserts may be in progress. */
  async compare(read) {
    const required = [...this.current.numbers];
    const found = new Set(await read());
    const { numbers } = this.current;
    const lost = required.filter((number) => !found.has(number));
    const permitted = [numbers, this.pending, this.unanswered];
    const surplus = [...found].filter((number) => !permitted.some((set) => set.has(number)));
    const list = (all) => `${all.length}, the first ones: ${all.slice(0, SHOWN).join(', ')}`;
    const problems = [];
    if (lost.length > 0) problems.push(`lost commits: ${list(lost)}`);
    if (surplus.length > 0) problems.push(`rows that should not be there: ${list(surplus)}`);
    if (this.strange.length > 0) {
      problems.push(`unknown timelines: ${JSON.stringify(this.strange.slice(0, SHOWN))}`);
    }
    return { rows: found.size, problems };
  }
}
