"""How does a saga get from its start to its end, whatever dies in between?

    Starter ──commit──▶ OutboxRelay ──publish──▶ cmd.* … evt.* ──▶ EventListener ──commit──▶ OutboxRelay …
                             ▲                                          Wakeups: what is overdue is sent again
                             └── rows whose claim ran out, of any node  Incarnation: what an emptied broker forgot

Every arrow may be cut by a crash. What a saga owes is in the outbox in the same commit as its state, so the relay of
any node can send it; what came in is acknowledged only after the commit, so the broker gives it out again.
"""
