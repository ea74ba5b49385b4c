"""How does a worker run jobs: long work with a status, logs and a cancel?

A job's dispatch is one try of it, an *attempt*. The worker publishes RUNNING on the job's status channel, and when the
broker has confirmed that, it acknowledges the dispatch: from then on the broker knows nothing of the attempt any more,
and the worker claims it by its heartbeat. Status and log messages are numbered by one sequence, `seq`, over both
channels, and are republished until confirmed. The final status, which is sent when all before it is confirmed, says how
the attempt ended. When a worker dies its heartbeats end, and the coordinator starts another attempt.
"""
