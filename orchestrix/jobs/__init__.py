"""How do jobs get to workers, and which node receives what the workers report?

The leader dispatches a job that is due: one transaction writes the attempt and two messages, one for a worker and one
for the node that will own the job. Owning is a compare-and-set on (owner, owner epoch), and every write about a
worker's report carries that epoch: of two nodes that believe to own a job, one writes. A message is acknowledged after
the commit that it led to, and never behind the end of its channel, so that what one node could not write the next one
gets.
"""
