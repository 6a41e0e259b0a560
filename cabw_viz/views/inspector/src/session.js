/** What is known beside the capture that is open: the other captures by title, and what became of each backward call. */
import { sent, unpack } from "./columns.js";

export class SessionFacts {
  captures = [];
  events = [];

  constructor(bytes) {
    if (!sent(bytes)) return;
    const { facts, tables: t, columns: c } = unpack(bytes);
    this.captures = facts.captures;
    this.events = Array.from(c.event_outcome, (outcome, i) => ({
      call: c.event_call[i] ? c.event_call[i] - 1 : null,
      function: t.functions[c.event_function[i]],
      where: t.places[c.event_place[i]],
      outcome: t.outcomes[outcome],
      reason: c.event_reason[i] ? t.reasons[c.event_reason[i] - 1] : "",
      capture: c.event_capture[i] ? c.event_capture[i] - 1 : null,
      seconds: c.event_seconds[i],
    }));
  }

  /** Captures made after the first one: those that a cache might have saved. */
  get again() {
    return this.events.filter((e) => e.outcome === "captured").slice(1);
  }
}
