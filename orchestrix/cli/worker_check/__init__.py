"""Worker check: plays the orchestrator against a worker in any language, and reports each rule of the contract.

It has an embedded broker of its own, sends commands as the orchestrator does, and knows the worker only by what comes
back: events, acknowledgements and dead letters. What it cannot provoke by itself (a failure, slow work) or see (an
effect) options say how to; without these the rule counts as not checked, and never as followed.
"""
