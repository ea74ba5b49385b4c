"""How does a worker run jobs: long work with a status, logs and a cancel?

A job's dispatch is one try of it, an *attempt*. The worker says RUNNING on the job's status channel, and when the
broker has confirmed that, it acknowledges the dispatch: from then on the broker knows nothing of the attempt any more,
and the worker holds it by its beat. What the job says goes out in the order of one number, `seq`, over the status and
the logs channel, and is sent again until it is confirmed. The last word, which is sent when all before it is confirmed,
is how the attempt ended. A worker that dies says nothing more: its beats end, and the coordinator begins another
attempt.
"""
