"""How does a saga get from its start to its end, whatever dies in between?

    Starter ──commit──▶ OutboxRelay ──publish──▶ cmd.* … evt.* ──▶ EventListener ──commit──▶ OutboxRelay …
                             ▲                                   SagaTimers: sends again what is overdue
                             └── rows of any node whose claim    BrokerResetDetector: sends again what an emptied
                                 expired                                              broker has lost

Every arrow may be cut by a crash. A saga's commands are in the outbox in the same commit as its state, so the relay of
any node can send them; what came in is acknowledged only after the commit, so the broker redelivers it.
any node can send it; what came in is acknowledged only after the commit, so the broker gives it out again.
"""
