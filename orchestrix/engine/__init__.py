"""How does a saga get from its start to its end, whatever dies in between?

    SagaStarter ──commit──▶ OutboxRelay ──publish──▶ cmd.* … evt.* ──▶ EventListener ──commit──▶ OutboxRelay …
                                 ▲                                SagaTimers: sends again what got no answer
                                 └── expired claims of any node   BrokerResetDetector: sends again what a broker lost

Every arrow may be cut by a crash. A saga's commands are in the outbox in the same commit as its state, so the relay of
any node can send them; what came in is acknowledged only after the commit, so the broker redelivers it.
"""
